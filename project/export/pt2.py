"""torch.export programs, `.pt2`: one graph with its weights, read with torch alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from project.export.artifacts import Array, Contents, digest
from project.export.torch_reader import call, random_operators

if TYPE_CHECKING:
    from project.export.source import Source


def unsupported() -> str | None:
    """Nothing stands in the way."""
    return None


def write(source: "Source", path: Path) -> None:
    torch.export.save(source.program, path)


def write_int8(source: "Source", path: Path) -> None:
    torch.export.save(int8_program(source), path)


def int8_program(source: "Source") -> ExportedProgram:
    """The program of the network quantized by torchao; it runs without torchao."""
    from project.export.quantize import torchao_decompositions, torchao_dynamic

    network = torchao_dynamic(source.network, source.examples)
    return source.export(network).run_decompositions(torchao_decompositions())


def random_nodes(program: ExportedProgram) -> list[str]:
    """Operators of the program that draw random numbers."""
    return random_operators((str(n.target), n.args) for n in program.graph.nodes if n.op == "call_function")


class Reader:
    def __init__(self, path: Path) -> None:
        self.program = torch.export.load(path)
        self.module = self.program.module()

    def run(self, inputs: list[Array]) -> list[Array]:
        return call(self.module, inputs)

    def contents(self) -> Contents:
        shapes = [
            [str(size) if isinstance(size, torch.SymInt) else size for size in node.meta["val"].shape]
            for node in self.program.graph.nodes
            if node.name in self.program.graph_signature.user_inputs
        ]
        weights = {digest(value.detach().numpy()) for value in self.program.state_dict.values()}
        return Contents(weights, random_nodes(self.program), shapes)


def read(path: Path, threads: int) -> Reader:
    torch.set_num_threads(threads)
    return Reader(path)
