"""Labelled texts as a LightningDataModule: source, split, tokenizer, encoded once, batched by length."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from tokenizers import Tokenizer

from project.data.batching import TokenBudgetLoader, TokenBudgetSampler
from project.data.sources import SPLITS, Source
from project.data.splits import deduplicate, split
from project.data.store import TokenDataset, encode, write
from project.data.tokenizer import UNK, load_tokenizer, train_tokenizer
from project.errors import UserError

log = logging.getLogger("project")

FORMAT = 1  # of the cache; a new number when the code would write something else


class TextClassificationData(LightningDataModule):
    """Batches of tokens, padding mask, labels and row ids.

    Everything is prepared once for a content and a configuration, and kept in `cache_dir`; `setup` only opens files.

    Args:
        source: where the labelled texts come from.
        tokenizer: a tokenizer.json or a run's folder; default: one trained on the training split.
        labels: class names in order; default: those of the training split, sorted.
        vocab_size: of a tokenizer that is trained here.
        max_length: tokens after which a text is cut.
        tokens_per_batch: upper bound of rows x longest row in a batch.
        val_share: of the rows, for validation, where the source is not split already.
        test_share: of the rows, for the test.
        seed: of the split and of the order of training.
        num_workers: processes that build batches; 0 builds them in the training process, which is fast enough for text.
        cache_dir: folder of prepared data.
    """

    def __init__(
        self,
        source: Source,
        tokenizer: str | None = None,
        labels: list[str] | None = None,
        vocab_size: int = 16_000,
        max_length: int = 128,
        tokens_per_batch: int = 4096,
        val_share: float = 0.1,
        test_share: float = 0.1,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str = ".cache",
    ) -> None:
        super().__init__()
        if not (0 < val_share and 0 < test_share and val_share + test_share < 1):
            raise UserError(f"val_share {val_share} and test_share {test_share} must be positive and sum to less than 1")
        if tokens_per_batch < max_length:
            raise UserError(f"tokens_per_batch {tokens_per_batch} cannot hold one text of max_length {max_length}")
        self.source = source
        self.max_length, self.tokens_per_batch = max_length, tokens_per_batch
        self.shares, self.seed, self.num_workers = (val_share, test_share), seed, num_workers
        self._given_tokenizer = load_tokenizer(tokenizer) if tokenizer else None
        self._given_labels = labels
        self._vocab_size = vocab_size
        self.cache_dir = Path(cache_dir)

    @cached_property
    def folder(self) -> Path:
        """The prepared data, made now where it is not in the cache."""
        tokenizer = self._given_tokenizer.to_str() if self._given_tokenizer else self._vocab_size
        key = [FORMAT, self.source.fingerprint(), tokenizer, self._given_labels, self.max_length, self.shares, self.seed]
        folder = self.cache_dir / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        if not folder.is_dir():
            self._prepare(folder)
        return folder

    @cached_property
    def labels(self) -> list[str]:
        """Class names; a label's number is its place."""
        labels: list[str] = json.loads((self.folder / "labels.json").read_text())
        return labels

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @property
    def vocab_size(self) -> int:
        size: int = self.tokenizer.get_vocab_size()
        return size

    @property
    def class_counts(self) -> list[int]:
        """Training rows of each class."""
        counts: list[int] = json.loads((self.folder / "statistics.json").read_text())["class_counts"]
        return counts

    def texts(self) -> dict[str, tuple[list[str], list[str]]]:
        """Texts and label names by split, as they are before encoding."""
        tables = deduplicate(self.source.read())
        if set(tables) == {"train"}:
            tables = split(tables["train"], self.shares, self.seed)
        missing = [name for name in SPLITS if name not in tables]
        if missing:
            raise UserError(f"the data has no {' and no '.join(missing)} split; give all three, or train alone")
        return {name: (tables[name]["text"].tolist(), tables[name]["label"].tolist()) for name in SPLITS}

    def _prepare(self, folder: Path) -> None:
        """Write everything beside its place and move it there whole: two processes may do so at once."""
        splits = self.texts()
        labels = self._given_labels or sorted(set(splits["train"][1]), key=_natural)
        numbers = {label: i for i, label in enumerate(labels)}
        for name, (_, split_labels) in splits.items():
            for row, label in enumerate(split_labels):
                if label not in numbers:
                    raise UserError(f"{name} row {row + 1} has the label {label!r}, which training does not have")
        tokenizer = self._given_tokenizer or train_tokenizer(splits["train"][0], self._vocab_size)
        try:
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=self.cache_dir, prefix="partial-"))
        except OSError as error:
            raise UserError(f"cannot write the data cache {self.cache_dir}: {error.strerror}; see cache_dir") from error
        try:
            statistics: dict[str, Any] = {"examples": {}, "cut": 0}
            tokens = unknown = 0
            for name, (texts, split_labels) in splits.items():
                values, offsets, cut = encode(texts, tokenizer, self.max_length)
                classes = np.array([numbers[label] for label in split_labels], np.int32)
                write(part / f"{name}.arrow", values, offsets, classes)
                statistics["examples"][name] = len(texts)
                statistics["cut"] += cut
                tokens, unknown = tokens + len(values), unknown + int((values == UNK).sum())
                if name == "train":
                    statistics["class_counts"] = np.bincount(classes, minlength=len(labels)).tolist()
            statistics |= {"classes": len(labels), "vocabulary": tokenizer.get_vocab_size()}
            statistics |= {"tokens": tokens, "unknown_share": unknown / tokens}
            (part / "statistics.json").write_text(json.dumps(statistics))
            (part / "labels.json").write_text(json.dumps(labels))
            tokenizer.save(str(part / "tokenizer.json"))
            os.rename(part, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def prepare_data(self) -> None:
        self._log_statistics()

    @rank_zero_only
    def _log_statistics(self) -> None:
        statistics = json.loads((self.folder / "statistics.json").read_text())
        examples = ", ".join(f"{name} {count:,}" for name, count in statistics["examples"].items())
        log.info(
            f"data: {examples} texts, {statistics['classes']} classes, vocabulary {statistics['vocabulary']:,}, "
            f"{statistics['unknown_share']:.2%} of tokens unknown, "
            f"{statistics['cut']} texts cut at {self.max_length} tokens"
        )

    def setup(self, stage: str | None = None) -> None:
        self.splits = {name: TokenDataset.open(self.folder / f"{name}.arrow") for name in SPLITS}

    def save_assets(self, folder: Path) -> None:
        """Copy into a run's folder what prediction needs of the data: tokenizer.json and labels.json."""
        for name in ("tokenizer.json", "labels.json"):
            shutil.copy(self.folder / name, folder / name)

    def _loader(self, name: str) -> TokenBudgetLoader:
        dataset = self.splits[name]
        several = self.num_workers > 0
        return TokenBudgetLoader(
            dataset,
            batch_size=None,
            sampler=TokenBudgetSampler(dataset.lengths, self.tokens_per_batch, shuffle=name == "train", seed=self.seed),
            num_workers=self.num_workers,
            persistent_workers=several,
            prefetch_factor=4 if several else None,
            pin_memory=torch.accelerator.is_available(),
        )

    def train_dataloader(self) -> TokenBudgetLoader:
        return self._loader("train")

    def val_dataloader(self) -> TokenBudgetLoader:
        return self._loader("val")

    def test_dataloader(self) -> TokenBudgetLoader:
        return self._loader("test")


def _natural(label: str) -> tuple[int, int, str]:
    """Integers by value, before words."""
    return (0, int(label), "") if label.lstrip("-").isdigit() else (1, 0, label)
