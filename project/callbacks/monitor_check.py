"""Refuse a monitor that nobody logs before training, not at the end of the first epoch."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping

from project.errors import UserError, nearest


class MonitorCheck(Callback):
    """After the sanity validation, compare what callbacks monitor with what validation logged.

    Names that begin with ``train`` are not known by then, and are left to Lightning.
    """

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged = sorted(trainer.callback_metrics)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            monitor = getattr(callback, "monitor", None)
            if not isinstance(callback, Checkpoint | EarlyStopping) or monitor is None:
                continue
            if monitor not in logged and not monitor.startswith("train"):
                meant = nearest(monitor, logged, 0.0)
                raise UserError(
                    f"{type(callback).__name__} monitors {monitor!r}, which validation does not log; "
                    f"it logs {', '.join(logged)}" + (f"; did you mean {meant!r}?" if meant else "")
                )
