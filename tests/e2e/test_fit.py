"""fit leaves a folder that holds the whole run, and everything later needs that folder alone."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from project.__main__ import main
from project.runs import Run
from tests.e2e.conftest import ROOT, train

Shell = Callable[..., subprocess.CompletedProcess[str]]


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


def inspect_wandb(run: Run) -> dict[str, object]:
    (folder,) = run.folder.glob("wandb/offline-run-*")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--summary", "--json", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    summary: dict[str, object] = json.loads(result.stdout)
    return summary


def wandb_records(run: Run) -> list[dict[str, Any]]:
    (folder,) = run.folder.glob("wandb/offline-run-*")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(folder)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_the_folder_holds_the_whole_run(finished: Run) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert names >= {
        "config.yaml",
        "provenance.json",
        "tokenizer.json",
        "labels.json",
        "checkpoints",
        "metrics.csv",
        "metrics.json",
        "predictions.csv",
        "confusion.csv",
        "wandb",
    }
    assert {path.name for path in finished.checkpoints.iterdir()} == {"best.ckpt", "last.ckpt"}
    assert json.loads((finished.folder / "labels.json").read_text()) == ["animal", "food", "tool"]


def test_it_learned(finished: Run) -> None:
    assert json.loads((finished.folder / "metrics.json").read_text())["test/accuracy"] > 0.9


def test_the_confusion_matrix_counts_the_test_split_and_agrees_with_the_accuracy(finished: Run) -> None:
    rows = read_csv(finished.folder / "confusion.csv")
    counts = torch.tensor([[int(v) for k, v in row.items() if "\\" not in k] for row in rows])
    accuracy = json.loads((finished.folder / "metrics.json").read_text())["test/accuracy"]
    assert counts.sum() == 60
    assert (counts.diag().sum() / counts.sum()).item() == pytest.approx(accuracy)


def test_provenance_names_the_code_and_the_packages(finished: Run) -> None:
    provenance = json.loads((finished.folder / "provenance.json").read_text())
    assert provenance["packages"]["torch"] == torch.__version__
    assert "git_commit" in provenance and provenance["command"]


def test_the_csv_has_train_and_validation_rows(finished: Run) -> None:
    rows = read_csv(finished.folder / "metrics.csv")
    assert sum(bool(row["val/accuracy"]) for row in rows) == 3
    assert sum(bool(row["train/loss"]) for row in rows) > 3
    assert [row["test/accuracy"] for row in rows if row["test/accuracy"]]


def test_wandb_holds_the_configuration_once_and_the_metrics(finished: Run) -> None:
    summary = json.dumps(inspect_wandb(finished))
    assert "test/accuracy" in summary and "trainer/global_step" in summary
    records = json.dumps(wandb_records(finished))
    assert "project.nn.Encoder" in records
    assert "test/predictions" in records and "test/confusion" in records
    assert finished.id in records


def test_a_step_is_one_row_to_wandb_with_all_that_can_be_its_x_axis(config: Path, tmp_path: Path) -> None:
    shipped = yaml.safe_load((ROOT / "configs/classify.yaml").read_text())["trainer"]["callbacks"]
    monitors = [
        callback for callback in shipped if "Monitor" in callback["class_path"] or "Throughput" in str(callback)
    ]
    for monitor in monitors[1:]:
        monitor.setdefault("init_args", {})["every_n_steps"] = 2
    overlay = tmp_path / "monitors.yaml"
    overlay.write_text(yaml.safe_dump({"trainer": {"callbacks+": monitors}}))
    run = train(config, tmp_path, "--config", str(overlay), "--trainer.max_epochs", "1")
    rows = [row["history"]["item"] for row in wandb_records(run) if row["type"] == "history"]
    names = {"examples", "gradient_norm/all", "train/loss"}
    names |= {
        f"speed/{name}" for name in ("tokens_per_second", "examples_per_second", "share_of_peak", "peak_memory_gb")
    }
    complete = [row for row in rows if names <= row.keys() and any(name.startswith("lr-") for name in row)]
    assert [row["trainer/global_step"] for row in complete] == list(range(1, len(complete) * 2, 2)) != []
    assert all(0 < row["speed/share_of_peak"] < 1 for row in complete)
    (validated,) = [row for row in rows if "val/accuracy" in row]
    train_split = json.loads((run.folder / "data.json").read_text())["splits"]["train"]["examples"]
    assert validated["examples"] == train_split


def test_wandb_has_the_parameter_count_and_summarises_what_is_monitored_by_its_best(finished: Run) -> None:
    inspected: Any = inspect_wandb(finished)
    weights = torch.load(finished.checkpoint(), weights_only=True)["state_dict"].values()
    assert inspected["config"]["parameters"] == sum(value.numel() for value in weights)
    values = [float(row["val/accuracy"]) for row in read_csv(finished.folder / "metrics.csv") if row["val/accuracy"]]
    assert inspected["summary"]["val/accuracy"] == {"max": pytest.approx(max(values))}


def test_the_records_of_all_runs_of_a_name_stand_together(finished: Run) -> None:
    links = [link.resolve() for link in (finished.folder.parent / "wandb").iterdir()]
    assert links == [folder.resolve() for folder in finished.folder.glob("wandb/offline-run-*")]


def test_checkpoints_need_no_unpickling(finished: Run) -> None:
    for name in ("best", "last"):
        content = torch.load(finished.checkpoint(name), weights_only=True)
        assert content["hyper_parameters"]["labels"] == ["animal", "food", "tool"]


def test_the_same_command_makes_two_folders_with_the_same_scores(finished: Run, config: Path, tmp_path: Path) -> None:
    again = train(config, tmp_path)
    assert again.folder != finished.folder
    assert (again.folder / "metrics.json").read_text() == (finished.folder / "metrics.json").read_text()
    weights = [torch.load(r.checkpoint(), weights_only=True)["state_dict"] for r in (finished, again)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True))


def test_the_saved_configuration_trains_the_same_again(finished: Run, tmp_path: Path) -> None:
    again = train(finished.config_file, tmp_path)
    assert (again.folder / "metrics.json").read_text() == (finished.folder / "metrics.json").read_text()
    assert again.config | {"runs_dir": ""} == finished.config | {"runs_dir": ""}


def test_test_reads_everything_from_the_run(finished: Run) -> None:
    expected = json.loads((finished.folder / "metrics.json").read_text())
    assert main(["test", "--run", str(finished.folder)]) == 0
    (file,) = finished.folder.glob("evaluations/test-*.json")
    scores = json.loads(file.read_text())
    assert {name: scores[name] for name in expected if name.startswith("test/")} == {
        name: value for name, value in expected.items() if name.startswith("test/")
    }


def test_validate_takes_a_checkpoint_alone(finished: Run) -> None:
    assert main(["validate", "--ckpt_path", str(finished.checkpoint("best"))]) == 0
    (file,) = finished.folder.glob("evaluations/validate-*.json")
    expected = json.loads((finished.folder / "metrics.json").read_text())["val/accuracy"]
    assert json.loads(file.read_text())["val/accuracy"] == expected


def test_predict_labels_lines_and_tables_without_the_data(finished: Run, table: Path, tmp_path: Path) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_text("a small dog\n\nbread with cheese and soup\n" + "hammer " * 100)
    output = tmp_path / "out.csv"
    assert main(["predict", "--run", str(finished.folder), "--input", str(lines), "--output", str(output)]) == 0
    rows = read_csv(output)
    assert [row["label"] for row in rows[:1] + rows[2:]] == ["animal", "food", "tool"]
    assert rows[1]["text"] == "" and 0 < float(rows[1]["probability"]) <= 1

    output = tmp_path / "out.jsonl"
    assert main(["predict", "--run", str(finished.folder), "--input", str(table), "--output", str(output)]) == 0
    predicted = [json.loads(line) for line in output.read_text().splitlines()]
    actual = read_csv(table)
    assert [row["text"] for row in predicted] == [row["text"] for row in actual]
    assert [row["label"] for row in predicted] == [row["label"] for row in actual]  # as they came
    assert sum(row["predicted_label"] == row["label"] for row in predicted) > 540


@pytest.fixture
def monitored(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration with a callback that wants a logger."""
    content = yaml.safe_load(config.read_text())
    content["trainer"]["callbacks"].append({"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"})
    file = tmp_path_factory.mktemp("monitored") / "c.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_fast_dev_run_leaves_nothing(monitored: Path, tmp_path: Path) -> None:
    assert main(["fit", "--config", str(monitored), "--runs_dir", str(tmp_path), "--trainer.fast_dev_run", "1"]) == 0
    assert not list(tmp_path.iterdir())


def test_without_a_logger_and_progress(monitored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = ["--trainer.logger", "false", "--trainer.enable_progress_bar", "false"]
    run = train(monitored, tmp_path, *without, "--trainer.max_epochs", "1")
    shown = "".join(capsys.readouterr())
    assert "LearningRateMonitor is left out: there is no logger that it could write to" in shown
    assert "epoch 1/" not in shown and "Epoch 1" not in shown and "best checkpoint, of epoch 1:" in shown
    assert not (run.folder / "metrics.csv").exists()
    assert run.checkpoint().exists()


def test_what_is_typed_beats_files_and_runs_and_is_printed(
    finished: Run, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = tmp_path / "later.yaml"
    later.write_text(yaml.safe_dump({"trainer": {"max_epochs": 2, "gradient_clip_val": 0.5}}))
    run = train(config, tmp_path, "--config", str(later), "--trainer.gradient_clip_val", "0.25")
    assert run.config["trainer"]["max_epochs"] == 2
    assert run.config["trainer"]["gradient_clip_val"] == 0.25
    printed = capsys.readouterr().out
    assert "override: trainer.max_epochs: 3 (tiny.yaml) -> 2" in printed
    assert "override: trainer.gradient_clip_val: 0.5 (later.yaml) -> 0.25" in printed


def test_ctrl_c_at_the_end_of_an_epoch_saves_and_ends(config: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(config.read_text())
    content["trainer"]["callbacks"].append({"class_path": "tests.e2e.test_fit.InterruptAtEpochEnd"})
    file = tmp_path / "interrupted.yaml"
    file.write_text(yaml.safe_dump(content))
    assert main(["fit", "--config", str(file), "--runs_dir", str(tmp_path)]) == 130
    (folder,) = tmp_path.glob("tiny/2*")
    assert (folder / "checkpoints/last.ckpt").exists()


class InterruptAtEpochEnd(Callback):
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            signal.raise_signal(signal.SIGINT)


def test_overlays_append_callbacks(config: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.yaml"
    stop = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val/loss"}}
    later.write_text(yaml.safe_dump({"trainer": {"max_epochs": 1, "callbacks+": [stop]}}))
    run = train(config, tmp_path, "--config", str(later))
    names = [callback["class_path"].rpartition(".")[2] for callback in run.config["trainer"]["callbacks"]]
    assert names == ["ModelCheckpoint", "EarlyStopping"]


def test_a_default_run_says_nothing_that_needs_no_action(config: Path, tmp_path: Path, shell: Shell) -> None:
    result = shell("fit", "--config", str(config), "--runs_dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "epoch 3/3" in result.stdout and "test/accuracy" in result.stdout and "trained in" in result.stdout


def test_help_shows_model_data_and_trainer_last_and_in_this_order(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.startswith("usage: python -m project fit --config FILE")
    titles = [line.split()[0].rstrip(":") for line in shown.splitlines() if line[:1].isupper()]
    assert titles[-3:] == ["Model", "Data", "Trainer"]
