"""Stop at the first loss that is not finite, before it reaches the weights, and say where it came from."""

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from project.errors import UserError


class NanGuard(Callback):
    """Names the examples of the batch and the first module whose output was not finite.

    Checkpoints stay as they were: the last was written before this step.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batch = batch, batch_idx

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """
        Raises:
            UserError: the loss is not finite.
        """
        finite = bool(torch.isfinite(loss))
        together = isinstance(trainer.strategy, ModelParallelStrategy)  # no process goes forward without the others
        if trainer.strategy.reduce_boolean_decision(finite) if together else finite:
            return
        batch, index = self._batch
        ids = batch["ids"].tolist() if isinstance(batch, dict) and "ids" in batch else []
        rows = f"{ids[:10]}{f' and {len(ids) - 10} more' if len(ids) > 10 else ''}" if ids else "unknown"
        module = first_not_finite(pl_module, batch, index)
        origin = f"{module} is the first module whose output is not finite" if module else "all outputs are finite"
        message = (
            f"the loss is {loss.item()} in epoch {trainer.current_epoch}, batch {index}, after optimizer step "
            f"{trainer.global_step}: {origin}; training rows of the batch: {rows}; lower the learning rate, "
            "or see what `python -m project check` says"
        )
        if together:
            messages: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(messages, None if finite else message)
            message = next(m for m in messages if m)
        raise UserError(message)


def first_not_finite(task: LightningModule, batch: Any, index: int) -> str | None:
    """Name of the module whose output, in the order of the forward pass, is the first that is not finite."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(name)

        return hook

    modules = [(name, module) for name, module in task.named_modules() if name]
    handles = [module.register_forward_hook(watch(name)) for name, module in modules]
    try:
        with torch.no_grad():
            task.training_step(batch, index)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None
