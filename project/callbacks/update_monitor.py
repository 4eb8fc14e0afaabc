"""How far a step moves each layer's weights, in proportion to them."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from project.callbacks.monitor import Monitor, norm, trained_layers


class UpdateMonitor(Monitor):
    """Logs ``update_ratio/LAYER``: norm of an optimizer step's change over norm of the weights, healthy around 1e-3.

    Takes the memory of another copy of the weights while a measured batch runs.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        super().__init__(every_n_steps)
        self._before: dict[str, list[Tensor]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.due(trainer):
            self._before = {
                layer: [p.detach().clone() for p in parameters]
                for layer, parameters in trained_layers(pl_module).items()
            }

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._before:
            return
        ratios: dict[str, Tensor] = {}
        for name, layer in trained_layers(pl_module).items():
            if before := self._before.get(name):
                ratios[f"update_ratio/{name}"] = norm(
                    [p.detach() - b for p, b in zip(layer, before, strict=True)]
                ) / norm(before)
        self.write(trainer, ratios)
        self._before = {}
