"""Gradient norms by layer: which layers learn, whether gradients vanish or explode on the way down."""

from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer

from project.callbacks.monitor import Monitor, norm, trained_layers


class GradientMonitor(Monitor):
    """Logs ``gradient_norm/LAYER`` and ``gradient_norm/all``: of the whole step's gradient, before it is clipped.

    Args:
        every_n_steps: optimizer steps from one measurement to the next.
        by_layer: false for the norm of all alone.
    """

    def __init__(self, every_n_steps: int = 50, by_layer: bool = True) -> None:
        super().__init__(every_n_steps)
        self.by_layer = by_layer

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if not self.due(trainer):
            return
        own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        layers = {
            layer: [p.grad for p in parameters if p.grad is not None and p in own]
            for layer, parameters in trained_layers(pl_module).items()
        }
        values = {f"gradient_norm/{layer}": norm(gradients) for layer, gradients in layers.items() if gradients}
        if values:
            total = {"gradient_norm/all": norm(list(values.values()))}
            self.write(trainer, values | total if self.by_layer else total)
