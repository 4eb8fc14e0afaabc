"""Handwritten digits as sequences of image rows: data without tokens, through the same encoder.

The 1,797 images of 8 x 8 pixels are those that come with scikit-learn: the test set of the UCI set "Optical Recognition
of Handwritten Digits" (Alpaydin and Kaynak, 1998).
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import Dataset

from project.data.batching import (
    SequentialTokenBudgetSampler,
    TokenBudgetLoader,
    TokenBudgetSampler,
    make_loader,
    processes,
)
from project.data.splits import evenly
from project.errors import UserError


class DigitsDataset(Dataset[dict[str, Tensor]]):
    """Images (N, 8, 8) and digits (N,); indexed with a list of rows, it gives the batch, which needs no padding."""

    def __init__(self, images: Tensor, digits: Tensor) -> None:
        self.images, self.digits = images, digits

    def __len__(self) -> int:
        return len(self.digits)

    def sha256(self) -> str:
        """Hash of the images and their digits."""
        return hashlib.sha256(self.images.numpy().tobytes() + self.digits.numpy().tobytes()).hexdigest()

    def __getitem__(self, rows: int | Sequence[int]) -> dict[str, Tensor]:
        ids = torch.as_tensor(rows).reshape(-1)
        tokens = self.images[ids]
        return {
            "tokens": tokens,
            "padding_mask": torch.ones(tokens.shape[:2], dtype=torch.bool),
            "ids": ids,
            "labels": self.digits[ids],
        }


class DigitsData(LightningDataModule):
    """Batches of `tokens` (B, 8, 8) float32 between -1 and 1, padding mask, labels and row ids.

    A tenth of each digit's images is for validation, a fifth for the test.

    Args:
        batch_size: images in a batch.
        seed: of the order of training.
        split_seed: of the split; leave it while comparing runs.
        num_workers: processes that build batches.
    """

    num_features = 8

    def __init__(self, batch_size: int = 64, seed: int = 0, split_seed: int = 0, num_workers: int = 0) -> None:
        super().__init__()
        self.batch_size, self.seed, self.split_seed, self.num_workers = batch_size, seed, split_seed, num_workers
        self.labels = [str(digit) for digit in range(10)]

    @cached_property
    def splits(self) -> dict[str, DigitsDataset]:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise UserError("the digits need the package scikit-learn: pip install -e '.[demo]'") from error
        pixels, digits = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels.reshape(-1, 8, 8) / 8 - 1).float()
        return {
            name: DigitsDataset(images[rows], torch.from_numpy(digits[rows]))
            for name, rows in split_rows(digits, self.split_seed).items()
        }

    def setup(self, stage: str | None = None) -> None:
        self.splits  # noqa: B018

    def save_assets(self, folder: Path) -> None:
        """Write the class names into a run's folder."""
        (folder / "labels.json").write_text(json.dumps(self.labels), encoding="utf-8")

    def facts(self) -> dict[str, Any]:
        """For a run's record: the source, and size and content of each split."""
        return {
            "source": "sklearn.datasets.load_digits",
            "splits": {name: {"examples": len(rows), "sha256": rows.sha256()} for name, rows in self.splits.items()},
            "classes": len(self.labels),
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
        lengths = np.full(len(dataset), 8)
        sampler = sampler_class(lengths, 8 * self.batch_size, self.seed, **processes(self.trainer))
        return make_loader(dataset, sampler, self.num_workers)


def split_rows(digits: npt.NDArray[np.int64], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Rows of each split: of each digit's images, in random order, three in ten are spread evenly over val and test."""
    order = np.lexsort((np.random.default_rng(seed).random(len(digits)), digits))
    held_out = evenly(len(order), round(0.3 * len(order)))
    rows = order[held_out]
    val = evenly(len(rows), len(rows) // 3)
    return {"train": np.sort(order[~held_out]), "val": np.sort(rows[val]), "test": np.sort(rows[~val])}
