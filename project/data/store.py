"""Encoded texts as flat, memory-mapped arrays; a batch is cut out of them without a loop over examples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from project.data.batching import batch_indices
from project.data.tokenizer import PAD, UNK

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def encode(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> tuple[Int32, Int64, int]:
    """Token ids of all texts end to end, where each begins (one more than texts), and how many were cut.

    A text is cut after `max_length` tokens; an empty one becomes a single unknown token.
    """
    ids = [encoding.ids or [UNK] for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    cut = sum(len(i) > max_length for i in ids)
    ids = [i[:max_length] for i in ids]
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    return np.fromiter((i for row in ids for i in row), np.int32, offsets[-1]), offsets, cut


def write(file: Path, values: Int32, offsets: Int64, labels: Int32) -> None:
    """An Arrow file of two columns: `tokens` (a list a row) and `label`."""
    table = pa.table({"tokens": pa.ListArray.from_arrays(offsets.astype(np.int32), values), "label": labels})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


class TokenDataset(Dataset[dict[str, Tensor]]):
    """Rows of token ids; indexed with a list of rows, it gives the padded batch.

    Args:
        values: token ids of all rows end to end.
        offsets: where each row begins; one more than rows.
        labels: class of each row.
    """

    def __init__(self, values: Int32, offsets: Int64, labels: Int32) -> None:
        self.values, self.offsets, self.labels = values, offsets, labels
        self.lengths: Int64 = np.diff(offsets)

    @classmethod
    def open(cls, file: Path) -> "TokenDataset":
        """Map a file that `write` made; nothing is read before it is asked for."""
        batch = pa.ipc.open_file(pa.memory_map(str(file))).read_all().combine_chunks()
        tokens = batch["tokens"].chunk(0)
        return cls(
            tokens.values.to_numpy(), tokens.offsets.to_numpy().astype(np.int64), batch["label"].chunk(0).to_numpy()
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """`tokens` (B, T) int64, `padding_mask` (B, T) bool, `labels` (B,) int64, `ids` (B,) int64."""
        index = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[index]
        positions = np.arange(lengths.max())
        mask = positions < lengths[:, None]
        # Padding points at the row's first token, so that no index leaves the array.
        tokens = np.where(mask, self.values[self.offsets[index, None] + positions * mask], PAD)
        return {
            "tokens": torch.from_numpy(tokens.astype(np.int64)),
            "padding_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(self.labels[index].astype(np.int64)),
            "ids": torch.from_numpy(index),
        }


def encode_batches(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, tokens_per_batch: int
) -> list[dict[str, Tensor]]:
    """Batches for prediction, grouped by length; `ids` tell each row's place in `texts`."""
    values, offsets, _ = encode(texts, tokenizer, max_length)
    dataset = TokenDataset(values, offsets, np.zeros(len(texts), np.int32))
    return [dataset[rows] for rows in batch_indices(dataset.lengths, tokens_per_batch)]
