"""``last.ckpt``: training goes on from it exactly, whenever and however it stopped.

Notable:
- written only where nothing is half done: after an optimizer step, around a validation, at the end of an epoch;
- the one before it is kept as ``previous.ckpt`` while training runs;
- SIGTERM and SIGINT write it and end the run within a step, on all processes together; a second SIGINT ends at once;
- so does SLURM's signal that the time is nearly up (Lightning's `requeue_signal`, SIGUSR1), and the job is queued anew.
  Lightning itself would write a checkpoint of its own in the middle of a step, which later ones could not replace.
"""

import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from project.errors import Interrupted
from project.runs import remove

log = logging.getLogger("project")

VALIDATION = "epoch_loop.val_loop.batch_progress"


class LastCheckpoint(Checkpoint):
    """Saves at the end of each epoch, on SIGTERM and SIGINT, and as often as asked in between.

    Args:
        every_n_minutes: time after which to save within an epoch.
        every_n_steps: optimizer steps after which to save within an epoch; default: by time alone.
    """

    def __init__(self, every_n_minutes: float = 5.0, every_n_steps: int | None = None) -> None:
        if every_n_minutes <= 0 or (every_n_steps is not None and every_n_steps < 1):
            raise ValueError(f"every_n_minutes {every_n_minutes} and every_n_steps {every_n_steps} must be positive")
        self.every_n_minutes, self.every_n_steps = every_n_minutes, every_n_steps
        self._signal: int | None = None
        self._requeue_signal: int | None = None
        self._handlers: dict[int, Any] = {}
        self._owed = False  # to be written before the validation that follows
        self._unvalidated = False
        self._folder: Path | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._folder = Path(trainer.default_root_dir) / "checkpoints"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = time.monotonic()
        slurm: Any = trainer._accelerator_connector.cluster_environment
        if isinstance(slurm, SLURMEnvironment) and slurm.auto_requeue:
            self._requeue_signal = slurm.requeue_signal
        for number in filter(None, (signal.SIGTERM, signal.SIGINT, self._requeue_signal)):
            self._handlers[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = number

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop.epoch_loop
        if loop._should_accumulate() or not self._due(trainer):
            return
        self._owed = loop._should_check_val_fx(trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]
        if not self._owed and not loop._num_ready_batches_reached():
            self._save(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._owed:
            self._save(trainer, unvalidated=True)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        if self._signal and trainer.world_size == 1 and not trainer.sanity_checking:
            self._save(trainer, unvalidated=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loop = trainer.fit_loop.epoch_loop
        if not trainer.sanity_checking and not loop._num_ready_batches_reached() and not loop._should_accumulate():
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._folder is not None and trainer.is_global_zero:
            remove(self._folder / "previous.ckpt")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore_handlers()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _due(self, trainer: Trainer) -> bool:
        """Whether to save after this optimizer step: the same answer on all processes."""
        step, last = trainer.global_step, trainer.fit_loop.epoch_loop._is_training_done
        late = trainer.is_global_zero and time.monotonic() - self._saved_at >= 60 * self.every_n_minutes
        if last or (self.every_n_steps and step % self.every_n_steps == 0):
            return True
        return trainer.strategy.reduce_boolean_decision(late or self._signal is not None, all=False)

    def _save(self, trainer: Trainer, unvalidated: bool = False) -> None:
        self._owed = False
        if self._folder is None:
            return
        for logger in trainer.loggers:
            logger.save()
        last = self._folder / "last.ckpt"
        if trainer.is_global_zero and last.exists():
            link(last, last.with_name("previous.ckpt"))
        self._unvalidated = unvalidated
        trainer.save_checkpoint(last)
        self._saved_at = time.monotonic()
        if trainer.strategy.reduce_boolean_decision(self._signal is not None, all=False):
            self._log_what_waits(trainer)
            if trainer.is_global_zero and self._signal is not None and self._signal == self._requeue_signal:
                requeue()
            raise Interrupted(self._signal or signal.SIGTERM, f"saved at step {trainer.global_step}")

    @staticmethod
    def _log_what_waits(trainer: Trainer) -> None:
        """Lightning logs the values of a step, and of an epoch, after the hook that is about to be left."""
        connector = trainer._logger_connector
        if trainer.validating:
            return
        if connector._first_loop_iter is None:
            trainer.fit_loop.epoch_loop._batches_that_stepped -= 1  # as Lightning does around it
            connector.update_train_epoch_metrics()
            trainer.fit_loop.epoch_loop._batches_that_stepped += 1
        else:
            connector.update_train_step_metrics()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Lightning reads from these counts whether to begin with the validation.
        begun = int(self._unvalidated)
        count = {"ready": begun, "started": begun, "processed": 0, "completed": 0}
        progress = {"total": count, "current": dict(count), "is_last_batch": False}
        checkpoint["loops"]["fit_loop"][VALIDATION] = progress


def requeue() -> None:
    """Have SLURM queue this job again, of an array this one of its jobs."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    job = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True)
        log.info("job %s is queued again", job)
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("job %s could not be queued again: %s", job, getattr(error, "stderr", None) or error)


def link(source: Path, target: Path) -> None:
    """Give a file, or the files of a folder, a second name, taking that name from what had it."""
    partial = target.with_name(target.name + ".partial")
    remove(partial)
    if source.is_dir():
        shutil.copytree(source, partial, copy_function=os.link)
        remove(target)
    else:
        os.link(source, partial)
        if target.is_dir():
            remove(target)
    partial.replace(target)
