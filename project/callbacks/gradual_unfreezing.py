"""Train the head first, then the encoder, layer by layer from the top."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch import nn
from torch.optim import Optimizer

from project.errors import UserError
from project.nn import members_of


class GradualUnfreezing(BaseFinetuning):
    """Freezes embedding and encoder, and unfreezes them epoch by epoch (Howard and Ruder, ULMFiT, 2018).

    Which parts are frozen follows from the epoch alone, so a resumed training goes on as it was. The optimizer holds
    all parameters from the start, and passes by those that have no gradient: the schedule counts for all alike.

    Args:
        epochs: in which the whole encoder is frozen.
        layers_per_epoch: how many parts unfreeze with each epoch after those, from the top; default: all at once.
            The parts are the layers, and below them the embedding.
        keep_frozen: how many of the lowest parts stay frozen to the end.
    """

    def __init__(self, epochs: int = 1, layers_per_epoch: int | None = None, keep_frozen: int = 0) -> None:
        super().__init__()
        if epochs < 0 or keep_frozen < 0 or (layers_per_epoch is not None and layers_per_epoch < 1):
            raise ValueError("epochs and keep_frozen must be 0 at least, layers_per_epoch 1")
        self.epochs, self.layers_per_epoch, self.keep_frozen = epochs, layers_per_epoch, keep_frozen

    def parts(self, pl_module: LightningModule) -> list[nn.Module]:
        """From the top: what stands above the layers, the layers, the embedding."""

        def parts_of(network: nn.Module) -> list[nn.Module]:
            layers = network.get_submodule("encoder.layers")
            above = [m for m in network.get_submodule("encoder").children() if m is not layers]
            first, *rest = reversed(list(layers.children()))
            return [nn.ModuleList([*above, first]), *rest, network.get_submodule("embedding")]

        members = members_of(pl_module.get_submodule("network"))
        return [nn.ModuleList(alike) for alike in zip(*map(parts_of, members), strict=True)]

    def freeze_before_training(self, pl_module: Any) -> None:
        """Nothing yet: processes agree on what to synchronise, and the optimizer on what to train, before."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        unused = getattr(trainer.strategy, "_ddp_kwargs", {}).get("find_unused_parameters", False)
        if trainer.world_size > 1 and not unused:
            raise UserError("several processes that freeze need --trainer.strategy ddp_find_unused_parameters_true")
        self.finetune_function(pl_module, trainer.current_epoch)  # also in the middle of a resumed epoch

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer | None = None) -> None:
        parts = self.parts(pl_module)
        trained = 0
        if epoch >= self.epochs:
            steps = epoch - self.epochs + 1
            trained = len(parts) if self.layers_per_epoch is None else steps * self.layers_per_epoch
        trained = min(trained, len(parts) - self.keep_frozen)
        for i, part in enumerate(parts):
            part.requires_grad_(i < trained)
