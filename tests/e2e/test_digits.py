"""The whole way from a shipped configuration to a tested run, on data that are not text."""

import json
from pathlib import Path

import pytest

from project.__main__ import main
from project.runs import Run
from tests.e2e.conftest import ROOT, train

CONFIG = ROOT / "configs" / "digits.yaml"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(CONFIG, tmp_path_factory.mktemp("runs"), "--trainer.max_epochs=10", "--trainer.accelerator=cpu")


def test_a_tenth_of_the_time_gives_most_of_it(digits: Run) -> None:
    assert json.loads((digits.folder / "metrics.json").read_text())["test/accuracy"] > 0.85
    assert json.loads((digits.folder / "labels.json").read_text()) == [str(digit) for digit in range(10)]


def test_the_folder_alone_gives_the_same_test_scores(digits: Run) -> None:
    assert main(["test", "--run", str(digits.folder)]) == 0
    (evaluation,) = digits.folder.glob("evaluations/test-*.json")
    scores = json.loads((digits.folder / "metrics.json").read_text())
    assert json.loads(evaluation.read_text())["test/accuracy"] == scores["test/accuracy"]


def test_predict_says_that_it_needs_texts(digits: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("a text\n")
    assert main(["predict", "--run", str(digits.folder), "--input", str(tmp_path / "texts.txt")]) == 1
    assert "has no tokenizer.json" in capsys.readouterr().err


@pytest.mark.slow
def test_the_shipped_configuration_reads_digits(tmp_path: Path) -> None:
    run = train(CONFIG, tmp_path)
    assert json.loads((run.folder / "metrics.json").read_text())["test/accuracy"] > 0.98
