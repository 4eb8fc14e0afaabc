"""python -m project check on the shipped configurations, on small data."""

import json
from pathlib import Path
from typing import Any

import pytest

from project.__main__ import main
from project.diagnose import CHECKS
from tests.e2e.conftest import ROOT, config  # noqa: F401  # the fixture

CHEAP = ["split-overlap", "initial-loss", "schedule"]


def check(output: Path, *options: str) -> tuple[int, dict[str, dict[str, object]]]:
    code = main(["check", "--output", str(output), *options])
    file = output / "check.json"
    return code, {row["check"]: row for row in json.loads(file.read_text())} if file.exists() else {}


def test_digits_pass_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model.encoder.num_layers=1", "--model.encoder.d_model=32"]
    code, rows = check(tmp_path, "--config", str(ROOT / "configs" / "digits.yaml"), *small)
    for name in ("loader-speed", "workers"):  # depends on what else the machine does
        rows[name]["status"] = "pass"
    assert code == 0
    assert {name: row["seen"] for name, row in rows.items() if row["status"] != "pass"} == {}
    assert CHECKS.keys() - rows.keys() == {"unknown-tokens", "token-order"}  # vectors are no tokens
    lines = capsys.readouterr().out.splitlines()
    seen = {line[9:].split()[0]: line for line in lines if line.startswith(("pass ", "warning "))}
    assert seen.keys() == rows.keys()
    assert len({line.index(str(rows[name]["seen"])) for name, line in seen.items()}) == 1  # aligned
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "configs",
    [
        pytest.param(["classify"], marks=pytest.mark.slow),
        pytest.param(["classify", "finetune/unfreeze", "size/tiny"], marks=pytest.mark.slow),
        ["pretrain"],
        ["quick"],
    ],
    ids=lambda names: "+".join(names),
)
def test_shipped_configurations_pass_on_small_data(configs: list[str], table: Path, tmp_path: Path) -> None:
    options = [word for name in configs for word in ("--config", str(ROOT / "configs" / f"{name}.yaml"))]
    small = {
        "data.source": "project.data.TableFile",
        "data.source.train": table,
        "data.vocab_size": 300,
        "data.tokens_per_batch": 256,
        "data.cache_dir": tmp_path / "cache",
        "model.encoder.d_model": 64,
    }
    options += [f"--{name}={value}" for name, value in small.items()]
    slow = ["--skip", "learning-rate", "loader-speed", "workers"]  # a test of speed is none beside other processes
    code, rows = check(tmp_path / "out", *options, *slow)
    assert {name: row["seen"] for name, row in rows.items() if row["status"] != "pass"} == {}
    assert code == 0 and len(rows) >= 23


def test_no_shipped_configuration_is_left_out() -> None:
    (marks,) = [m for m in test_shipped_configurations_pass_on_small_data.pytestmark if m.name == "parametrize"]  # type: ignore[attr-defined]
    names = {name for parameter in marks.args[1] for name in (getattr(parameter, "values", [parameter])[0])}
    assert {file.stem for file in (ROOT / "configs").glob("*.yaml")} <= names | {"digits"}


def test_a_strangers_model_and_data_are_built_and_checked(tmp_path: Path) -> None:
    """A fault is named, and the same data with a healthy network pass."""
    options = ["--data=tests.diagnose.faults.Markers", "--trainer.max_epochs=5", "--trainer.accelerator=cpu"]
    options += ["--only", "batch-independence", "label-balance", "gradients"]
    code, rows = check(tmp_path / "bad", "--model=tests.diagnose.faults.MixedHeads", *options)
    assert (code, rows["batch-independence"]["status"]) == (1, "failure")
    code, rows = check(tmp_path / "good", "--model=tests.diagnose.faults.Classifier", *options)
    assert code == 0 and {row["status"] for row in rows.values()} == {"pass"}
    assert rows["label-balance"]["seen"] == "4 classes, 25.0% each"


def test_copies_of_the_model_begin_no_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr("wandb.init", lambda *_, **options: begun.append(options))
    monkeypatch.setattr("wandb.require", begun.append)  # which Lightning calls when its logger is copied
    digits = str(ROOT / "configs" / "digits.yaml")
    code, rows = check(tmp_path, "--config", digits, "--only", "update-ratio", "same-batch-twice")
    assert (code, len(rows), begun) == (0, 2, [])


def test_a_failure_is_said_and_exits_with_one(
    config: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--config", str(config), "--model.optimizer.lr=0", "--only", "schedule", "update-ratio"]
    code, rows = check(tmp_path / "out", *options)
    assert code == 1
    assert rows["schedule"]["status"] == rows["update-ratio"]["status"] == "failure"
    said = capsys.readouterr()
    assert said.err.strip() == "error: failed: schedule, update-ratio; see above what to do"
    assert "Traceback" not in said.out + said.err


def test_what_one_broken_line_keeps_from_running_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, batch: Any) -> None:
        raise ValueError("of another shape")

    monkeypatch.setattr("tests.diagnose.faults.Classifier.forward", forward)
    options = ["--data=tests.diagnose.faults.Markers", "--trainer.max_epochs=5", "--trainer.accelerator=cpu"]
    code, rows = check(tmp_path, "--model=tests.diagnose.faults.Classifier", *options)
    said = capsys.readouterr()
    assert code == 1 and said.err.startswith("error: failed: loader-speed; see above")
    missed = [name for name, row in rows.items() if row["status"] == "not run"]
    assert len(missed) > 10
    assert f"not run: {', '.join(missed)}: crashed as loader-speed did" in said.out.splitlines()
    assert said.out.count("failure") == 2  # the line of the first, and the count


def test_the_folder_is_beside_the_runs_and_no_run_is_made(
    config: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert main(["check", "--config", str(config), "--runs_dir", str(tmp_path), "--only", *CHEAP]) == 0
    (file,) = tmp_path.glob("tiny-check/*/check.json")
    assert [row["check"] for row in json.loads(file.read_text())] == CHEAP
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-check"]


@pytest.mark.parametrize("words", [["--only", "overfitt"], ["--skip", "overfitt"]])
def test_an_unknown_check_is_refused(
    words: list[str],
    config: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, rows = check(tmp_path / "out", "--config", str(config), *words)
    assert (code, rows) == (1, {})
    assert "did you mean 'overfit'?" in capsys.readouterr().err
