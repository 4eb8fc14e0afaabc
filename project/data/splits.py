"""Seeded, stratified splits in which no text stands twice."""

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from project.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("project")


def make_splits(
    tables: "dict[str, pd.DataFrame]", shares: dict[str, float], seed: int
) -> "tuple[dict[str, pd.DataFrame], int]":
    """Train, val and test of what a source gave; those it did not give are cut from train.

    Args:
        tables: `train` at least; unchanged.
        shares: of train's rows for `val` and for `test`, where they are missing.
        seed: of the cut.

    Returns:
        The three tables, and how many rows were dropped as repeated.

    Raises:
        UserError: nothing is left for one of the three.
    """
    kept = deduplicate(tables)
    dropped = sum(map(len, tables.values())) - sum(map(len, kept.values()))
    missing = {name: share for name, share in shares.items() if name not in tables}
    return kept | split(kept["train"], missing, seed), dropped


def deduplicate(tables: "dict[str, pd.DataFrame]") -> "dict[str, pd.DataFrame]":
    """No text in two splits, and none twice in train; texts that differ in case and spacing only are the same.

    A given test split stays as it is, so that results compare with those of others; val loses what is also in test,
    train what is also in either. Of texts repeated in train the first stays. Empty texts are no texts: all are kept.

    Raises:
        UserError: nothing is left of a split.
    """
    kept: dict[str, pd.DataFrame] = {}
    seen = set[str]()
    for name in ("test", "val", "train"):
        if name not in tables:
            continue
        table = tables[name]
        key = normalized(table["text"])
        repeated = key.isin(seen) | key.duplicated() if name == "train" else key.isin(seen)
        repeated &= key != ""
        if repeated.all():
            raise UserError(f"{table.attrs['where']}: every text is also in another split; give splits that differ")
        seen.update(key)
        kept[name] = table[~repeated]
    return {name: kept[name] for name in tables}


def normalized(texts: "pd.Series[str]") -> "pd.Series[str]":
    """What two texts must share to be the same."""
    return texts.str.normalize("NFKC").str.lower().str.split().str.join(" ")


def contradictions(tables: "dict[str, pd.DataFrame]") -> str | None:
    """What to say of texts that stand more than once with different labels; None where there are none."""
    import pandas as pd

    rows = pd.concat([table.assign(key=normalized(table["text"]), split=name) for name, table in tables.items()])
    rows = rows[rows["key"] != ""].drop_duplicates(["key", "label"])
    rows = rows[rows["key"].duplicated(keep=False)]
    if rows.empty:
        return None
    first = rows[rows["key"] == rows["key"].iloc[0]].head(2)
    places = zip(first["split"], first.index, first["label"], strict=True)
    example = ", ".join(f"{split} row {row} {label!r}" for split, row, label in places)
    return f"{rows['key'].nunique():,} texts stand with more than one label, such as {example}"


def split(table: "pd.DataFrame", shares: dict[str, float], seed: int) -> "dict[str, pd.DataFrame]":
    """Cut shares off a table, at random by `seed`; the rest is `train`.

    The sizes are exact, each label is shared out in proportion to within two rows, and its first row stays in train.

    Raises:
        UserError: a part would be empty.
    """
    classes = np.unique(table["label"].to_numpy(str), return_inverse=True)[1]
    by_class = np.lexsort((np.random.default_rng(seed).random(len(table)), classes))
    first = np.diff(classes[by_class], prepend=-1) > 0
    rest = by_class[~first]
    sizes = {name: round(share * len(table)) for name, share in shares.items()}
    cut = rest[evenly(len(rest), sum(sizes.values()))]
    parts = {}
    for name, size in sizes.items():
        chosen = evenly(len(cut), size)
        parts[name], cut = cut[chosen], cut[~chosen]
        if not len(parts[name]):
            raise UserError(
                f"{table.attrs['where']}: {len(table)} different texts in {first.sum()} classes are too few "
                f"to cut {name} from; add rows, or give {name} itself"
            )
    train = np.setdiff1d(np.arange(len(table)), np.concatenate([*parts.values(), cut, np.empty(0, np.int64)]))
    return {"train": table.iloc[train]} | {name: table.iloc[np.sort(part)] for name, part in parts.items()}


def evenly(total: int, count: int) -> npt.NDArray[np.bool_]:
    """A mask of `total` places, `count` of them true and evenly spaced; all, where there are fewer."""
    return np.diff(np.arange(total + 1) * min(count, total) // max(total, 1)) > 0
