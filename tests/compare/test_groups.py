"""Repeats over seeds, and their mean and spread."""

import math
from pathlib import Path

import numpy as np
import pytest

from project.compare.differences import code, configuration, data, short_names, telling, warnings
from project.compare.find import find
from project.compare.groups import Curve, Statistic, best, direction, group, letters
from project.compare.page import lead
from project.compare.record import Record
from project.compare.summary import show_all, summary
from project.runs import Run
from tests.compare.conftest import MakeRun, config


def test_runs_that_differ_in_seeds_alone_are_one_group_the_best_first(four: Path) -> None:
    groups = group(find([str(four)], Path())[0])
    assert [(g.label, g.records[0].settings["model.encoder.d_model"], g.seeds) for g in groups] == [
        ("A", 128, ["1", "2"]),
        ("B", 64, ["1", "2"]),
    ]
    score = groups[1].score("test/accuracy")
    assert score is not None and score.n == 2
    assert (score.mean, score.std) == pytest.approx((0.79, math.sqrt(2 * 0.01**2)))
    assert best("test/accuracy", groups) is groups[0] is best("test/loss", groups)
    assert best("test/other", groups) is None


@pytest.mark.parametrize("other", [{"d_model": 65}, {"code": "d" * 64}, {"test": "e" * 64}])
def test_other_settings_code_or_data_are_another_group(make_run: MakeRun, other: dict[str, object]) -> None:
    runs = [make_run("1"), make_run("2", seed=2, **other)]
    assert len(group([Record.read(Run(run)) for run in runs])) == 2


def test_what_changes_no_number_makes_no_other_group(make_run: MakeRun) -> None:
    runs = [make_run("1"), make_run("2", commit="2" * 40, config={"name": "other", "checkpoint": {"every": 1}})]
    assert len(group([Record.read(Run(run)) for run in runs])) == 1


def test_what_differs_is_named(make_run: MakeRun) -> None:
    runs = [
        make_run("1", 0.9),
        make_run("2", 0.9, torch="2.14.0"),
        make_run("3", 0.8, d_model=32, code="d" * 64, test="e" * 64),
        make_run("4", None, d_model=16),
    ]
    groups = group([Record.read(Run(run)) for run in runs])
    assert configuration(groups) == [("model.encoder.d_model", ["64", "32", "16"])]
    assert data(groups) == [("splits.test.sha256", ["aaaaaaaa", "eeeeeeee", "aaaaaaaa"])]
    assert code(groups) == [
        ("code_sha256", ["cccccccc", "dddddddd", "cccccccc"]),
        ("package torch", ["2.13.0 | 2.14.0", "2.13.0", "2.13.0"]),
    ]
    text = " ".join(warnings(groups))
    assert "tested on different data" in text and "1 of 4 runs have no final scores" in text
    assert "Runs of A share the seed 1" in text
    columns = {column.name: column.cells for column in summary(groups)}
    assert columns["d_model"] == ["64", "32", "16"] and columns["test/accuracy"] == ["0.9000", "0.8000", "–"]


def test_an_option_is_not_lost_among_those_that_come_with_another_class(make_run: MakeRun) -> None:
    def model(encoder: str, options: dict[str, int], members: int) -> dict[str, object]:
        whole = config(64, 1, 2e-3)
        whole["model"]["init_args"] |= {"encoder": {"class_path": encoder, "init_args": options}, "members": members}
        return {"model": whole["model"]}

    ours = {f"option_{i}": i for i in range(10)} | {f"shared_{i}": 0 for i in range(10)}
    other = {f"choice_{i}": i for i in range(10)} | {f"shared_{i}": 1 for i in range(10)}
    runs = [
        make_run("1", 0.9, config=model("project.nn.Encoder", ours, 1)),
        make_run("2", 0.8, config=model("elsewhere.Encoder", other, 3)),
        make_run("3", 0.7, config=model("elsewhere.Encoder", other | {"choice_0": 7}, 3)),
    ]
    groups = group([Record.read(Run(run)) for run in runs])
    assert len(configuration(groups)) == 32
    expected = [
        "model.encoder",
        "model.members",
        "model.encoder.choice_0",
        *(f"model.encoder.shared_{i}" for i in range(10)),
    ]
    assert sorted(name for name, _ in telling(groups)) == sorted(expected)
    columns = {column.name: column.cells for column in summary(groups)}
    assert list(columns)[1:3] == ["encoder", "members"] and columns["members"] == ["1", "3", "3"]
    assert lead(groups).startswith("The runs differ in model.encoder, model.members, ")


def test_a_metric_is_better_when_the_monitor_or_its_name_says_so(make_run: MakeRun) -> None:
    groups = group([Record.read(Run(make_run("1")))])
    assert [direction(m, groups) for m in ("test/accuracy", "test/perplexity", "x/macro_f1", "x/size")] == [
        "max",
        "min",
        "max",
        None,
    ]


def test_a_mean_curve_covers_the_runs_that_have_got_there() -> None:
    short = (np.array([0.0, 10.0]), np.array([1.0, 3.0]))
    long = (np.array([0.0, 10.0, 20.0]), np.array([3.0, 5.0, 9.0]))
    curve = Curve.of([short, long])
    assert curve.steps.tolist() == [0, 10, 20] and curve.mean.tolist() == [2, 4, 9] and curve.n.tolist() == [2, 2, 1]
    assert curve.std[:2] == pytest.approx([math.sqrt(2)] * 2) and math.isnan(curve.std[2])
    lost = Curve.of([(np.array([0.0, 1.0]), np.array([1.0, math.nan]))])
    assert lost.n.tolist() == [1, 0] and math.isnan(lost.mean[1])
    assert Curve.of([long]).thinned(2).steps.tolist() == [0, 20]


def test_decimals_follow_the_spread() -> None:
    several = [Statistic(0.84912, 0.00123, 3), Statistic(0.8, 0.0021, 3), Statistic(0.7, math.nan, 1), None]
    assert show_all(several) == ["0.8491 ± 0.0012", "0.8000 ± 0.0021", "0.7000", "–"]
    assert show_all([Statistic(123.4567, math.nan, 1)]) == ["123.5"]
    assert show_all([Statistic(5120000.0, 0.0, 3)], most=0) == ["5,120,000"]


def test_letters_and_short_names() -> None:
    assert [letters(i) for i in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]
    assert short_names(["model.encoder.lr", "data.lr", "trainer.max_epochs"]) == {
        "model.encoder.lr": "encoder.lr",
        "data.lr": "data.lr",
        "trainer.max_epochs": "max_epochs",
    }
