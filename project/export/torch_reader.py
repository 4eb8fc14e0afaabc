"""What the readers of torch's own formats share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from project.export.artifacts import Array


def call(module: Callable[..., Any], inputs: list[Array]) -> list[Array]:
    """Outputs of a module that takes and returns tensors, as arrays."""
    with torch.inference_mode():
        outputs = module(*map(torch.from_numpy, inputs))
    return [output.numpy() for output in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]


RANDOM = ("dropout", "bernoulli", "rand", "multinomial", "aten.normal", "aten::normal")


def random_operators(operators: Iterable[tuple[str, Sequence[Any]]]) -> list[str]:
    """Names of the operators that draw random numbers, out of pairs of name and arguments.

    Dropout has the arguments input, probability and whether it is training: where it is not, it passes its input on.
    """
    return [
        name
        for name, arguments in operators
        if any(word in name for word in RANDOM) and not ("dropout" in name and arguments[2] is False)
    ]
