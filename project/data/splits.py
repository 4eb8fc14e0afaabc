"""Seeded, stratified splits in which no text stands twice."""

import logging
from typing import TYPE_CHECKING

import numpy as np

from project.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("project")


def deduplicate(tables: "dict[str, pd.DataFrame]") -> "dict[str, pd.DataFrame]":
    """Keep the first of equal texts (ignoring case and outer space) in a split, and none of test in val, of either in train.

    Empty texts are kept: they are no evidence of a leak.
    """
    kept, seen = {}, set[str]()
    for split in ("test", "val", "train"):
        if split not in tables:
            continue
        table = tables[split]
        key = table["text"].str.strip().str.lower()
        repeated = (key.duplicated() | key.isin(seen)) & (key != "")
        if repeated.any():
            log.info("%s: %d repeated texts dropped", split, int(repeated.sum()))
        seen.update(key)
        kept[split] = table[~repeated].reset_index(drop=True)
    return {split: kept[split] for split in tables}


def split(table: "pd.DataFrame", shares: tuple[float, float], seed: int) -> "dict[str, pd.DataFrame]":
    """Cut `shares` for validation and test from each label's rows, at random by `seed`.

    Every label keeps at least one training row.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(table))
    labels = table["label"].to_numpy()[order]
    by_label = order[np.argsort(labels, kind="stable")]
    sorted_labels = np.sort(labels, kind="stable")
    starts = np.flatnonzero(np.r_[True, sorted_labels[1:] != sorted_labels[:-1]])
    sizes = np.diff(np.r_[starts, len(table)])
    rank = np.arange(len(table)) - np.repeat(starts, sizes)
    size = np.repeat(sizes, sizes)
    val = np.minimum(np.round(size * shares[0]), size - 1)
    test = np.minimum(np.round(size * (shares[0] + shares[1])), size - 1)
    parts = {"train": rank >= test, "val": rank < val, "test": (rank >= val) & (rank < test)}
    for name, part in parts.items():
        if not part.any():
            raise UserError(f"the {name} split came out empty: {len(table)} rows are too few for shares {shares}")
    return {name: table.iloc[np.sort(by_label[part])].reset_index(drop=True) for name, part in parts.items()}
