"""Leave out optimizer steps whose loss leaps."""

import itertools
import logging
import statistics
from collections import deque
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from project.tasks.base import Task

log = logging.getLogger("project")


class SkipSpikes(Callback):
    """Skips an optimizer step whose loss exceeds `factor` times the median of the last ones, on all processes alike.

    The loss is that of the whole step: accumulated and over all processes. A skipped step counts as a step, for the
    learning rate too, but changes no weight and no moment of the optimizer; its loss counts in the median, so that a
    loss that stays high is accepted in the end. What was skipped is said, and counted in `train/skipped_steps`.

    Args:
        factor: how many times the median is too much.
        window: steps that the median is taken of; none is skipped before a quarter of them were made.
    """

    def __init__(self, factor: float = 3.0, window: int = 100) -> None:
        if factor <= 1.0 or window < 4:
            raise ValueError(f"factor {factor} must exceed 1, and window {window} be 4 at least")
        self.factor = factor
        self.losses: deque[float] = deque(maxlen=window)
        self.skipped = 0
        self._ids: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses.extend(state["losses"])
        self.skipped = state["skipped"]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if isinstance(batch, dict) and "ids" in batch:
            self._ids += batch["ids"].tolist()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        assert isinstance(pl_module, Task)
        loss = pl_module.step_loss().item()
        enough = 4 * len(self.losses) >= (self.losses.maxlen or 0)
        if enough and loss > self.factor * (median := statistics.median(self.losses)):
            optimizer.zero_grad()  # sets gradients to None: the optimizer passes over such parameters
            self.skipped += 1
            self._say(trainer, loss, median)
        self.losses.append(loss)
        self._ids = []
        pl_module.log("train/skipped_steps", float(self.skipped))

    def _say(self, trainer: Trainer, loss: float, median: float) -> None:
        ids = [self._ids]
        if trainer.world_size > 1:
            ids *= trainer.world_size
            dist.all_gather_object(ids, self._ids)
        if trainer.is_global_zero:
            log.warning(
                f"skipped optimizer step {trainer.global_step} in epoch {trainer.current_epoch}: its loss {loss:.4g} "
                f"exceeds {self.factor:g} times the median {median:.4g}; training rows: {sorted(itertools.chain(*ids))}"
            )
