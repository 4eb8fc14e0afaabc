"""The README.md of a run, whatever its task, from its folder alone."""

import json
import shutil
from pathlib import Path

import pytest

from project.errors import UserError
from project.intervals import wilson
from project.model_card import write_model_card
from project.runs import Run
from tests.e2e.conftest import config, finished, train
from tests.export.conftest import custom_run

__all__ = ["config", "finished", "train"]


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    folder = tmp_path / "runs" / "tiny" / "id"
    shutil.copytree(finished.folder, folder, ignore=shutil.ignore_patterns("checkpoints", "wandb"))
    return Run(folder)


def card(run: Run) -> str:
    return (run.folder / "README.md").read_text()


def test_fit_ends_with_a_card_of_data_scores_and_speed(finished: Run) -> None:
    text = card(finished)
    scores = json.loads((finished.folder / "metrics.json").read_text())
    share = scores["test/accuracy"]
    low, high = wilson(round(share * 60), 60)
    assert f"| `test/accuracy` | {share:.4f} | {low:.4f} to {high:.4f} |" in text
    assert f"| `val/accuracy` | {scores['val/accuracy']:.4f} | – |" in text  # the checkpoint was chosen by it
    data = json.loads((finished.folder / "data.json").read_text())
    assert {name: facts["examples"] for name, facts in data["splits"].items()} == {"train": 480, "val": 60, "test": 60}
    assert f"| train | 480 | `{data['splits']['train']['sha256'][:16]}` |" in text
    took = json.loads((finished.folder / "training.json").read_text())
    assert took["epochs"] == 3 and took["seconds"] > 0 and took["peak_memory"] > 1e8
    assert f"3 epochs, {took['steps']:,} steps" in text and f"{took['parameters']:,} parameters" in text
    assert "d_model: 32" in text
    assert (finished.folder / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_a_broken_record_is_named(run: Run) -> None:
    (run.folder / "metrics.json").write_text("{")
    with pytest.raises(UserError, match=r"metrics\.json is no JSON"):
        write_model_card(run)


def test_a_card_made_again_keeps_the_notes_and_gains_the_bundle(run: Run) -> None:
    (run.folder / "README.md").write_text(card(run).rstrip() + "\n\nNot for medical use.\n")
    manifest = {
        "eager": {"bytes": 4e6, "metrics": {"val/accuracy": 0.9}},
        "metric": "val/accuracy",
        "batches": 2,
        "artifacts": {
            "onnx": {
                "file": "model.onnx",
                "sha256": "ab" * 32,
                "bytes": 4_100_000,
                "parity": 1e-6,
                "metrics": {"val/accuracy": 0.9},
                "batches": 2,
                "metric_drop": 0.0,
                "latency_ratio": 0.5,
                "throughput_ratio": 2.0,
            }
        },
        "failed": {},
        "skipped": {},
    }
    (run.folder / "export").mkdir()
    (run.folder / "export" / "model.onnx").touch()
    run.write_json("export/manifest.json", manifest)
    write_model_card(run)
    text = card(run)
    assert "| onnx | model.onnx | abababababab | 4.1 | 1e-06 | 0.9 | 0.0 | 0.5 | 2.0 |  |" in text
    assert "--bundle runs/tiny/id/export" in text and "--run runs/tiny/id\n" in text
    assert text.rstrip().endswith("Not for medical use.") and text.count("## Notes") == 1


def test_a_score_that_the_confusion_matrix_does_not_give_has_no_interval(run: Run) -> None:
    run.write_json("metrics.json", {"test/accuracy": 0.123, "test/other": 1.0})
    write_model_card(run)
    assert "| `test/accuracy` | 0.1230 | – |" in card(run) and "Intervals" not in card(run)


def test_a_run_that_has_only_begun_has_a_card(tmp_path: Path) -> None:
    run = Run.create("name", tmp_path)
    run.config_file.write_text("model: {class_path: my.Task}\n")
    write_model_card(run)
    assert "no final scores" in card(run) and "`my.Task` trained on `its own loaders`" in card(run)


def test_a_strangers_task_has_a_card_too(tmp_path: Path) -> None:
    run = custom_run(tmp_path, "Regression")
    text = card(run)
    assert "`tests.export.custom.Regression` trained on `tests.export.custom.Data`" in text
    assert "| `test/nll` |" in text and "| train | 64 | `–` |" in text and "confusion" not in text
    assert "predict" not in text.partition("How to load")[2]
