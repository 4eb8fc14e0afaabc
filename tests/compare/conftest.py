"""Run folders written by hand: what compare reads, without a training."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

MakeRun = Callable[..., Path]


def config(d_model: int, seed: int, lr: float) -> dict[str, Any]:
    checkpoint = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"monitor": "val/accuracy", "mode": "max"},
    }
    encoder = {"class_path": "project.nn.Encoder", "init_args": {"d_model": d_model}}
    optimizer = {"class_path": "torch.optim.AdamW", "init_args": {"lr": lr, "betas": [0.9, 0.999]}}
    return {
        "seed_everything": seed,
        "name": "small",
        "runs_dir": "runs",
        "trainer": {"max_epochs": 2, "logger": False, "callbacks": [checkpoint]},
        "model": {
            "class_path": "project.tasks.SequenceClassification",
            "init_args": {"encoder": encoder, "optimizer": optimizer},
        },
        "data": {"class_path": "project.data.DigitsData", "init_args": {"seed": seed, "split_seed": 0}},
    }


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes `runs/small/<id>`; returns its folder."""

    def make(
        run_id: str, accuracy: float | None = 0.8, d_model: int = 64, seed: int = 1, lr: float = 2e-3, **facts: Any
    ) -> Path:
        folder = tmp_path / "runs" / "small" / run_id
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config(d_model, seed, lr) | facts.get("config", {})))
        test = {"examples": 20, "sha256": facts.get("test", "a" * 64)}
        files = {
            "provenance": {
                "git_commit": facts.get("commit", "1" * 40),
                "git_changes": [],
                "code_sha256": facts.get("code", "c" * 64),
                "packages": {"torch": facts.get("torch", "2.13.0")},
            },
            "data": {"source": "digits", "splits": {"train": {"examples": 70, "sha256": "b" * 64}, "test": test}},
        }
        if accuracy is not None:
            files["metrics"] = {"test/accuracy": accuracy, "test/loss": 1 - accuracy, "val/accuracy": accuracy + 0.01}
            files["training"] = {"seconds": 10.0, "steps": 20, "parameters": 1000 * d_model}
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        end = accuracy or 0.5
        rows = [
            {"step": 9, "epoch": 0, "train/loss": 2.0},
            {"step": 9, "epoch": 0, "val/accuracy": end / 2},
            {"step": 19, "epoch": 1, "train/loss": 1 - end},
            {"step": 19, "epoch": 1, "val/accuracy": end},
        ]
        with (folder / "metrics.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["epoch", "step", "train/loss", "val/accuracy"])
            writer.writeheader()
            writer.writerows(rows)
        return folder

    return make


@pytest.fixture
def four(make_run: MakeRun, tmp_path: Path) -> Path:
    """Two experiments of two seeds each: d_model 64 scores 0.78 and 0.80, d_model 128 0.90 and 0.94."""
    for i, (d_model, seed, accuracy) in enumerate([(64, 1, 0.78), (64, 2, 0.80), (128, 1, 0.90), (128, 2, 0.94)]):
        make_run(f"2026-{i}", accuracy, d_model, seed)
    return tmp_path / "runs"
