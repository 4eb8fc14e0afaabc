"""AOTInductor packages: the program compiled to machine code for this kind of processor.

A package checks nothing that it is given; `Interface.check` has to come first, as it does in `FreshProcess`.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch._inductor
from torch.export import ExportedProgram

from project.export.artifacts import Array, ArtifactError, Contents
from project.export.pt2 import int8_program, random_nodes
from project.export.torch_reader import call

if TYPE_CHECKING:
    from project.export.source import Source


def unsupported() -> str | None:
    """Why AOTInductor cannot compile here."""
    compilers = ("g++", "clang++", "c++")
    return None if any(map(shutil.which, compilers)) else "AOTInductor needs a C++ compiler; install g++ or clang"


def write(source: "Source", path: Path) -> None:
    _compile(source.program, path)


def write_int8(source: "Source", path: Path) -> None:
    _compile(int8_program(source), path)


def _compile(program: ExportedProgram, path: Path) -> None:
    if random := random_nodes(program):  # a compiled file can no longer be asked
        raise ArtifactError(f"draws random numbers: {', '.join(random)}")
    # Freezing packs constant weights into the layout in which the processor multiplies them.
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs={"freezing": True})


class Reader:
    def __init__(self, path: Path) -> None:
        self.package = torch._inductor.aoti_load_package(str(path))

    def run(self, inputs: list[Array]) -> list[Array]:
        return call(self.package, inputs)

    def contents(self) -> Contents:
        return Contents(weights=None, random=None, shapes=None)


def read(path: Path, threads: int) -> Reader:
    torch.set_num_threads(threads)
    return Reader(path)
