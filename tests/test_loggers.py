"""A CSV that keeps its rows when a run goes on, and W&B that never ends a training."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from project.loggers import MetricsCSV, WandB
from project.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.create("loggers", tmp_path)
    run.make_current()
    return run


def test_rows_and_columns_of_an_earlier_session_stay(run: Run) -> None:
    for session, metrics in enumerate([{"loss": 1.0}, {"loss": 0.5, "accuracy": 0.7}, {"accuracy": 0.9}]):
        logger = MetricsCSV()
        logger.log_metrics(metrics, step=session)
        logger.finalize("success")
    with (run.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    assert [row["loss"] for row in rows] == ["1.0", "0.5", ""]
    assert [row["accuracy"] for row in rows] == ["", "0.7", "0.9"]


def test_a_failure_of_wandb_is_said_once_and_goes_no_further(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    init = wandb.init
    broken = lambda **options: init(mode="disabled") if options.get("mode") == "disabled" else 1 / 0  # noqa: E731
    monkeypatch.setattr(wandb, "init", broken)
    said: list[str] = []
    monkeypatch.setattr("project.loggers.log.warning", lambda message, *values: said.append(message % values))
    logger = WandB()
    logger.log_hyperparams({"a": 1})
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert said == ["W&B stopped recording (division by zero); training goes on, and metrics.csv holds every value"]


OFFLINE = """
from project.loggers import WandB
from project.runs import Run
from pathlib import Path
import sys
Run(Path(sys.argv[1])).make_current()
logger = WandB()
logger.log_metrics({"loss": 1.0}, step=0)
logger.experiment.finish()
"""


@pytest.mark.slow
def test_without_a_network_it_records_offline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # that of this process, which is offline
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    subprocess.run([sys.executable, "-c", OFFLINE, str(run.folder)], check=True, timeout=120)
    assert len(list(run.folder.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_without_an_account_it_is_offline(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    WandB()
    import os

    assert os.environ["WANDB_MODE"] == "offline"
