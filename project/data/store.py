"""Encoded texts as flat, memory-mapped arrays; a batch is cut out of them without a loop over examples."""

import hashlib
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from project.data.batching import SequentialTokenBudgetSampler
from project.data.tokenizer import PAD, unknown_id

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

CHUNK = 16_384  # texts encoded at a time; bounds the memory of the library's verbose encodings


def encode(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> tuple[Int32, Int64, int]:
    """Token ids of all texts end to end, where each begins (one more than texts), and how many were cut.

    A text is cut to `max_length` tokens, special ones included; one without tokens becomes a single unknown token.
    `tokenizer` keeps `max_length` as its own, also when it is saved.
    """
    tokenizer.enable_truncation(max_length)
    values, lengths, cut = [np.empty(0, np.int32)], [0], 0
    for start in range(0, len(texts), CHUNK):
        encodings = tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]))
        ids = [encoding.ids or [unknown_id(tokenizer)] for encoding in encodings]
        cut += sum(bool(encoding.overflowing) for encoding in encodings)
        lengths += map(len, ids)
        values.append(np.fromiter(chain.from_iterable(ids), np.int32))
    return np.concatenate(values), np.cumsum(lengths, dtype=np.int64), cut


def write(file: Path, values: Int32, offsets: Int64, labels: Int32, texts: Sequence[str]) -> None:
    """An Arrow file of one record batch with the columns `tokens` (a list a row), `label` and `text`."""
    columns = {
        "tokens": pa.LargeListArray.from_arrays(offsets, values),
        "label": labels,
        "text": pa.array(texts, pa.large_string()),
    }
    batch = pa.record_batch(columns)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


class TokenDataset(Dataset[dict[str, Tensor]]):
    """Rows of token ids; indexed with a list of rows, it gives the padded batch.

    Args:
        values: token ids of all rows end to end.
        offsets: where each row begins; one more than rows.
        labels: class of each row; none for prediction.
        texts: of each row.
    """

    def __init__(self, values: Int32, offsets: Int64, labels: Int32 | None = None, texts: Any = ()) -> None:
        self.values, self.offsets, self.labels = values, offsets, labels
        self.lengths: Int64 = np.diff(offsets)
        self._texts = texts
        self._file: Path | None = None

    @classmethod
    def open(cls, file: Path) -> "TokenDataset":
        """Map a file that `write` made; nothing is read before it is asked for."""
        batch = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
        tokens = batch["tokens"]
        # Buffers, since pyarrow's own `to_numpy` imports pandas.
        values = np.frombuffer(tokens.values.buffers()[1], np.int32, len(tokens.values))
        offsets = np.frombuffer(tokens.buffers()[1], np.int64, len(tokens) + 1)
        labels = np.frombuffer(batch["label"].buffers()[1], np.int32, len(tokens))
        dataset = cls(values, offsets, labels, batch["text"])
        dataset._file = file
        return dataset

    def __reduce__(self) -> Any:  # a spawned worker maps the file again, instead of getting a copy
        return super().__reduce__() if self._file is None else (TokenDataset.open, (self._file,))

    @property
    def texts(self) -> list[str]:
        """The texts before encoding."""
        return self._texts.to_pylist() if isinstance(self._texts, pa.Array) else list(self._texts)

    def sha256(self, names: Sequence[str]) -> str:
        """Hash of the texts and of their labels, which `names` stand for: the same however texts are encoded."""
        digest = hashlib.sha256(json.dumps(list(names)).encode())
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        texts = self._texts if isinstance(self._texts, pa.Array) else pa.array(self._texts, pa.large_string())
        _, offsets, characters = texts.buffers()
        offsets = np.frombuffer(offsets, np.int64, len(texts) + 1)
        digest.update(offsets.tobytes())
        digest.update(np.frombuffer(characters or b"", np.uint8, offsets[-1]).tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: int | Sequence[int]) -> dict[str, Tensor]:
        """`tokens` (B, T) int64, `padding_mask` (B, T) bool, `ids` (B,) int64, `labels` (B,) int64 if there are any."""
        index = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        lengths = self.lengths[index]
        positions = np.arange(lengths.max())
        mask = positions < lengths[:, None]
        # Padding points at the row's first token, so that no index leaves the array.
        tokens = np.where(mask, self.values[self.offsets[index, None] + positions * mask], PAD)
        batch = {
            "tokens": torch.from_numpy(tokens.astype(np.int64)),
            "padding_mask": torch.from_numpy(mask),
            "ids": torch.from_numpy(index),
        }
        if self.labels is not None:
            batch["labels"] = torch.from_numpy(self.labels[index].astype(np.int64))
        return batch


def encode_batches(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, tokens_per_batch: int
) -> list[dict[str, Tensor]]:
    """Batches for prediction, grouped by length; `ids` tell each row's place in `texts`."""
    if not texts:
        return []
    values, offsets, _ = encode(texts, tokenizer, max_length)
    dataset = TokenDataset(values, offsets)
    budget = max(tokens_per_batch, int(dataset.lengths.max()))
    return [dataset[rows] for rows in SequentialTokenBudgetSampler(dataset.lengths, budget)]
