"""A CSV that keeps its rows when a run goes on, and W&B that never ends a training."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project.cli import finish_wandb
from project.loggers import MetricsCSV, WandB
from project.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run.create("loggers", tmp_path)
    run.make_current()
    yield run
    import wandb

    wandb.finish()


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


def test_code_and_end_may_fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def fail(*_: object) -> None:
        raise TimeoutError("no answer\nin time")

    said: list[str] = []
    monkeypatch.setattr("project.loggers.log.warning", lambda message, *values: said.append(message % values))
    monkeypatch.setattr(wandb.Run, "log_code", fail)
    assert WandB().experiment.id == run.id
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "finish", fail)
        finish_wandb()
    assert said == ["W&B has no copy of the code (no answer)", "W&B has not sent all (no answer): `wandb sync` can"]


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


def inspect(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and records of a run's offline record."""
    (folder,) = run.folder.glob("wandb/offline-run-*")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json"]
    outputs = [
        subprocess.run([*command, *option, str(folder)], capture_output=True, text=True, check=True).stdout
        for option in (["--summary"], [])
    ]
    return json.loads(outputs[0]), [json.loads(line) for line in outputs[1].splitlines()]


def test_what_wandb_records(run: Run) -> None:
    run.checkpoints.mkdir()
    for name in ("best", "last"):
        (run.checkpoints / f"{name}.ckpt").write_text(name)
    logger = WandB(group="baseline", tags=["first"], job_type="train", notes="a note", log_model=True)
    logger.summarize_best("val/accuracy", "max")
    logger.summarize_best("val/loss", "min")
    for step, value in enumerate([0.5, 0.9, 0.7]):
        logger.log_metrics({"val/accuracy": value, "val/loss": 2 - value, "other": value}, step=step)
    logger.finalize("success")
    logger.finalize("success")  # as after a test
    logger.experiment.finish()
    summary, records = inspect(run)
    assert summary["summary"]["val/accuracy"] == {"max": 0.9}
    assert summary["summary"]["val/loss"] == {"min": pytest.approx(1.1)}
    assert summary["summary"]["other"] == 0.7
    (begun,) = [record["run"] for record in records if record["type"] == "run"]
    names = {"run_group": "baseline", "tags": ["first"], "job_type": "train", "notes": "a note", "run_id": run.id}
    assert {name: begun[name] for name in names} == names
    artifacts = [record["artifact"] for record in records if record["type"] == "artifact"]
    models = [
        (sorted(a["aliases"]), a["manifest"]["contents"][0]["local_path"]) for a in artifacts if a["type"] == "model"
    ]
    assert models == [(sorted(["latest", alias]), str(run.checkpoints / f"{alias}.ckpt")) for alias in ("last", "best")]
    (code,) = [a for a in artifacts if a["type"] == "code"]
    assert "loggers.py" in {file["path"] for file in code["manifest"]["contents"]}
    assert all(file["local_path"].startswith(str(run.folder)) for file in code["manifest"]["contents"])


def test_what_is_logged_of_a_step_is_one_row_to_wandb(run: Run) -> None:
    logger = WandB()
    for step, values in ((4, {"lr": 0.1}), (4, {"examples": 8}), (4, {"train/loss": 1.0}), (9, {"lr": 0.2})):
        logger.log_metrics(values, step=step)
    logger.experiment.finish()
    _, records = inspect(run)
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    shown = [{name: value for name, value in row.items() if name[0] != "_"} for row in rows]
    assert [row for row in shown if row] == [
        {"lr": 0.1, "examples": 8, "train/loss": 1.0, "trainer/global_step": 4},
        {"lr": 0.2, "trainer/global_step": 9},
    ]


def test_a_run_of_wandb_s_sweep_has_the_id_that_its_agent_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"SWEEP_ID": "s1", "RUN_ID": "r1", "PROJECT": "p", "MODE": "offline"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    import wandb

    wandb.teardown()  # which reads the environment once
    run = Run.create("sweep", tmp_path)
    assert run.id == "r1"
    run.make_current()
    logger = WandB()
    logger.log_metrics({"loss": 1.0}, step=0)
    logger.experiment.finish()
    wandb.teardown()
    _, records = inspect(run)
    (begun,) = [record["run"] for record in records if record["type"] == "run"]
    assert (begun["run_id"], begun["sweep_id"], begun["project"]) == ("r1", "s1", "p")
    assert "Ignoring" not in capsys.readouterr().err
