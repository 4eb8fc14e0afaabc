"""Export the best checkpoint when training has ended."""

import json
import logging
import subprocess
import sys

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger

from project.export.artifacts import DEFAULT, check_names, failure
from project.export.process import environment
from project.export.table import table
from project.runs import Run
from project.sweep.trial import in_sweep

log = logging.getLogger("project")


class Export(Callback):
    """Runs `python -m project export` on the best checkpoint, in a process of its own, from rank zero.

    So whatever happens there, the live model and this process stay as they are. What fails is logged, and training
    counts as finished all the same; the other ranks wait.

    Args:
        artifacts: names out of `project.export.artifacts.ARTIFACTS`.
        max_drop: by how much the validation metric of an int8 artifact may be worse than eager's.

    Raises:
        UserError: a name is unknown or a package is missing; before training.
    """

    def __init__(self, artifacts: list[str] | None = None, max_drop: float = 0.01) -> None:
        self.artifacts = list(DEFAULT) if artifacts is None else artifacts
        self.max_drop = max_drop

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            check_names(self.artifacts)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            log.info("export: skipped under fast_dev_run, which keeps no checkpoint")
            return
        if in_sweep():
            log.info("export: skipped in a sweep; `python -m project export --run` makes it of the run you choose")
            return
        failure: str | None = None
        if trainer.is_global_zero:
            try:
                self._export(trainer)
            except Exception as error:
                failure = str(error)
        failure = trainer.strategy.broadcast(failure)  # where everybody meets
        if failure is not None and trainer.is_global_zero:
            log.error("export failed: %s", failure)

    def _export(self, trainer: Trainer) -> None:
        run = Run.current()
        checkpoints = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.best_model_path]
        if run is None or not checkpoints:
            raise RuntimeError("it needs a run's folder with a checkpoint, as `python -m project fit` makes")
        options = ["--run", str(run.folder), "--ckpt_path", checkpoints[0].best_model_path]
        options += ["--artifacts", *self.artifacts, "--max_drop", str(self.max_drop)]
        log.info("exporting and verifying the best checkpoint, about half a minute")
        done = subprocess.run(
            [sys.executable, "-m", "project", "export", *options],
            env={**environment(), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
        )
        if done.stdout.strip():
            log.info(done.stdout.strip())
        if "bundle: " in done.stdout:
            self._log(trainer, run)
        if done.returncode != 0:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])

    def _log(self, trainer: Trainer, run: Run) -> None:
        """The table to W&B and, where it is online, the bundle."""
        folder = run.folder / "export"
        columns, rows = table(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))
        for logger in trainer.loggers:
            if not isinstance(logger, WandbLogger):
                continue
            import wandb

            logger.log_table("export", columns, rows)
            if logger.experiment.offline or logger.experiment.disabled:
                continue
            artifact = wandb.Artifact(f"export-{run.id}", type="model")
            artifact.add_dir(str(folder))
            try:
                logger.experiment.log_artifact(artifact)
            except Exception as error:
                log.warning("W&B did not take the bundle (%s); it is in %s", failure(error), folder)
