"""Pretrain on texts, fine-tune on labels, and need the first run no more afterwards."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from project.__main__ import main
from project.runs import Run
from tests.e2e.conftest import ROOT, TINY, train


@pytest.fixture(scope="module")
def pretrained(config: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pretrain")
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()[1:]]
    (folder / "texts.txt").write_text("\n".join(lines))
    settings = yaml.safe_load(config.read_text())
    settings["model"]["class_path"] = "project.tasks.MaskedLanguageModeling"
    checkpoint = TINY["trainer"]["callbacks"][0]  # type: ignore[index]
    settings["trainer"]["callbacks"] = [
        {**checkpoint, "init_args": {**checkpoint["init_args"], "monitor": "val/loss", "mode": "min"}}
    ]
    source = {"class_path": "project.data.TextLines", "init_args": {"files": str(folder / "texts.txt")}}
    settings["data"]["init_args"]["source"] = {
        "class_path": "project.data.WithoutHeldOut",
        "init_args": {"source": source, "config": str(config)},
    }
    (folder / "pretrain.yaml").write_text(yaml.safe_dump(settings))
    return train(folder / "pretrain.yaml", folder / "runs")


def test_texts_without_labels_train_a_language_model(pretrained: Run) -> None:
    scores = json.loads((pretrained.folder / "metrics.json").read_text())
    assert scores["test/perplexity"] < 150  # a guess has the vocabulary's size, near 300
    task = pretrained.load_task()
    assert type(task).__name__ == "MaskedLanguageModeling"


def test_predict_says_that_a_language_model_has_no_labels(
    pretrained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("a text\n")
    assert main(["predict", "--run", str(pretrained.folder), "--input", str(tmp_path / "texts.txt")]) == 1
    assert "has no labels" in capsys.readouterr().err


def test_fine_tuning_takes_weights_and_tokenizer_and_stands_alone(
    config: Path, pretrained: Run, tmp_path: Path
) -> None:
    first = Run(Path(shutil.copytree(pretrained.folder, tmp_path / "first")))
    still = "--model.optimizer.lr=0"
    run = train(config, tmp_path / "runs", f"--model.pretrained={first.folder}", still, "--trainer.max_epochs=1")
    before, after = (torch.load(r.checkpoint(), weights_only=True)["state_dict"] for r in (first, run))
    assert torch.equal(after["network.embedding.weight"], before["network.embedding.weight"])

    def tokenizer(of: Run) -> dict[str, object]:
        content: dict[str, object] = json.loads((of.folder / "tokenizer.json").read_text())
        return content

    assert tokenizer(run) == tokenizer(first)
    shutil.rmtree(first.folder)
    for arguments in (["test"], ["fit", "--trainer.max_epochs=2"]):
        assert main([*arguments, "--run", str(run.folder)]) == 0


def test_the_overlay_freezes_the_encoder_in_the_first_epoch(config: Path, pretrained: Run, tmp_path: Path) -> None:
    overlay = ["--config", str(ROOT / "configs" / "finetune" / "unfreeze.yaml")]
    run = train(config, tmp_path, *overlay, f"--model.pretrained={pretrained.folder}", "--trainer.max_epochs=1")
    before, after = (torch.load(r.checkpoint(), weights_only=True)["state_dict"] for r in (pretrained, run))
    frozen = [name for name in after if name.startswith(("network.embedding.", "network.encoder."))]
    assert frozen and all(torch.equal(after[name], before[name]) for name in frozen)
    assert len(run.config["trainer"]["callbacks"]) == 2


def test_an_encoder_that_does_not_fit_is_named(
    config: Path, pretrained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--runs_dir", str(tmp_path), "--model.pretrained", str(pretrained.folder)]
    assert main(["fit", "--config", str(config), *options, "--model.encoder.num_heads=4"]) == 1
    assert "model.encoder.num_heads is 4 here, 2 in" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/*/config.yaml")) or not list(tmp_path.glob("*/*/checkpoints"))
