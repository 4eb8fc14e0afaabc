"""Name the parameters that a step left without a gradient, before torch refuses the next step without naming any."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from project.errors import UserError, some


class UnusedParameters(Callback):
    """Under DDP, which averages gradients as they come and waits for all of them."""

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """
        Raises:
            UserError: a trainable parameter has no gradient.
        """
        strategy: Any = trainer.strategy
        if not isinstance(strategy, DDPStrategy) or trainer.fit_loop.epoch_loop._should_accumulate():
            return
        options = strategy._ddp_kwargs
        if options.get("find_unused_parameters") or options.get("static_graph"):
            return
        names = [name for name, p in pl_module.named_parameters() if p.requires_grad and p.grad is None]
        if names:
            raise UserError(
                f"no gradient reaches {some(names, 5)}: use them in the loss, set their requires_grad to "
                "False, or give --trainer.strategy ddp_find_unused_parameters_true"
            )
