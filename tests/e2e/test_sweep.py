"""`python -m project sweep` on small data: pruned, killed, shared by two processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import optuna
import pytest
import wandb
import yaml

from project.__main__ import main
from project.cli import parse
from project.runs import Run
from project.sweep.study import open_storage
from tests.e2e.conftest import ROOT
from tests.e2e.test_resume import wait_for
from tests.test_loggers import inspect

SPACE: dict[str, Any] = {
    "name": "rates",
    "method": "grid",
    "metric": {"name": "val/accuracy", "goal": "maximize"},
    "early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 2},
    "parameters": {"model.optimizer.lr": {"values": [0.01, 1.0e-06]}},
}


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(SPACE))
    return file


def study(runs: Path) -> Any:
    return optuna.load_study(study_name="rates", storage=open_storage(str(runs / "tiny/sweep-rates/study.journal")))


def test_a_sweep_leaves_runs_and_the_best_configuration(
    config: Path, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(options: Sequence[str], environment: Mapping[str, str], lock: IO[str]) -> int:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            wandb.teardown()  # which reads the environment once a process, and here is one for all
            return main(["fit", *options])

    monkeypatch.setattr("project.sweep.worker.run_fit", fit)
    runs = tmp_path / "runs"
    command = ["sweep", "--space", str(space), "--config", str(config), "--runs_dir", str(runs)]
    assert main(command) == 0
    good, bad = study(runs).trials
    assert (good.state.name, bad.state.name) == ("COMPLETE", "PRUNED")
    assert good.value == max(good.intermediate_values.values()) and len(good.intermediate_values) == 3
    assert list(bad.intermediate_values) == [1]
    first, second = (Run(folder) for folder in sorted(runs.glob("tiny/2*")))
    assert (first.folder / "metrics.json").exists() and not (second.folder / "metrics.json").exists()
    begun = [inspect(run)[1] for run in (first, second)]
    groups = [record["run"]["run_group"] for records in begun for record in records if record["type"] == "run"]
    assert groups == ["rates", "rates"]
    best = runs / "tiny/sweep-rates/best.yaml"
    assert parse(["fit", "--config", str(best)])["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.01
    assert f"best configuration: {best}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"model.optimizer.lrr": {"values": [1.0]}}, "lrr"),
        ({"model.encoder.d_model": {"min": 16.0, "max": 64.0}}, "expected int"),
        ({"model.pooling": {"values": ["mean", "median"]}}, "median"),
        ({"model.optimizer.lr": {"min": 0.1, "max": 0.01}}, "the range from 0.1 to 0.01 is empty"),
    ],
)
def test_a_bad_space_fails_before_the_first_trial(
    parameters: dict[str, Any], expected: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump({**SPACE, "method": "random", "run_cap": 1, "parameters": parameters}))
    runs = tmp_path / "runs"
    assert main(["sweep", "--space", str(file), "--config", str(config), "--runs_dir", str(runs)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and expected in error and "Traceback" not in error
    assert not runs.exists()


@pytest.mark.slow
def test_killed_it_goes_on_with_the_trial_under_way_and_two_processes_share_the_rest(
    config: Path, space: Path, tmp_path: Path
) -> None:
    values = {"model.optimizer.lr": {"values": [0.01, 0.009]}}
    content = {key: value for key, value in SPACE.items() if key != "early_terminate"}
    space.write_text(yaml.safe_dump({**content, "parameters": values}))
    runs = tmp_path / "runs"

    def start() -> subprocess.Popen[str]:
        options = ["--runs_dir", str(runs), "--checkpoint.every_n_steps", "1", "--trainer.max_epochs", "2"]
        options += ["--trainer.logger", "project.loggers.MetricsCSV"]
        return subprocess.Popen(
            [sys.executable, "-m", "project", "sweep", "--space", str(space), "--config", str(config), *options],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    process = start()
    wait_for(lambda: bool(list(runs.glob("tiny/2*/checkpoints/last.ckpt"))))
    (training,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    os.kill(int(training), signal.SIGKILL)
    process.communicate()
    (killed,) = study(runs).trials[:1]
    assert killed.state.name == "RUNNING"
    workers = [start(), start()]
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    trials = study(runs).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    assert trials[0].params == killed.params
    assert sorted(trial.params["model.optimizer.lr"] for trial in trials) == [0.009, 0.01]
    assert len(list(runs.glob("tiny/2*/metrics.json"))) == 2, "a trial was trained twice"
    assert sum(output.count("model.optimizer.lr 0.") for output in outputs) == 2
