"""Inputs and outputs of an artifact, and the check that its inputs get before every call.

The check is ours because not every format has one: a compiled package gives wrong numbers for a wrong type, and ends
the process for an id outside the vocabulary or a sequence that is too long.
"""

from dataclasses import asdict, dataclass
from typing import Any

from project.export.artifacts import Array


@dataclass(frozen=True)
class Input:
    """One input.

    Attributes:
        name: as in a batch.
        dtype: as numpy calls it.
        shape: a name for each dimension that varies, a number for a fixed one.
        num_ids: ids lie below, where it holds ids.
    """

    name: str
    dtype: str
    shape: list[str | int]
    num_ids: int | None = None


@dataclass(frozen=True)
class Interface:
    """What goes in and what comes out, in order.

    Attributes:
        inputs: in the order of the network's arguments.
        outputs: names.
        max_sizes: the largest size of a dimension, where there is one.
    """

    inputs: list[Input]
    outputs: list[str]
    max_sizes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Interface":
        return cls([Input(**i) for i in content["inputs"]], content["outputs"], content["max_sizes"])

    def check(self, arrays: list[Array]) -> None:
        """Raise ValueError for what the network is not made for: type, rank, sizes, ids."""
        if len(arrays) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} inputs wanted, got {len(arrays)}")
        sizes: dict[str, int] = {}
        for wanted, array in zip(self.inputs, arrays, strict=True):
            name = wanted.name
            if array.dtype.name != wanted.dtype:
                raise ValueError(f"{name} must be {wanted.dtype}, got {array.dtype.name}")
            if array.ndim != len(wanted.shape):
                raise ValueError(f"{name} must have {len(wanted.shape)} dimensions, got {array.ndim}")
            for dimension, size in zip(wanted.shape, array.shape, strict=True):
                allowed = sizes.setdefault(dimension, size) if isinstance(dimension, str) else dimension
                most = self.max_sizes.get(str(dimension), size)
                if size != allowed or not 1 <= size <= most:
                    bound = f"at most {most}" if size > most else f"{max(allowed, 1)}"
                    raise ValueError(f"{name}: dimension {dimension} must be {bound}, got {size}")
            if wanted.num_ids is not None and not (array.min() >= 0 and array.max() < wanted.num_ids):
                raise ValueError(f"{name} must lie in [0, {wanted.num_ids}), got {array.min()} to {array.max()}")
