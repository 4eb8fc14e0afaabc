"""How fast a run trains, what share of the machine that is, how much memory it takes, and how many examples it saw."""

import time
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor, nn

from project.callbacks.monitor import Monitor
from project.machine import matmul_peak, peak_memory

DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "64": torch.float64}


class Throughput(Monitor):
    """Logs what all processes did together since it last logged, the time of validation left out.

    - ``examples``: seen since training began, over resumes; beside validation's metrics too, as an x-axis.
    - ``speed/examples_per_second`` and ``speed/tokens_per_second``: of real tokens, where ``batch["padding_mask"]``
      tells them from padding; without one, neither tokens nor the next are logged.
    - ``speed/share_of_peak``: 6 FLOP a weight and token (Kaplan et al., "Scaling laws", 2020, table 1; embedding tables
      do not count), over those of as many matrix products at the rate that was measured here in the same precision.
    - ``speed/peak_memory_gb``: of this process; on a GPU, of torch on this GPU.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        super().__init__(every_n_steps)
        self._counted: list[tuple[int, Tensor | int]] = []  # examples and tokens of this process' batches since _total
        self._total = torch.zeros(2, dtype=torch.int64)  # of all processes
        self._logged = self._total
        self._start = self._pause = 0.0
        self._peak: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logged, self._start = self._total, time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        mask = batch.get("padding_mask") if isinstance(batch, dict) else None
        self._counted.append((extract_batch_size(batch), 0) if mask is None else (len(mask), mask.sum()))
        if self.due(trainer):
            self._log(trainer, pl_module)

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = self._add_up(trainer)  # waits for the device
        seconds = time.perf_counter() - self._start
        examples, tokens = ((total - self._logged) / seconds).tolist()
        values = {"examples": total[0], "speed/examples_per_second": examples}
        if tokens:
            if self._peak is None:
                dtype = DTYPES.get(str(trainer.precision).partition("-")[0], torch.float32)
                self._peak = matmul_peak(dtype, pl_module.device) * trainer.world_size
            share = 6 * weights_of_products(pl_module) * tokens / self._peak
            values |= {"speed/tokens_per_second": tokens, "speed/share_of_peak": share}
        values["speed/peak_memory_gb"] = peak_memory(pl_module.device) / 1e9
        self.write(trainer, values)
        self._logged, self._start = total, time.perf_counter()

    def _add_up(self, trainer: Trainer) -> Tensor:
        """Examples and tokens of all processes so far. To be asked by all of them, since it is collective."""
        if self._counted:
            own = torch.tensor([int(sum(counts)) for counts in zip(*self._counted, strict=True)])
            counts = trainer.strategy.reduce(own.to(trainer.strategy.root_device), reduce_op="sum").cpu()
            sampler = trainer.distributed_sampler_kwargs or {"num_replicas": 1}
            self._total = self._total + counts // (trainer.world_size // sampler["num_replicas"])  # stages see the same
            self._counted = []
        return self._total

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause = time.perf_counter()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.write(trainer, {"examples": self._add_up(trainer)[0]})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start += time.perf_counter() - self._pause

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = self._add_up(trainer)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._total = checkpoint.get("seen", self._total)


def weights_of_products(module: nn.Module) -> int:
    """Number of parameters that each token is multiplied with: all but embedding tables, tied ones too."""
    tables = {p for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.numel() for p in module.parameters() if p not in tables)
