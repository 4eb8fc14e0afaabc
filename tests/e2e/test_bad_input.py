"""Bad input: one clear line, the cause first, exit code not zero, and no run folder left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from project.__main__ import main
from project.runs import Run


def fit_with(config: Path, tmp_path: Path, *options: str) -> list[str]:
    return ["fit", "--config", str(config), "--runs_dir", str(tmp_path / "runs"), *options]


# options added to a good command line, and what the one line must say
OPTIONS: list[tuple[list[str], list[str]]] = [
    (["--trainer.max_epoch", "1"], ["--trainer.max_epoch", "did you mean --trainer.max_epochs?"]),
    (["--trainer.max_epochs", "many"], ["trainer.max_epochs", "expected int", "many"]),
    (["--trainer.precision", "12"], ["trainer.precision", "bf16-mixed"]),
    (["--trainer.devices", "0"], ["devices"]),
    (["--model.encoder.d_modl", "3"], ["model.encoder", "d_modl", "did you mean d_model?"]),
    (["--model.encoder.class_path", "project.nn.Encodr"], ["Encodr", "Encoder"]),
    (["--model.encoder.class_path", "nowhere.Encoder"], ["nowhere"]),
    (["--model.encoder.num_heads", "5"], ["d_model 32", "5"]),
    (["--model.encoder.position", "circular"], ["position", "rotary"]),
    (["--model.encoder.activation", "tanh"], ["activation", "gelu"]),
    (["--model.pooling", "median"], ["pooling", "mean_max"]),
    (["--model.warmup_ratio", "2"], ["warmup_ratio", "2"]),
    (["--model.class_weights", "[1, 2]"], ["class_weights", "2 entries for 3 labels"]),
    (["--model.optimizer.lrr", "1"], ["lrr"]),
    (["--model.optimizer.lr", "fast"], ["lr", "fast"]),
    (["--data.source.text", "body"], ["body", "text, label"]),
    (["--data.source.train", "/nowhere.csv"], ["/nowhere.csv", "No such file"]),
    (["--data.max_length", "1"], ["max_length 1"]),
    (["--data.tokens_per_batch", "8"], ["tokens_per_batch 8"]),
    (["--data.val_share", "0.9"], ["val_share 0.9"]),
    (["--data.tokenizer", "/nowhere"], ["/nowhere"]),
    (["--data.cache_dir", "/proc/none"], ["/proc/none", "cache_dir"]),
    (["--seed_everything", "lucky"], ["seed_everything"]),
    (["--config", "/nowhere.yaml"], ["/nowhere.yaml"]),
    (["--run", "/nowhere"], ["/nowhere"]),
    (["--ckpt_path", "/nowhere.ckpt"], ["/nowhere.ckpt"]),
    (["--trainer.callbacks", "[Nothing]"], ["Nothing"]),
    (["--trainer.max_epochs", "-1"], ["trainer.max_epochs"]),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=lambda value: " ".join(value) if value else "")
def test_options(
    options: list[str], expected: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(fit_with(config, tmp_path, *options)) != 0
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: "), error
    assert len(error.splitlines()) <= 10
    for words in expected:
        assert words in error
    assert not list((tmp_path / "runs").glob("*/2*")), "a run folder was left behind"


FILES: list[tuple[str, list[str]]] = [
    ("trainer: {max_epochs: [1", ["wrong.yaml is no YAML", "line 1"]),
    ("- a list", ["wrong.yaml holds no keys and values"]),
    ("trainer: {max_epoch: 1}", ["trainer.max_epoch", "did you mean trainer.max_epochs?"]),
    ("trainr: {max_epochs: 1}", ["trainr", "did you mean trainer.max_epochs?"]),
    ("model: {class_path: project.tasks.SequenceClasification}", ["did you mean SequenceClassification?"]),
]


@pytest.mark.parametrize(("content", "expected"), FILES, ids=lambda value: value if isinstance(value, str) else "")
def test_files(
    content: str, expected: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.yaml").write_text(content)
    test_options(["--config", str(tmp_path / "wrong.yaml")], expected, config, tmp_path, capsys)


def test_one_class_is_no_classification(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.csv").write_text("text,label\n" + "".join(f"word {i},good\n" for i in range(50)))
    assert main(fit_with(config, tmp_path, "--data.source.train", str(tmp_path / "one.csv"))) == 1
    assert "one class, ['good']" in capsys.readouterr().err


def test_an_unwritable_folder_fails_at_the_start(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", str(config), "--runs_dir", "/proc/runs"]) == 1
    assert "cannot write the run folder /proc/runs" in capsys.readouterr().err


def test_a_monitor_that_nobody_logs_fails_before_training(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = yaml.safe_load(config.read_text())
    content["trainer"]["callbacks"][0]["init_args"]["monitor"] = "val/acuracy"
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(content))
    assert main(fit_with(file, tmp_path)) == 1
    captured = capsys.readouterr()
    assert "did you mean 'val/accuracy'?" in captured.err
    assert "epoch 1" not in captured.out


VERBS: list[tuple[list[str], str]] = [
    ([], "usage"),
    (["fti"], "did you mean 'fit'?"),
    (["--config", "c.yaml", "fit"], "options come after the verb"),
    (["test", "--config", "c.yaml"], "needs trained weights"),
    (["validate"], "needs trained weights"),
    (["predict"], "needs trained weights"),
    (["test", "--run", "/nowhere"], "/nowhere does not exist"),
    (["test", "--run"], "--run needs a value"),
    (["predict", "--run", "/nowhere"], "/nowhere does not exist"),
]


@pytest.mark.parametrize(("arguments", "expected"), VERBS, ids=lambda value: str(value))
def test_verbs(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    captured = capsys.readouterr()
    assert expected in captured.err + captured.out


def test_predictions_make_their_folder_and_refuse_what_they_cannot_write(
    finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("a dog")
    predict = ["predict", "--run", str(finished.folder), "--input", str(tmp_path / "texts.txt"), "--output"]
    assert main([*predict, str(tmp_path / "new/folder/labels.jsonl")]) == 0
    assert '"label": "animal"' in (tmp_path / "new/folder/labels.jsonl").read_text()
    for output in ("/proc/labels.csv", str(tmp_path / "labels.xlsx")):
        assert main([*predict, output]) == 1
        assert output in capsys.readouterr().err


def test_runs_are_named_exactly(finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "--run", str(finished.folder.parent)]) == 1
    assert f"did you mean {finished.folder}?" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text(finished.config_file.read_text())
    assert main(["test", "--run", str(tmp_path)]) == 1
    assert "no checkpoint best.ckpt" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(finished.config_file.read_text())
    checkpoint = tmp_path / "half.ckpt"
    checkpoint.write_bytes(finished.checkpoint("best").read_bytes()[:1000])
    assert main(["test", "--ckpt_path", str(checkpoint)]) == 1
    assert str(checkpoint) in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["--help", "--version"])
def test_help_and_version_need_no_torch(verb: str, shell: Callable[..., Any]) -> None:
    result = shell(verb, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0 and result.stdout
    assert "torch" not in result.stderr
