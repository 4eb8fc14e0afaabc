"""What the readers of torch's own formats share."""

from collections.abc import Callable
from typing import Any

import torch

from project.export.artifacts import Array


def call(module: Callable[..., Any], inputs: list[Array]) -> list[Array]:
    """Outputs of a module that takes and returns tensors, as arrays."""
    with torch.inference_mode():
        outputs = module(*map(torch.from_numpy, inputs))
    return [output.numpy() for output in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]


RANDOM = ("dropout", "bernoulli", "rand", "multinomial", "aten.normal", "aten::normal")


def random_operators(names: list[str]) -> list[str]:
    """Those among names of operators that draw random numbers."""
    return [name for name in names if any(word in name for word in RANDOM)]
