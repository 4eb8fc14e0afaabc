"""Each overlay of configs/debug does what it says, and the user's callbacks stay."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from project.__main__ import main
from project.nn.heads import Pooling
from project.runs import Run
from tests.e2e.conftest import ROOT, train

OVERLAYS = sorted((ROOT / "configs/debug").glob("*.yaml"))


def overlay(name: str) -> list[str]:
    return ["--config", str(ROOT / f"configs/debug/{name}.yaml")]


def callbacks(run: Run) -> list[str]:
    return [callback["class_path"].rpartition(".")[2] for callback in run.config["trainer"]["callbacks"]]


def column(run: Run, name: str) -> list[float]:
    with (run.folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.mark.parametrize("file", OVERLAYS, ids=lambda file: file.stem)
def test_no_overlay_replaces_callbacks(file: Path) -> None:
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    assert "callbacks" not in content["trainer"]


def test_overfit_learns_a_few_batches_by_heart(config: Path, tmp_path: Path) -> None:
    run = train(config, tmp_path, *overlay("overfit"), "--trainer.overfit_batches=2", "--trainer.log_every_n_steps=1")
    losses = column(run, "train/loss")
    assert losses[0] > 0.8 and max(losses[-3:]) < 0.1
    assert callbacks(run) == ["ModelCheckpoint"]


def test_fast_goes_all_the_way_in_a_few_batches(config: Path, tmp_path: Path) -> None:
    run = train(config, tmp_path, *overlay("fast"))
    assert len(column(run, "train/loss")) == 5
    assert {path.name for path in run.checkpoints.iterdir()} == {"best.ckpt", "last.ckpt"}
    assert "test/accuracy" in json.loads((run.folder / "metrics.json").read_text())
    assert callbacks(run) == ["ModelCheckpoint"]


def test_profile_leaves_a_trace_that_perfetto_opens(config: Path, tmp_path: Path) -> None:
    run = train(config, tmp_path, *overlay("profile"))
    (file,) = run.folder.glob("fit-profile-*.training_step.*.pt.trace.json")
    events = json.loads(file.read_text())["traceEvents"]
    spans = {event["name"] for event in events if event["ph"] == "X" and event["dur"] >= 0}
    assert "[pl][module]project.nn.heads.Pooling: network.pooling" in spans
    assert "Optimizer.step#AdamW.step" in spans
    assert "aten::mm" in spans or "aten::addmm" in spans
    assert callbacks(run) == ["ModelCheckpoint"]


def test_detect_anomaly_names_the_operation(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Pooling.forward

    def broken(self: Pooling, x_BTD: Tensor, padding_mask_BT: Tensor) -> Tensor:
        zero = (x_BTD - x_BTD.detach()).square().mean().sqrt()  # finite, and its gradient is 0 / 0
        return forward(self, x_BTD, padding_mask_BT) + zero

    monkeypatch.setattr(Pooling, "forward", broken)
    try:
        with (
            pytest.raises(RuntimeError, match="'PowBackward0' returned nan"),
            pytest.warns(UserWarning, match=r"zero = \(x_BTD"),
        ):
            main(["fit", "--config", str(config), "--runs_dir", str(tmp_path), *overlay("detect_anomaly")])
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_deterministic_algorithms_are_on(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    forward = Pooling.forward

    def watched(self: Pooling, x_BTD: Tensor, padding_mask_BT: Tensor) -> Tensor:
        asked.append(torch.are_deterministic_algorithms_enabled())
        return forward(self, x_BTD, padding_mask_BT)

    monkeypatch.setattr(Pooling, "forward", watched)
    try:
        run = train(config, tmp_path, *overlay("deterministic"), *overlay("fast"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked and all(asked)
    assert callbacks(run) == ["ModelCheckpoint"]


def test_monitors_write_to_the_csv_beside_the_loss(config: Path, tmp_path: Path) -> None:
    options = ["--trainer.callbacks.every_n_steps=2"]  # of the last, the updates
    run = train(config, tmp_path, *overlay("monitors"), *options, "--trainer.max_epochs=1")
    assert callbacks(run) == ["ModelCheckpoint", "ActivationMonitor", "GradientMonitor", "UpdateMonitor"]
    ratios, losses = (column(run, name) for name in ("update_ratio/network.head.linear", "train/loss"))
    assert len(ratios) == len(losses) > 5 and all(0 < ratio < 1 for ratio in ratios)
