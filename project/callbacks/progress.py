"""A live bar in a terminal; plain lines, now and then, in a log file."""

import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import convert_inf


class PlainProgress(ProgressBar):
    """One line every `every_seconds` and one at the end of each epoch.

    Args:
        every_seconds: time between two lines.
    """

    def __init__(self, every_seconds: float = 10.0) -> None:
        super().__init__()
        self.every_seconds = every_seconds
        self._last = 0.0

    def disable(self) -> None:
        self.every_seconds = float("inf")

    def enable(self) -> None:
        """Lines are on from the start; on ranks other than zero Lightning turns them off."""

    def _line(self, trainer: Trainer, pl_module: LightningModule, batch: int | str) -> None:
        metrics = self.get_metrics(trainer, pl_module)
        values = {k: v for k, v in metrics.items() if k != "v_num"}
        shown = "  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else "?"
        print(
            f"epoch {trainer.current_epoch + 1}/{epochs}  batch {batch}/{self.total_train_batches}  {shown}", flush=True
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._last >= self.every_seconds:
            self._last = time.monotonic()
            self._line(trainer, pl_module, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.every_seconds < float("inf"):
            self._line(trainer, pl_module, self.total_train_batches)  # type: ignore[arg-type]


class LiveProgress(TQDMProgressBar):
    """Lightning's bar, counting epochs from 1 as everything else that is printed does."""

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        if self._leave:
            self.train_progress_bar = self.init_train_tqdm()
        self.train_progress_bar.reset(convert_inf(self.total_train_batches))
        self.train_progress_bar.initial = 0
        self.train_progress_bar.set_description(f"Epoch {trainer.current_epoch + 1}")


def Progress() -> ProgressBar:
    """The bar that suits standard error: live in a terminal, plain lines elsewhere."""
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()
