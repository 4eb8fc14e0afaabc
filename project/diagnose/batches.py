"""Batches of any structure: their tensors by name, their rows, their labels and their padding.

Nothing is asked of a batch but tensors whose first dimension is the example, nested in dictionaries, tuples, lists and
dataclasses. What a tensor means is told by its name where it has one, and by its values.
"""

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Leaf = Callable[[str, Any], Any]

LABELS = {"label", "labels", "target", "targets", "y"}
IDS = {"id", "ids", "idx", "index", "indices"}


def map_leaves(function: Leaf, batch: Any, path: str = "") -> Any:
    """The same structure with each leaf replaced by `function(path, leaf)`. A list of plain values is one leaf."""

    def below(key: Any, value: Any) -> Any:
        return map_leaves(function, value, f"{path}.{key}" if path else str(key))

    if isinstance(batch, Mapping):
        result: Any = copy.copy(batch)  # keeps the class, such as that of transformers' encodings
        for key, value in batch.items():
            result[key] = below(key, value)
        return result
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(below(*item) for item in zip(batch._fields, batch, strict=True)))
    if isinstance(batch, tuple | list) and not _plain(batch):
        return type(batch)(below(*item) for item in enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = {f.name: below(f.name, getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **changed)
    return function(path, batch)


def _plain(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | int | float) for value in values)


def tensors(batch: Any) -> dict[str, Tensor]:
    """All tensors of a batch by path, such as `tokens`, or `0` for the first of a tuple."""
    found: dict[str, Tensor] = {}

    def keep(path: str, leaf: Any) -> None:
        if isinstance(leaf, Tensor):
            found[path] = leaf

    map_leaves(keep, batch)
    return found


def batch_size(batch: Any) -> int:
    """Number of examples: the size that most tensors begin with; 0 if there is no tensor."""
    sizes = Counter(tensor.size(0) for tensor in tensors(batch).values() if tensor.ndim > 0)
    return sizes.most_common(1)[0][0] if sizes else 0


def take(batch: Any, rows: Sequence[int] | Tensor) -> Any:
    """These examples of a batch, in this order; what has no example dimension stays."""
    size, index = batch_size(batch), torch.as_tensor(rows)

    def select(path: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.size(0) == size:
            return leaf[index.to(leaf.device)]
        if isinstance(leaf, list | tuple) and len(leaf) == size:
            return type(leaf)(leaf[i] for i in index.tolist())
        return leaf

    return map_leaves(select, batch)


def replace(batch: Any, path: str, value: Tensor) -> Any:
    """The batch with another tensor at a path."""
    return map_leaves(lambda at, leaf: value if at == path else leaf, batch)


def same(first: Any, second: Any) -> str | None:
    """Path of the first leaf that differs; None if the two batches are equal."""
    leaves: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for found, batch in zip(leaves, (first, second), strict=True):
        map_leaves(found.__setitem__, batch)
    if leaves[0].keys() != leaves[1].keys():
        return "structure"
    for path, leaf in leaves[0].items():
        other = leaves[1][path]
        if isinstance(leaf, Tensor):
            if leaf.shape != other.shape or not torch.equal(leaf.nan_to_num(), other.nan_to_num()):
                return path or "batch"
        elif isinstance(leaf, str | int | float | list | tuple) and leaf != other:
            return path or "batch"
    return None


def name_of(path: str) -> str:
    return path.rpartition(".")[2].lower()


def find_labels(batch: Any) -> str | None:
    """Path of the labels: by name; of a tuple without names, the last tensor beside others."""
    found = tensors(batch)
    named = [path for path in found if name_of(path) in LABELS]
    if named:
        return named[0]
    unnamed = [path for path, tensor in found.items() if path.isdecimal() and tensor.ndim > 0]
    return unnamed[-1] if len(unnamed) > 1 else None


def inputs(batch: Any) -> dict[str, Tensor]:
    """What the model sees of an example: everything but labels and row numbers."""
    labels, size = find_labels(batch), batch_size(batch)
    return {
        path: tensor
        for path, tensor in tensors(batch).items()
        if tensor.ndim > 0 and tensor.size(0) == size and path != labels and name_of(path) not in IDS
    }


class Padding:
    """Where the padding of batches is, which must stand at the end of rows.

    Known from a mask, from lengths, or from a token id that occurs at the end of rows alone. The batches given are
    looked through once; `source` tells how their padding is known, and is empty where none is.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self.source = ""
        self.value: int | None = None
        by_mask = [lengths for batch in batches if (lengths := mask_lengths(batch)) is not None]
        if by_mask and any(mask_shows_padding(batch) for batch in batches):
            self.source = "mask"
        elif any(stated_lengths(batch) is not None for batch in batches):
            self.source = "lengths"
        else:
            self._find_value(batches)
            self.source = self.source or ("mask" if by_mask else "")

    def _find_value(self, batches: Sequence[Any]) -> None:
        rows: dict[str, list[Tensor]] = {}
        for batch in batches:
            for path, tokens_BT in token_ids(batch).items():
                rows.setdefault(path, []).append(tokens_BT)
        for path, parts in rows.items():
            last = torch.cat([tokens_BT[:, -1] for tokens_BT in parts])
            value = int(last.mode().values)
            runs = [trailing(tokens_BT, value) for tokens_BT in parts]
            counts = [(tokens_BT == value).sum(1) for tokens_BT in parts]
            lengths = torch.cat(runs)
            only_at_the_end = all(torch.equal(run, count) for run, count in zip(runs, counts, strict=True))
            if only_at_the_end and lengths.max() > 2 and lengths.unique().numel() > 2:
                self.source, self.value, self.path = "token id", value, path
                return

    def lengths(self, batch: Any) -> Tensor | None:
        """Real tokens of each row, (B,)."""
        if self.source == "mask":
            return mask_lengths(batch)
        if self.source == "lengths":
            return stated_lengths(batch)
        if self.source == "token id" and self.value is not None:
            tokens_BT = tensors(batch)[self.path]
            return tokens_BT.size(1) - trailing(tokens_BT, self.value)
        return None


def trailing(tokens_BT: Tensor, value: int) -> Tensor:
    """How many times each row ends in the value, (B,)."""
    return (tokens_BT == value).flip(1).int().cumprod(1).sum(1)


def token_ids(batch: Any) -> dict[str, Tensor]:
    """Integer tensors (B, T), T above 1, that may be token ids."""
    return {
        path: tensor
        for path, tensor in inputs(batch).items()
        if tensor.ndim == 2 and tensor.size(1) > 1 and is_integer(tensor) and "mask" not in name_of(path)
    }


def is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _masks(batch: Any) -> Iterator[tuple[str, Tensor]]:
    for path, tensor in inputs(batch).items():
        if tensor.ndim == 2 and tensor.size(1) > 0 and (tensor.dtype == torch.bool or "mask" in name_of(path)):
            yield path, tensor


def mask_lengths(batch: Any) -> Tensor | None:
    """Real tokens of each row by a mask of either polarity: a first token is always real."""
    for _, mask in _masks(batch):
        real_BT = mask == mask[:, 0].mode().values
        lengths_B = real_BT.sum(1)
        if torch.equal(real_BT, torch.arange(mask.size(1), device=mask.device) < lengths_B[:, None]):
            return lengths_B
    return None


def mask_shows_padding(batch: Any) -> bool:
    lengths_B = mask_lengths(batch)
    return lengths_B is not None and bool(
        (lengths_B < lengths_B.max()).any() or any((lengths_B < mask.size(1)).any() for _, mask in _masks(batch))
    )


def stated_lengths(batch: Any) -> Tensor | None:
    for path, tensor in inputs(batch).items():
        if "len" in name_of(path) and tensor.ndim == 1 and is_integer(tensor):
            return tensor
    return None


def sequences(batch: Any) -> dict[str, Tensor]:
    """Tensors (B, T, ...) of the batch that share T with the token ids or the mask."""
    marks = [*token_ids(batch).values(), *(mask for _, mask in _masks(batch))]
    if not marks:
        marks = [tensor for tensor in inputs(batch).values() if tensor.ndim == 3]
    if not marks:
        return {}
    size, length = batch_size(batch), marks[0].size(1)
    return {path: t for path, t in tensors(batch).items() if t.ndim > 1 and t.shape[:2] == (size, length)}


def cut(batch: Any, length: int) -> Any:
    """The first `length` tokens of every sequence of a batch."""
    cut_paths = sequences(batch).keys()
    return map_leaves(lambda path, leaf: leaf[:, :length] if path in cut_paths else leaf, batch)
