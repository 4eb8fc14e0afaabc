"""W&B's search spaces as Optuna's, and bad ones refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

optuna = pytest.importorskip("optuna")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

from project.errors import UserError  # noqa: E402
from project.sweep.space import Space, distribution, words  # noqa: E402

GOOD: dict[str, Any] = {
    "method": "bayes",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"model.optimizer.lr": {"min": 0.1, "max": 1.0}},
}


def read(tmp_path: Path, **changes: Any) -> Space:
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **changes}))
    return Space.read(file)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value": 3}, CategoricalDistribution([3])),
        ({"values": ["mean", "max"]}, CategoricalDistribution(["mean", "max"])),
        ({"values": [[1, 2], [3]]}, CategoricalDistribution(["[1, 2]", "[3]"])),
        ({"min": 1, "max": 4}, IntDistribution(1, 4)),
        ({"min": 1, "max": 4.0}, FloatDistribution(1.0, 4.0)),
        ({"min": 1, "max": 4, "distribution": "uniform"}, FloatDistribution(1.0, 4.0)),
        ({"min": 64, "max": 256, "q": 64, "distribution": "q_uniform"}, IntDistribution(64, 256, step=64)),
        ({"min": 0.0, "max": 0.5, "q": 0.1, "distribution": "q_uniform"}, FloatDistribution(0.0, 0.5, step=0.1)),
        ({"min": 0.001, "max": 0.1, "distribution": "log_uniform_values"}, FloatDistribution(0.001, 0.1, log=True)),
    ],
)
def test_distributions(given: dict[str, Any], expected: Any) -> None:
    assert distribution("key", given) == expected


BAD: list[tuple[dict[str, Any], str]] = [
    ({"parameter": {}}, "parameter is no key of a sweep; did you mean parameters?"),
    ({"parameters": {}}, "parameters is empty"),
    ({"parameters": None}, "parameters is missing"),
    ({"method": "genetic"}, "method must be one of grid, random, bayes; got 'genetic'"),
    ({"metric": {"goal": "minimize"}}, "metric.name must be a value that validation logs"),
    ({"metric": {"name": "test/accuracy", "goal": "maximize"}}, "metric.name must be a value that validation logs"),
    ({"metric": {"name": "val/loss"}}, "metric.goal must be one of maximize, minimize; got None"),
    ({"run_cap": 0}, "run_cap must be a whole number from 1 on; got 0"),
    ({"early_terminate": {"type": "median"}}, "early_terminate.type must be one of hyperband"),
    ({"early_terminate": {"type": "hyperband", "max_iter": 9}}, "early_terminate.max_iter is no key of a sweep"),
    ({"parameters": {"lr": 3}}, "parameters.lr needs values, value, or min and max"),
    ({"parameters": {"lr": {"parameters": {}}}}, "nested names are written with dots"),
    ({"parameters": {"lr": {"values": []}}}, "parameters.lr.values must be a list that is not empty"),
    ({"parameters": {"lr": {"values": [None, 1]}}}, "null cannot be given on a command line"),
    ({"parameters": {"lr": {"min": 1}}}, "got min 1, max None"),
    ({"parameters": {"lr": {"min": "1e-4", "max": 0.1}}}, "write 1.0e-4"),
    ({"parameters": {"lr": {"min": 2, "max": 1}}}, "parameters.lr: the range from 2 to 1 is empty"),
    ({"parameters": {"lr": {"min": 0, "max": 1, "distribution": "log_uniform_values"}}}, "min above 0, got 0"),
    ({"parameters": {"lr": {"min": 0.5, "max": 1, "distribution": "int_uniform"}}}, "needs whole numbers"),
    ({"parameters": {"lr": {"min": 0, "max": 1, "distribution": "normal"}}}, "got 'normal'"),
    ({"parameters": {"lr": {"min": 0, "max": 1, "distribution": "q_uniform", "q": 2}}}, "parameters.lr.q must be"),
    ({"parameters": {"lr": {"mn": 0, "max": 1}}}, "parameters.lr.mn is no key of a sweep; did you mean"),
    ({"method": "grid"}, "a grid needs values, or whole numbers"),
]


@pytest.mark.parametrize(("changes", "expected"), BAD, ids=lambda value: str(value))
def test_a_bad_space_is_refused_in_one_line(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, **changes)
    assert expected in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'space.yaml'}: ")
    assert len(str(error.value).splitlines()) == 1


def test_a_grid_has_every_combination_once(tmp_path: Path) -> None:
    parameters = {"a": {"values": ["x", "y"]}, "b": {"min": 1, "max": 3}}
    grid = read(tmp_path, method="grid", parameters=parameters).grid()
    assert [tuple(row.values()) for row in grid] == [("x", 1), ("x", 2), ("x", 3), ("y", 1), ("y", 2), ("y", 3)]


def test_the_ends_hold_every_choice_and_both_ends_of_every_range(tmp_path: Path) -> None:
    ends = read(tmp_path, parameters={"a": {"values": [1, 2, 3]}, "b": {"min": 0.5, "max": 2.0}}).ends()
    assert ends == [{"a": 1, "b": 0.5}, {"a": 2, "b": 2.0}, {"a": 3, "b": 0.5}]
    assert words(ends[0]) == ["--a=1", "--b=0.5"]


def test_a_value_that_the_command_line_reads_as_another_is_refused(tmp_path: Path) -> None:
    space = read(tmp_path, parameters={"a": {"values": [1.5]}})
    space.check(lambda words: {"a": 1.5})
    with pytest.raises(UserError, match=r"parameters\.a: the command line reads 1\.5 as '1\.5'"):
        space.check(lambda words: {"a": "1.5"})
    with pytest.raises(UserError, match="a sweep sets it itself"):
        read(tmp_path, parameters={"runs_dir": {"value": "here"}}).check(lambda words: {})
