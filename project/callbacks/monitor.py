"""What the monitors of activations, gradients and updates share: when they measure, and where the numbers go."""

from collections.abc import Mapping

from lightning.pytorch import Callback, Trainer
from torch import Tensor, as_tensor, stack
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter
from torch.nn.utils import get_total_norm


class Monitor(Callback):
    """Measures at every n-th optimizer step, and writes to all loggers, beside that step's loss.

    Training stays bit by bit what it is without. Processes measure together, and rank zero writes.

    Args:
        every_n_steps: optimizer steps from one measurement to the next.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be 1 at least, got {every_n_steps}")
        self.every_n_steps = every_n_steps

    def due(self, trainer: Trainer) -> bool:
        """Whether to measure in this batch: the last of an accumulation window, where a logger is there to write to."""
        loop = trainer.fit_loop.epoch_loop
        steps = not loop._should_accumulate() and (loop._batches_that_stepped + 1) % self.every_n_steps == 0
        return steps and bool(trainer.loggers)

    def write(self, trainer: Trainer, values: Mapping[str, Tensor | float]) -> None:
        """Log scalars."""
        if not values:
            return
        numbers = stack(
            [as_tensor(value).double() for value in values.values()]
        ).tolist()  # one synchronisation for all
        for logger in trainer.loggers:
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
            logger.log_metrics(dict(zip(values, numbers, strict=True)), step=step)


def trained_layers(module: Module) -> dict[str, list[Parameter]]:
    """The trained parameters of each layer, that is of each module that has some of its own."""
    layers: dict[str, list[Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            layers.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
    return layers


def norm(tensors: list[Tensor]) -> Tensor:
    """Euclidean norm of all numbers together; of sharded ones over all processes."""
    total = get_total_norm(tensors)
    return total.full_tensor() if isinstance(total, DTensor) else total
