"""What can be exported, by name."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from project.errors import UserError, first_line

Array = npt.NDArray[Any]


class ArtifactError(Exception):
    """An artifact cannot be made, or does not do what it should. The message is one line."""


@dataclass(frozen=True)
class Contents:
    """What a file says of itself; None for what its format does not tell.

    Attributes:
        weights: digests of the tensors in it.
        random: operators of its graph that draw random numbers, such as dropout.
        shapes: of each input in order, a symbol for each dimension that varies.
    """

    weights: set[str] | None
    random: list[str] | None
    shapes: list[list[str | int]] | None


class Reader(Protocol):
    """An artifact loaded from its file."""

    def run(self, inputs: list[Array]) -> list[Array]:
        """Outputs of inputs, both in the interface's order."""

    def contents(self) -> Contents: ...


@dataclass(frozen=True)
class Artifact:
    """One file of the bundle.

    Attributes:
        file: its name.
        module: writes it with `write(source, path)` or, in int8, `write_int8(source, path)`; reads it with
            `read(path, threads)`; says with `unsupported()` why it cannot be made on this machine.
        int8: whether weights are quantized.
        method: how it is made, as the manifest says it.
        packages: what must be installed to make it.
    """

    file: str
    module: str
    int8: bool
    method: str
    packages: tuple[str, ...] = ()

    def load(self) -> ModuleType:
        return import_module(f"project.export.{self.module}")

    def read(self, path: Path, threads: int) -> Reader:
        reader: Reader = self.load().read(path, threads)
        return reader


ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
ARTIFACTS = {
    "torchscript": Artifact("model.pt", "torchscript", False, "torch.jit.script, frozen"),
    "torchscript-int8": Artifact(
        "model-int8.pt", "torchscript", True, "torch.ao.quantization.quantize_dynamic, scripted and frozen"
    ),
    "onnx": Artifact("model.onnx", "onnx", False, "torch.onnx.export of the torch.export program", ONNX_PACKAGES),
    "onnx-int8": Artifact(
        "model-int8.onnx", "onnx", True, "onnxruntime.quantization.quantize_dynamic of model.onnx", ONNX_PACKAGES
    ),
    "pt2": Artifact("model.pt2", "pt2", False, "torch.export"),
    "pt2-int8": Artifact("model-int8.pt2", "pt2", True, "torchao quantize_, then torch.export", ("torchao",)),
    "aoti": Artifact("model-aoti.pt2", "aoti", False, "pt2, compiled by AOTInductor"),
    "aoti-int8": Artifact("model-aoti-int8.pt2", "aoti", True, "pt2-int8, compiled by AOTInductor", ("torchao",)),
}
DEFAULT = ("torchscript", "torchscript-int8", "onnx", "onnx-int8", "pt2")


def check_names(names: Sequence[str]) -> None:
    """Raise UserError for a name that is none, or a package that is missing."""
    if unknown := [name for name in names if name not in ARTIFACTS]:
        raise UserError(f"no artifact is called {', '.join(unknown)}; there are {', '.join(ARTIFACTS)}")
    missing = sorted({p for name in names for p in ARTIFACTS[name].packages if find_spec(p) is None})
    if missing:
        raise UserError(f"export needs {', '.join(missing)}; install what it needs: pip install -e '.[export]'")


def digest(array: Array) -> str:
    """Digest of a weight's float32 values, the same for a matrix and its transpose, in which formats differ."""
    array = np.asarray(array, np.float32)
    return min(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in (array, array.T))


def fingerprint(digests: Iterable[str]) -> str:
    """One digest of many weights, independent of their names and order."""
    return hashlib.sha256("".join(sorted(set(digests))).encode()).hexdigest()


def failure(error: Exception) -> str:
    """The first line of an error, with its type unless it is one of ours."""
    text = first_line(error)
    return text if isinstance(error, ArtifactError) else f"{type(error).__name__}: {text}"


def sha256(path: Path) -> str:
    """Digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
