"""Who trains which trial, when there are several processes and some are killed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

optuna = pytest.importorskip("optuna")
from optuna.trial import TrialState  # noqa: E402

from project.errors import UserError  # noqa: E402
from project.sweep.space import Space  # noqa: E402
from project.sweep.study import claim_trial, open_study, pruner  # noqa: E402

GRID: dict[str, Any] = {
    "method": "grid",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"a": {"values": [1, 2, 3]}, "b": {"values": ["x", "y"]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    return tmp_path


def read(folder: Path, **changes: Any) -> Space:
    file = folder / "space.yaml"
    file.write_text(yaml.safe_dump({**GRID, **changes}))
    return Space.read(file)


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_two_processes_share_a_grid(storage: str, folder: Path) -> None:
    space = read(folder)
    name = str(folder / "journal") if storage == "journal" else f"sqlite:///{folder / 'study.db'}"
    studies = [open_study("grid", name, space, {}) for _ in range(2)]
    claims = []
    while (claim := claim_trial(studies[len(claims) % 2], folder, space, 6)) is not None:
        claims.append(claim)
    assert [claim.number for claim in claims] == list(range(6))
    assert sorted(tuple(claim.parameters.values()) for claim in claims) == [(a, b) for a in (1, 2, 3) for b in "xy"]


def test_a_trial_is_taken_up_when_its_process_has_died_and_not_before(folder: Path) -> None:
    space = read(folder, method="random", parameters={"a": {"min": 0.0, "max": 1.0}})
    study = open_study("random", str(folder / "journal"), space, {})
    first, second = claim_trial(study, folder, space, 2), claim_trial(study, folder, space, 2)
    assert first and second and claim_trial(study, folder, space, 2) is None
    first.lock.close()  # as the death of a process does
    again = claim_trial(study, folder, space, 2)
    assert again and (again.number, again.parameters) == (first.number, first.parameters)
    study.tell(again.number, 0.5)
    again.lock.close()
    assert claim_trial(study, folder, space, 2) is None
    assert claim_trial(study, folder, space, 3) is not None


def test_a_process_without_the_lock_s_folder_leaves_the_trials_of_others_alone(folder: Path, tmp_path: Path) -> None:
    space = read(folder, method="random", parameters={"a": {"min": 0.0, "max": 1.0}})
    study = open_study("random", str(folder / "journal"), space, {})
    there = claim_trial(study, folder, space, 1)
    assert there
    there.lock.close()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "locks").mkdir(parents=True)
    assert claim_trial(study, elsewhere, space, 1) is None


def test_a_trial_killed_before_it_had_all_its_parameters_fails(folder: Path) -> None:
    space = read(folder, method="random", parameters={"a": {"min": 0.0, "max": 1.0}})
    study = open_study("random", str(folder / "journal"), space, {})
    (folder / "locks" / f"{study.ask().number:04}").touch()
    claim = claim_trial(study, folder, space, 2)
    assert claim and claim.number == 1
    assert study.trials[0].state == TrialState.FAIL


def test_a_study_of_another_space_is_refused(folder: Path) -> None:
    open_study("one", str(folder / "journal"), read(folder), {"seeds": 1})
    open_study("one", str(folder / "journal"), read(folder), {"seeds": 1})
    with pytest.raises(UserError, match=r"the sweep one of .* was begun with another space or other options"):
        open_study("one", str(folder / "journal"), read(folder), {"seeds": 2})
    with pytest.raises(UserError, match="another space"):
        open_study("one", str(folder / "journal"), read(folder, parameters={"a": {"value": 1}}), {"seeds": 1})


def test_the_pruner_keeps_the_best_of_eta_at_each_power_of_eta(folder: Path) -> None:
    """As W&B's hyperband with min_iter 2 and eta 2: at epochs 2 and 4, and no other."""
    study = optuna.create_study(direction="minimize")
    study.pruner = pruner({"early_terminate": {"type": "hyperband", "min_iter": 2, "eta": 2}})
    ends = []
    for loss in (1.0, 3.0, 0.5, 2.0):
        trial = study.ask()
        for epoch in range(1, 6):
            trial.report(loss, epoch)
            if trial.should_prune():
                ends.append(epoch)
                break
        else:
            ends.append(None)
    assert ends == [None, 2, None, 2]
    assert isinstance(pruner({}), optuna.pruners.NopPruner)
