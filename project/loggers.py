"""Loggers that write into the run's folder: a CSV that survives a resume, and W&B that never ends a training."""

import csv
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from project.errors import first_line
from project.runs import Run

SECONDS_TO_REACH_WANDB = 20
SECONDS_TO_SEND_THE_REST = "300"

log = logging.getLogger("project")


def run_folder() -> Path:
    run = Run.current()
    return run.folder if run else Path("runs/unnamed")


class _AppendingWriter(ExperimentWriter):
    """Lightning's deletes the rows of an earlier session when a run goes on, and can lose all in rewriting the file."""

    def _check_log_dir_exists(self) -> None:
        file = Path(self.metrics_file_path)
        if file.is_file():
            with file.open() as lines:
                self.metrics_keys = lines.readline().strip().split(",")

    def _rewrite_with_new_header(self, fieldnames: list[str], before_step: float = float("inf")) -> None:
        file = Path(self.metrics_file_path)
        partial = file.with_name(file.name + ".partial")
        with file.open(newline="") as old, partial.open("w", newline="") as new:
            writer = csv.DictWriter(new, fieldnames)
            writer.writeheader()
            writer.writerows(row for row in csv.DictReader(old) if int(row["step"]) < before_step)
        partial.replace(file)

    def forget_from(self, step: int) -> None:
        if Path(self.metrics_file_path).is_file():
            self._rewrite_with_new_header(self.metrics_keys, step)


class MetricsCSV(CSVLogger):
    """``metrics.csv`` in the run's folder: one row each time something was logged.

    Args:
        flush_logs_every_n_steps: how often rows are written to disk.
    """

    def __init__(self, flush_logs_every_n_steps: int = 1) -> None:
        super().__init__(run_folder(), name="", version="", flush_logs_every_n_steps=flush_logs_every_n_steps)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _AppendingWriter(log_dir=self.log_dir)
        return self._experiment

    @rank_zero_only
    def forget_from(self, step: int) -> None:
        """Drop what was logged at this optimizer step and later, by a session that ended after its last checkpoint."""
        self.experiment.forget_from(step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration stands beside the file already, as config.yaml."""


def stored_key() -> bool:
    """Whether `wandb login` or the environment has left a key on this machine."""
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    return bool(os.environ.get("WANDB_API_KEY")) or (netrc.is_file() and "wandb" in netrc.read_text())


class WandB(WandbLogger):
    """Weights & Biases: online with an account or WANDB_MODE, offline without one; it never asks and never waits.

    Whatever fails in it is said once, and training goes on: the CSV holds the same numbers.

    Args:
        project: W&B project; default the first part of the run's folder, its name.
        name: the run's name; default its id.
        group, job_type, tags, notes: as in `wandb.init`.
        log_model: record the best and the last checkpoint as an artifact with these aliases when training has ended.
        save_code: record this package's source, beside the git commit that W&B notes by itself.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: list[str] | None = None,
        notes: str | None = None,
        log_model: bool = False,
        save_code: bool = True,
    ) -> None:
        import wandb

        if "WANDB_MODE" not in os.environ and not stored_key():
            os.environ["WANDB_MODE"] = "offline"
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", SECONDS_TO_SEND_THE_REST)  # by itself it would wait for ever
        os.environ.setdefault("WANDB_FINISH_TIMEOUT_RAISES", "true")
        run = Run.current()
        if run is not None:  # what waits for its upload is the run's too
            os.environ["WANDB_DATA_DIR"] = str(run.folder / "wandb")
        self._artifact, self._save_code = log_model, save_code
        self._step: int | None = None
        super().__init__(
            project=project or (run.name if run else "project"),
            name=name or (run.id if run else None),
            id=run.id if run else None,
            save_dir=run_folder(),
            group=group,
            job_type=job_type,
            tags=tags,
            notes=notes,
            settings=wandb.Settings(init_timeout=SECONDS_TO_REACH_WANDB),
        )
        self._wandb_init.pop("anonymous")  # W&B warns of it, set or not
        if "WANDB_SWEEP_ID" in os.environ:  # whose agent has set both
            del self._wandb_init["project"], self._wandb_init["id"]

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            try:
                experiment: Any = super().experiment
                self._link(experiment)
            except Exception as error:
                self._go_offline(error)
            else:
                self._log_code(experiment)
        return self._experiment

    def _go_offline(self, error: Exception) -> None:
        if os.environ.get("WANDB_MODE") == "offline":
            self._give_up(error)
            return
        log.warning("W&B cannot be reached (%s); it records offline, for `wandb sync`", first_line(error))
        import wandb

        with suppress(Exception, SystemExit):  # the latter if its service has ended badly
            wandb.teardown()  # its service keeps the run's id, and the mode that it was started in
        os.environ["WANDB_MODE"] = "offline"
        _ = self.experiment

    def _log_code(self, experiment: Any) -> None:
        try:
            if self._save_code:
                experiment.log_code(str(Path(__file__).parent))
        except Exception as error:
            log.warning("W&B has no copy of the code (%s)", first_line(error))

    def _link(self, experiment: Any) -> None:
        """Show the record among those of its name's other runs: `wandb leet runs/<name>/wandb` overlays them all."""
        run = Run.current()
        if run is None or not experiment.dir:
            return
        record = Path(experiment.dir).parent
        link = run.folder.parent / "wandb" / record.name
        with suppress(OSError):  # a file system without links: the record stands in the run's folder all the same
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(os.path.relpath(record, link.parent))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """All that is logged of a step makes one row, so that each of its metrics can be the x-axis of the others."""
        try:
            if step != self._step:
                self.experiment.log({}, commit=True)
                self._step = step
            self.experiment.log({**metrics, "trainer/global_step": step}, commit=False)
        except Exception as error:
            self._give_up(error)

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        try:
            super().log_hyperparams(params)
        except Exception as error:
            self._give_up(error)

    @rank_zero_only
    def summarize_best(self, name: str, mode: str) -> None:
        """Let the run's summary show the best value of a metric, "min" or "max", instead of the last."""
        try:
            self.experiment.define_metric(name, summary=mode, step_metric="trainer/global_step", step_sync=True)
        except Exception as error:
            self._give_up(error)

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Checkpoints are recorded when training has ended."""

    def _log_checkpoints(self) -> None:
        import wandb

        run = Run.current()
        for alias in ("last", "best") if run and self._artifact else ():
            file = run.checkpoints / f"{alias}.ckpt"  # type: ignore[union-attr]
            if file.exists():
                artifact = wandb.Artifact(f"model-{self.experiment.id}", type="model")
                # Not copied: offline, the file in the run's folder is what `wandb sync` uploads.
                artifact.add_file(str(file), name="model.ckpt", policy="immutable", skip_cache=True)
                self.experiment.log_artifact(artifact, aliases=[alias])
        self._artifact = False  # a test after the training ends successfully too

    @rank_zero_only
    def finalize(self, status: str) -> None:
        try:
            if status == "success" and self._experiment is not None:
                self._log_checkpoints()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        import wandb

        message = "W&B stopped recording (%s); training goes on, and metrics.csv holds every value"
        log.warning(message, first_line(error))
        self._experiment = wandb.init(mode="disabled")
