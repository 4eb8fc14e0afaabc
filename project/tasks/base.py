"""What every objective shares: parameter groups, the schedule, and gradients that add up exactly.

Notable:
- no weight decay on norms, biases and embeddings;
- linear warm-up, then a cosine to zero that ends with the last optimizer step;
- accumulation windows and processes are weighted by what they hold (examples, tokens), so that any split of a batch
  over micro-batches and processes gives the gradient of the whole, the last short window included.
"""

import inspect
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from project.errors import UserError, some
from project.tasks.export_spec import ExportSpec


class Task(LightningModule):
    """Base of all tasks. A subclass builds ``self.network`` (plain torch) and writes its step functions.

    Args:
        optimizer: makes the optimizer from parameter groups.
        warmup_ratio: share of all optimizer steps in which the learning rate rises linearly from zero to its peak.
    """

    network: nn.Module

    def __init__(self, optimizer: OptimizerCallable = torch.optim.AdamW, warmup_ratio: float = 0.1) -> None:
        super().__init__()
        if not 0.0 <= warmup_ratio <= 1.0:
            raise ValueError(f"warmup_ratio must lie between 0 and 1, got {warmup_ratio}")
        self.optimizer = optimizer
        self.warmup_ratio = warmup_ratio
        self._window: list[Tensor] = []  # (loss sum, weight) of the micro-batches since the last optimizer step
        self._first = torch.ones(2)  # that of the first one, as a mean over processes
        self._total: Tensor | None = None  # of all of them, over all processes

    def save_config(self) -> None:
        """Store the constructor's arguments in checkpoints, to be called first in a subclass' ``__init__``.

        Built by the command line, a task stores the configuration of every nested module and loads from a checkpoint
        alone. Built by hand, modules and callables stay out of the checkpoint, since they would have to be unpickled.
        """
        if _given_hyperparameters.get() is None:
            self.save_hyperparameters(ignore=["encoder", "optimizer"], logger=False)
        else:
            self.save_hyperparameters(logger=False)  # loggers get the whole configuration instead
            accepted = inspect.signature(type(self)).parameters
            for name in [name for name in self.hparams if not name.startswith("_") and name not in accepted]:
                del self.hparams[name]  # the command line offers what the data have, whether or not it is asked for

    def export_spec(self) -> ExportSpec:
        """How ``network`` is called, for exporters. A task that is to be exported overrides it."""
        raise UserError(f"{type(self).__name__} does not say how it is exported: give it a method export_spec")

    def configure_model(self) -> None:
        """Share out the network over the strategy's mesh of processes, where it has one.

        Raises:
            UserError: the mesh does not fit the network.
        """
        if self.device_mesh is None:
            return
        from project.nn.sharding import shard  # late: it imports much of torch.distributed

        try:
            shard(self.network, self.device_mesh)
        except ValueError as error:
            raise UserError(str(error)) from error

    def weighted_loss(self, loss_sum: Tensor, weight: Tensor | int) -> Tensor:
        """The loss to return from ``training_step``.

        Args:
            loss_sum: sum of the losses of a micro-batch, scalar.
            weight: how much was summed, in examples or tokens.

        Returns:
            The micro-batch's mean loss in the simple case. Over processes and accumulation windows it is scaled so
            that the gradient of one optimizer step is that of the mean over the whole step's examples.
        """
        if self._trainer is None:
            return loss_sum / weight
        weight = torch.as_tensor(weight, dtype=torch.float32, device=loss_sum.device)
        held = torch.stack([loss_sum.detach().float(), weight])
        if not self._window:
            self._first, self._total = self._mean_over_processes(held), None
        self._window.append(held)
        return loss_sum / self._first[1]

    def _mean_over_processes(self, value: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(value, reduce_op="mean") if self.trainer.world_size > 1 else value

    def step_loss(self) -> Tensor:
        """Mean loss over all that the optimizer step has seen, accumulated and on all processes.

        To be asked between its last backward pass and the step itself, by all processes, since it may be collective.
        """
        if self._total is None:
            several = self.trainer.accumulate_grad_batches > 1
            self._total = self._mean_over_processes(torch.stack(self._window).sum(0)) if several else self._first
        return self._total[0] / self._total[1]

    def on_after_backward(self) -> None:
        """Weights the gradient of an accumulation window once it is whole, before any callback looks at it."""
        micro_batches = self.trainer.accumulate_grad_batches
        if micro_batches == 1 or not self._window or self.trainer.fit_loop.epoch_loop._should_accumulate():
            return  # one micro-batch was scaled rightly from the start
        self.step_loss()
        assert self._total is not None
        # Lightning divided each loss by the number of micro-batches, in a short last window too.
        factor = (self._first[1] * micro_batches / self._total[1]).item()
        if gradients := [p.grad for p in self.parameters() if p.grad is not None]:
            torch._foreach_mul_(gradients, factor)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._window:
            self.log("train/loss", self.step_loss())
            self._window.clear()

    def rates(self) -> dict[nn.Parameter, float]:
        """Factors on the learning rate, for parameters that are to have another than the rest."""
        return {}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """
        Raises:
            UserError: the checkpoint is of another architecture.
        """
        if self.strict_loading and "state_dict" in checkpoint:
            refuse_other_weights(self.state_dict(), checkpoint["state_dict"])

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        plugin = self.trainer.precision_plugin
        algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
        clip_norm = getattr(self.trainer.strategy, "clip_gradient_norm", None)  # of one whose gradient lies in pieces
        if clip_norm is not None and gradient_clip_val and algorithm == GradClipAlgorithmType.NORM:
            clip_norm(list(plugin.main_params(optimizer)), gradient_clip_val)
        elif isinstance(plugin, MixedPrecision) and plugin.scaler is None:
            # Lightning refuses to clip for a fused optimizer, for a gradient scaler's sake, without a scaler too.
            Precision.clip_gradients(plugin, optimizer, gradient_clip_val or 0.0, algorithm)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        total_steps = self.trainer.estimated_stepping_batches
        if math.isinf(total_steps):
            raise UserError("the learning-rate schedule needs an end: set trainer.max_epochs or trainer.max_steps")
        try:
            optimizer = self.optimizer(parameter_groups(self, self.rates()))
        except ValueError as error:  # torch's for a rate that cannot be, or for several groups
            raise UserError(f"model.optimizer: {error}") from error
        for group in optimizer.param_groups:
            group["lr"] *= group.pop("rate")
        factor = partial(
            warmup_cosine, warmup_steps=round(self.warmup_ratio * total_steps), total_steps=int(total_steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
        }


def refuse_other_weights(own: dict[str, Tensor], given: dict[str, Tensor], most: int = 3) -> None:
    """
    Raises:
        UserError: names or shapes differ; says which, the first few of each kind.
    """
    shapes = [f"{k} is {tuple(given[k].shape)}, not {tuple(own[k].shape)}" for k in own.keys() & given.keys()
              if given[k].shape != own[k].shape]  # fmt: skip
    kinds = {
        "lacks": sorted(own.keys() - given.keys()),
        "has besides": sorted(given.keys() - own.keys()),
        "differs": sorted(shapes),
    }
    parts = [f"{kind} {some(names, most)}" for kind, names in kinds.items() if names]
    if parts:
        raise UserError(f"the checkpoint is of another model: it {'; '.join(parts)}. Give the model it was made with")


def warmup_cosine(step: int, warmup_steps: int, total_steps: int) -> float:
    """Factor on the peak learning rate at optimizer step `step`, counted from zero; zero from `total_steps` on."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def parameter_groups(module: nn.Module, rates: dict[nn.Parameter, float] | None = None) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices that decay; norms, biases and embeddings that do not.

    With factors on the learning rate of some, there are two groups for each factor, which stands in them as `rate`.
    """

    def own_parameters() -> Iterator[tuple[nn.Parameter, bool]]:
        seen: set[nn.Parameter] = set()  # tied weights count once, by their first owner
        for owner in module.modules():
            for parameter in owner.parameters(recurse=False):
                if parameter.requires_grad and parameter not in seen:
                    seen.add(parameter)
                    yield parameter, parameter.ndim >= 2 and not isinstance(owner, nn.Embedding)

    rates = rates or {}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter, decays in own_parameters():
        groups.setdefault((rates.get(parameter, 1.0), decays), []).append(parameter)
    return [
        {"params": parameters, "rate": rate} | ({} if decays else {"weight_decay": 0.0})
        for (rate, decays), parameters in sorted(groups.items(), key=lambda group: group[0], reverse=True)
    ]
