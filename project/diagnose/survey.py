"""One pass over the splits: what the data checks count."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from project.diagnose.batches import (
    Padding,
    batch_size,
    find_labels,
    inputs,
    is_integer,
    sequences,
    tensors,
    token_ids,
)
from project.tasks.masking import scramble

SECONDS = 3.0  # at most, for each split


@dataclass
class Split:
    """What was seen of a split in the time given."""

    examples: int = 0
    places: int = 0  # tokens, padding included
    real: int = 0  # tokens without padding
    unknown: int = 0
    batches: int = 0
    seconds: float = 0.0  # of the loader alone
    whole: bool = True
    labels: dict[int, int] = field(default_factory=dict)  # examples of each class
    mixed: list[int] = field(default_factory=list)  # classes in each batch of two examples and more
    hashes: set[int] = field(default_factory=set)


def survey(batches: Any, padding: Padding, unknown_id: int | None) -> Split:
    """Count what batches hold, for at most `SECONDS`."""
    split, begin = Split(), time.perf_counter()
    iterator = iter(batches)
    while True:
        start = time.perf_counter()
        if start - begin > SECONDS:
            split.whole = False
            return split
        batch = next(iterator, None)
        split.seconds += time.perf_counter() - start
        if batch is None:
            return split
        _count(split, batch, padding, unknown_id)


def _count(split: Split, batch: Any, padding: Padding, unknown_id: int | None) -> None:
    size, lengths_B = batch_size(batch), padding.lengths(batch)
    split.batches += 1
    split.examples += size
    sequence = next(iter(sequences(batch).values()), None)
    if sequence is not None:
        split.places += size * sequence.size(1)
        split.real += size * sequence.size(1) if lengths_B is None else int(lengths_B.sum())
    if unknown_id is not None:
        split.unknown += sum(int((tokens == unknown_id).sum()) for tokens in token_ids(batch).values())
    labels = class_labels(batch)
    if labels is not None:
        values, counts = labels.unique(return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            split.labels[value] = split.labels.get(value, 0) + count
        if size > 1:
            split.mixed.append(len(values))
    hash_B = hash_rows(batch, lengths_B)
    if lengths_B is not None:
        hash_B = hash_B[lengths_B > 1]  # empty texts are all alike, and repeat nothing
    split.hashes.update(hash_B.tolist())


def class_labels(batch: Any) -> Tensor | None:
    """Labels (B,) where they are classes: integers, or floats that are all 0 or 1."""
    path = find_labels(batch)
    labels = None if path is None else tensors(batch)[path]
    if labels is None or labels.squeeze().ndim > 1 or labels.numel() != batch_size(batch):
        return None
    labels = labels.reshape(-1)
    if is_integer(labels) or labels.dtype == torch.bool or bool(((labels == 0) | (labels == 1)).all()):
        return labels.long()
    return None


def hash_rows(batch: Any, lengths_B: Tensor | None) -> Tensor:
    """A number of 64 bits for each example's input, (B,), that does not depend on how far its batch was padded."""
    parts, padded = inputs(batch), sequences(batch)
    if any(tensor.ndim > 1 for tensor in parts.values()):
        parts = {path: tensor for path, tensor in parts.items() if tensor.ndim > 1}
    hash_B = torch.zeros(batch_size(batch), dtype=torch.int64)
    for path, tensor in parts.items():
        bits = tensor.float().view(torch.int32) if tensor.is_floating_point() else tensor
        bits = bits.long().flatten(2) if bits.ndim > 2 else bits.long().reshape(len(bits), -1, 1)
        mixed_BTN = scramble(bits ^ scramble(torch.arange(bits[0].numel()).view(bits.shape[1:])))
        if path in padded and lengths_B is not None:
            mixed_BTN = mixed_BTN * (torch.arange(bits.size(1)) < lengths_B[:, None])[..., None]
        hash_B = scramble(hash_B) + mixed_BTN.sum((1, 2))
    return hash_B
