"""Labelled texts as a LightningDataModule: source, split, tokenizer, encoded once, batched by length."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from filelock import FileLock
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_only
from tokenizers import Tokenizer

from project.data.batching import (
    SequentialTokenBudgetSampler,
    TokenBudgetLoader,
    TokenBudgetSampler,
    make_loader,
    processes,
)
from project.data.sources import SPLITS, Source
from project.data.splits import contradictions, make_splits
from project.data.store import TokenDataset, encode, write
from project.data.tokenizer import SPECIAL_TOKENS, load_tokenizer, train_tokenizer, unknown_id
from project.errors import UserError, some

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("project")

FORMAT = 3  # of the cache; a new number when the code would write something else


class TextClassificationData(LightningDataModule):
    """Batches of tokens, padding mask, labels and row ids.

    Everything is prepared once for a content and a configuration, and kept in `cache_dir`; `setup` only opens files.
    `labels`, `vocab_size` and `tokenizer` prepare what is missing when they are asked for.

    Args:
        source: where the labelled texts come from.
        tokenizer: a tokenizer.json or a run's folder; default: one trained on the training split.
        labels: class names in order; default: those of the training split, sorted. Where the data has integers that
            are not among the names, an integer is a place in this list.
        vocab_size: of a tokenizer that is trained here.
        max_length: tokens after which a text is cut.
        add_cls: a tokenizer that is trained here begins each text with [CLS], for a model that pools the first token.
        tokens_per_batch: upper bound of rows x longest row in a batch.
        val_share: of the rows, for validation, where the source has no such split.
        test_share: of the rows, for the test, where the source has no such split.
        split_seed: of the split; leave it while comparing runs.
        seed: of the order of training.
        num_workers: processes that build batches; 0 builds them in the training process, which is fast enough for text.
        cache_dir: folder of prepared data; safe to delete.

    Raises:
        UserError: a share or size that cannot be, or, when preparing, data that is not as configured.
    """

    def __init__(
        self,
        source: Source,
        tokenizer: str | None = None,
        labels: list[str] | None = None,
        vocab_size: int = 16_000,
        max_length: int = 128,
        add_cls: bool = False,
        tokens_per_batch: int = 4096,
        val_share: float = 0.1,
        test_share: float = 0.1,
        split_seed: int = 0,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str = ".cache",
    ) -> None:
        super().__init__()
        if min(val_share, test_share) <= 0 or val_share + test_share >= 1:
            raise UserError(
                f"val_share {val_share} and test_share {test_share} must be positive and sum to less than 1"
            )
        if not 1 < max_length <= tokens_per_batch:
            raise UserError(
                f"max_length {max_length} must be 2 at least, and tokens_per_batch {tokens_per_batch} at most"
            )
        if vocab_size <= len(SPECIAL_TOKENS):
            raise UserError(f"vocab_size {vocab_size} must be above {len(SPECIAL_TOKENS)}, the special tokens")
        self.source = source
        self.max_length, self.tokens_per_batch = max_length, tokens_per_batch
        self.shares, self.split_seed = {"val": val_share, "test": test_share}, split_seed
        self.seed, self.num_workers = seed, num_workers
        self.cache_dir = Path(cache_dir)
        self._given_tokenizer = load_tokenizer(tokenizer) if tokenizer else None
        self._given_labels = labels
        self._vocab_size, self._add_cls = vocab_size, add_cls
        self._logged = False

    @cached_property
    def folder(self) -> Path:
        """The prepared data, made now where it is not in the cache."""
        given = self._given_tokenizer and self._given_tokenizer.to_str()
        folder = self.cache_dir / self._key(given or [self._vocab_size, self._add_cls], self._given_labels)
        if not folder.is_dir():
            try:
                self.cache_dir.mkdir(parents=True, exist_ok=True)
                with FileLock(f"{folder}.lock"):  # of several processes one prepares, the others wait
                    if not folder.is_dir():
                        self._prepare(folder)
            except OSError as error:
                raise UserError(
                    f"cannot write the data cache {self.cache_dir}: {error.strerror}; see cache_dir"
                ) from error
        return folder

    def _key(self, tokenizer: Any, labels: list[str] | None) -> str:
        data = [self._fingerprint, labels, self.shares, self.split_seed]
        facts = [FORMAT, tokenizers.__version__, data, tokenizer, self.max_length]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @cached_property
    def _fingerprint(self) -> str:
        return self.source.fingerprint()

    @cached_property
    def labels(self) -> list[str]:
        """Class names; a label's number is its place."""
        labels: list[str] = json.loads((self.folder / "labels.json").read_text(encoding="utf-8"))
        return labels

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """What was counted while preparing: examples, cut and unknown by split, and more."""
        statistics: dict[str, Any] = json.loads((self.folder / "statistics.json").read_text(encoding="utf-8"))
        return statistics

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """From text to token ids, cut at `max_length`."""
        return load_tokenizer(self.folder)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        size: int = self.statistics["vocabulary"]
        return size

    @property
    def class_counts(self) -> list[int]:
        """Training rows of each class."""
        counts: list[int] = self.statistics["class_counts"]
        return counts

    @cached_property
    def splits(self) -> dict[str, TokenDataset]:
        """The encoded texts by split."""
        return {name: TokenDataset.open(self.folder / f"{name}.arrow") for name in SPLITS}

    def texts(self) -> dict[str, tuple[list[str], list[str]]]:
        """Texts and label names by split, as they are before encoding."""
        named = {}
        for name, dataset in self.splits.items():
            assert dataset.labels is not None
            named[name] = (dataset.texts, [self.labels[i] for i in dataset.labels.tolist()])
        return named

    def _prepare(self, folder: Path) -> None:
        """Write everything beside its place and move it there whole."""
        log.info("preparing the data once, in %s", folder)
        given = self.source.read()
        tables, dropped = make_splits(given, self.shares, self.split_seed)
        if message := contradictions(given):
            log.warning("%s; of repeated texts the first stays in training", message)
        labels, classes = number_labels(tables, self._given_labels)
        tokenizer = self._given_tokenizer or train_tokenizer(tables["train"]["text"], self._vocab_size, self._add_cls)
        part = Path(tempfile.mkdtemp(dir=self.cache_dir, prefix="partial-"))
        try:
            statistics: dict[str, Any] = {"examples": {}, "cut": {}, "unknown_share": {}, "dropped": dropped}
            for name in SPLITS:
                texts = tables[name]["text"].tolist()
                values, offsets, cut = encode(texts, tokenizer, self.max_length)
                write(part / f"{name}.arrow", values, offsets, classes[name], texts)
                statistics["examples"][name] = len(texts)
                statistics["cut"][name] = cut
                statistics["unknown_share"][name] = float(np.mean(values == unknown_id(tokenizer)))
            statistics["class_counts"] = np.bincount(classes["train"], minlength=len(labels)).tolist()
            statistics["vocabulary"] = tokenizer.get_vocab_size()
            (part / "statistics.json").write_text(json.dumps(statistics), encoding="utf-8")
            (part / "labels.json").write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")
            tokenizer.save(str(part / "tokenizer.json"))
            os.chmod(part, 0o755)  # mkdtemp's folder is private, the cache may be shared
            if folder.is_symlink():  # an alias, left behind by a deleted folder
                folder.unlink()
            os.replace(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        # A run's folder asks for the same with its tokenizer and labels given.
        alias = self.cache_dir / self._key(load_tokenizer(folder).to_str(), labels)
        with suppress(FileExistsError):
            alias.symlink_to(folder.name)

    def prepare_data(self) -> None:
        self.folder  # noqa: B018

    def setup(self, stage: str | None = None) -> None:
        self.splits  # noqa: B018
        if not self._logged:
            self._logged = True
            self._log_statistics()

    @rank_zero_only
    def _log_statistics(self) -> None:
        statistics, counts = self.statistics, self.statistics["examples"]
        cut = sum(statistics["cut"].values())
        log.info(
            f"data: {', '.join(f'{name} {counts[name]:,}' for name in SPLITS)} texts "
            f"({statistics['dropped']:,} repeated ones dropped), {len(self.labels)} classes, "
            f"vocabulary {self.vocab_size:,}, {statistics['unknown_share']['test']:.2%} of test tokens unknown, "
            f"{cut:,} texts cut at {self.max_length} tokens"
        )

    def save_assets(self, folder: Path) -> None:
        """Copy into a run's folder what prediction needs of the data: tokenizer.json and labels.json."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "labels.json"):
            shutil.copyfile(self.folder / name, folder / name)

    def facts(self) -> dict[str, Any]:
        """For a run's record: the source, size and content of each split, and how many texts were dropped or cut."""
        return {
            "source": f"{type(self.source).__module__}.{type(self.source).__qualname__}",
            "splits": {
                name: {"examples": len(rows), "sha256": rows.sha256(self.labels)} for name, rows in self.splits.items()
            },
            "classes": len(self.labels),
            "vocabulary": self.vocab_size,
            "repeated_texts_dropped": self.statistics["dropped"],
            "texts_cut": sum(self.statistics["cut"].values()),
        }

    def train_dataloader(self) -> TokenBudgetLoader:
        overfit = self.trainer is not None and self.trainer.overfit_batches > 0  # type: ignore[attr-defined]
        return self._loader("train", SequentialTokenBudgetSampler if overfit else TokenBudgetSampler)

    def val_dataloader(self) -> TokenBudgetLoader:
        return self._loader("val", SequentialTokenBudgetSampler)

    def test_dataloader(self) -> TokenBudgetLoader:
        return self._loader("test", SequentialTokenBudgetSampler)

    def _loader(self, name: str, sampler_class: type[TokenBudgetSampler]) -> TokenBudgetLoader:
        dataset = self.splits[name]
        sampler = sampler_class(dataset.lengths, self.tokens_per_batch, self.seed, **processes(self.trainer))
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        return make_loader(dataset, sampler, self.num_workers, pin_memory=on_gpu)


def number_labels(
    tables: "dict[str, pd.DataFrame]", given: Sequence[str] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Class names in order, and by split each row's class number, int32.

    Raises:
        UserError: a label is not among the given ones, or is in val or test but not in train.
    """
    present = {name: set(table["label"]) for name, table in tables.items()}
    values = set[str]().union(*present.values())
    labels = list(given) if given else sorted(present["train"], key=_natural)
    if len(set(labels)) < len(labels):
        raise UserError(f"labels names {next(name for name in labels if labels.count(name) > 1)!r} twice")
    by_place = given and values.isdisjoint(labels) and all(_natural(value)[0] == 0 for value in values)
    numbers = {str(i) if by_place else name: i for i, name in enumerate(labels)}
    for name, table in tables.items():
        for bad in sorted(present[name] - (numbers.keys() & present["train"]), key=_natural):
            row, where = table.index[table["label"] == bad][0], table.attrs["where"]
            if bad not in numbers and given:
                raise UserError(
                    f"{where}: row {row} has the unknown label {bad!r}; known are {some(list(numbers), 10)}"
                )
            raise UserError(f"{where}: row {row} ({name}) has the label {bad!r}, which training does not have")
    return labels, {name: table["label"].map(numbers).to_numpy(np.int32) for name, table in tables.items()}


def _natural(label: str) -> tuple[int, int, str]:
    """Integers by value, before words."""
    return (0, int(label), "") if label.removeprefix("-").isdecimal() else (1, 0, label)
