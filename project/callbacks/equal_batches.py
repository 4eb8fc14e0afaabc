"""Every process needs equally many batches, or one that still has some waits for ever for one that has none."""

from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, LightningModule, Trainer

from project.errors import UserError


class EqualBatches(Callback):
    """Compares what the processes have, once; of loaders without a length at each batch whether it is the last.

    Validation and test need no such care: there processes meet at the end alone.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """
        Raises:
            UserError: the processes have different numbers of batches.
        """
        self._open_ended = sized_len(trainer.train_dataloader) is None
        if trainer.world_size == 1:
            return
        counts: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(counts, trainer.num_training_batches)
        if len(set(counts)) > 1:
            raise UserError(
                f"the processes have {', '.join(map(str, counts))} training batches: give each as many, "
                "as the samplers of project.data.batching do"
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """
        Raises:
            UserError: this is the last batch of some processes and not of others.
        """
        if trainer.world_size == 1 or not self._open_ended:
            return
        ended = torch.tensor(float(trainer.is_last_batch), device=pl_module.device)
        if 0 < trainer.strategy.reduce(ended, reduce_op="sum") < trainer.world_size:
            raise UserError(f"after training batch {batch_idx + 1} the data of some processes has ended, of others not")
