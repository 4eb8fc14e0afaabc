"""What a worker makes of its trainings; these are stood in for by files."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

optuna = pytest.importorskip("optuna")
from project.errors import UserError  # noqa: E402
from project.sweep.space import Space  # noqa: E402
from project.sweep.study import open_study  # noqa: E402
from project.sweep.trial import Trial, in_sweep  # noqa: E402
from project.sweep.worker import Worker  # noqa: E402

SPACE: dict[str, Any] = {
    "method": "grid",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"a": {"values": [1, 2, 3, 4]}},
}


class Trainings:
    """Stands in for `run_fit`: the loss is 10 a + seed, and grows from epoch to epoch; a of 4 fails."""

    def __init__(self) -> None:
        self.options: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.failing = {4}
        self.column = "val/loss"

    def __call__(self, options: Sequence[str], environment: Mapping[str, str], lock: IO[str]) -> int:
        self.options.append(list(options))
        self.environments.append(dict(environment))
        values = dict(word[2:].partition("=")[::2] for word in options if "=" in word)
        folder = Path(options[options.index("--run") + 1])
        if int(values["a"]) in self.failing:
            return 1
        folder.mkdir()
        loss = 10 * int(values["a"]) + int(values.get("seed_everything", 0))
        with (folder / "metrics.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["step", self.column], [1, loss], [2, ""], [3, loss + 1], [4, "nan"]])
        (folder / "config.yaml").write_text(yaml.safe_dump(values))
        (folder / "metrics.json").write_text(json.dumps({}))
        return 0


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    trainings = Trainings()
    monkeypatch.setattr("project.sweep.worker.run_fit", trainings)
    return trainings


def worker(tmp_path: Path, seeds: Sequence[int | None] = (None,)) -> Worker:
    folder = tmp_path / "sweep-s"
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(SPACE))
    space = Space.read(file)
    storage = str(folder / "study.journal")
    return Worker(space, open_study("s", storage, space, {}), ["--config", "c.yaml"], seeds, folder, storage)


def test_the_mean_over_seeds_of_the_best_values_counts(tmp_path: Path, trainings: Trainings) -> None:
    one = worker(tmp_path, seeds=(1, 2, 3))
    one.work(4)
    assert [trial.value for trial in one.study.trials] == [12.0, 22.0, 32.0, None]
    assert one.study.trials[3].state.name == "FAIL"
    best = (one.folder / "best.yaml").read_text()
    assert best.splitlines()[0].startswith("# Trial 0 of the sweep s: val/loss 12, the mean of 3 seeds")
    assert yaml.safe_load(best) == {"a": "1", "seed_everything": "1"}


def test_the_words_and_the_environment_of_a_training(tmp_path: Path, trainings: Trainings) -> None:
    one = worker(tmp_path, seeds=(1, 2))
    one.work(1)
    run = one.run(0, 0).folder
    expected = ["--config", "c.yaml", "--a=1", "--seed_everything=1", "--run", str(run), "--ckpt_path", "auto"]
    assert trainings.options[0] == expected
    assert run.name == f"{one.study.user_attrs['begun']}-s-000-seed1"
    assert [e["WANDB_RUN_GROUP"] for e in trainings.environments] == ["s", "s"]
    prunable = [json.loads(e["PROJECT_TRIAL"])["prunable"] for e in trainings.environments]
    assert prunable == [True, False], "the first seed decides"


def test_the_environment_carries_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Trial.current() is None and not in_sweep()
    trial = Trial("journal", "study", 3, True)
    for name, value in trial.environment().items():
        monkeypatch.setenv(name, value)
    assert Trial.current() == trial and in_sweep()


def test_a_training_that_was_finished_before_a_kill_is_not_done_again(tmp_path: Path, trainings: Trainings) -> None:
    one = worker(tmp_path, seeds=(1, 2))
    one.study.ask(one.space.parameters)
    (one.folder / "locks" / "0000").touch()
    trainings(["--a=1", "--seed_everything=1", "--run", str(one.run(0, 0).folder)], {}, None)  # type: ignore[arg-type]
    trainings.options.clear()
    one.work(1)
    assert ["--seed_everything=2" in options for options in trainings.options] == [True]
    assert one.study.trials[0].value == 11.5


def test_three_failures_in_a_row_end_the_worker(tmp_path: Path, trainings: Trainings) -> None:
    trainings.failing = {1, 2, 3}
    with pytest.raises(UserError, match="3 trials in a row failed, the last in "):
        worker(tmp_path).work(4)
    assert len(trainings.options) == 3


def test_a_metric_that_is_not_logged_ends_the_worker(tmp_path: Path, trainings: Trainings) -> None:
    trainings.column = "val/los"
    with pytest.raises(UserError, match=r"logged no finite val/loss, the sweep's metric; did you mean val/los\?"):
        worker(tmp_path).work(4)
    assert len(trainings.options) == 1
