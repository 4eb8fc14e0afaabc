"""TorchScript, for the runtimes that still read it: all calls of a format that torch has deprecated, in this one place.

Its successor is torch.export (pt2.py). torch itself does not support TorchScript from Python 3.14 on.
"""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from project.export.artifacts import Array, Contents, digest
from project.export.torch_reader import call, random_operators

if TYPE_CHECKING:
    from project.export.source import Source


def unsupported() -> str | None:
    """Why TorchScript cannot be made here."""
    return "torch does not support TorchScript on Python 3.14 and newer" if sys.version_info >= (3, 14) else None


def write(source: "Source", path: Path) -> None:
    _script(source.network, path)


def write_int8(source: "Source", path: Path) -> None:
    from project.export.quantize import eager_dynamic

    _script(eager_dynamic(source.network, source.examples), path)


def _script(network: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated: known, see above
        # Freezing makes constants of weights and mode: what is only for training disappears, dropout with it.
        torch.jit.freeze(torch.jit.script(network)).save(str(path))


def _nodes(block: Any) -> list[Any]:
    return [n for node in block.nodes() for n in (node, *(m for inner in node.blocks() for m in _nodes(inner)))]


class Reader:
    def __init__(self, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.module = torch.jit.load(str(path))

    def run(self, inputs: list[Array]) -> list[Array]:
        return call(self.module, inputs)

    def contents(self) -> Contents:
        nodes = _nodes(self.module.inlined_graph)
        constants = [n.t("value") for n in nodes if n.hasAttribute("value") and n.kindOf("value") == "t"]
        weights = {digest(constant.numpy()) for constant in constants if constant.is_floating_point()}
        operators = ((node.kind(), [value.toIValue() for value in node.inputs()]) for node in nodes)
        return Contents(weights, random_operators(operators), shapes=None)


def read(path: Path, threads: int) -> Reader:
    torch.set_num_threads(threads)
    return Reader(path)
