"""The callback exports after training, and training does not notice."""

import copy
import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from project.callbacks.export import Export
from project.errors import UserError
from project.runs import Run
from tests.e2e.conftest import train
from tests.export.conftest import Bundle


def with_export(config: Path, target: Path, **init_args: Any) -> Path:
    """The configuration with the callback, between two that look at the model."""
    content = yaml.safe_load(config.read_text())
    probe = {"class_path": "tests.export.test_callback.Probe"}
    export = {"class_path": "project.callbacks.Export", "init_args": init_args}
    content["trainer"]["callbacks"] += [probe, export, probe]
    target.write_text(yaml.safe_dump(content))
    return target


class Probe(Callback):
    """Remembers the state of the model at the end of the fit."""

    seen: list[dict[str, Any]] = []  # noqa: RUF012  (shared on purpose)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state = {
            "weights": copy.deepcopy(pl_module.state_dict()),
            "modes": [module.training for module in pl_module.modules()],
            "device": pl_module.device,
            "dtypes": [p.dtype for p in pl_module.parameters()],
            "gradients": [p.requires_grad for p in pl_module.parameters()],
            "random": torch.get_rng_state(),
            "threads": torch.get_num_threads(),
        }
        Probe.seen.append(state)


def assert_untouched() -> None:
    before, after = Probe.seen
    Probe.seen.clear()
    for name, value in before.pop("weights").items():
        assert torch.equal(value, after["weights"][name]), name
    assert torch.equal(before.pop("random"), after["random"])
    assert all(before[key] == after[key] for key in before)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was logged."""
    monkeypatch.setattr(logging.getLogger("project"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "project"]


def test_exports_the_best_and_leaves_no_trace(config: Path, tmp_path: Path) -> None:
    run = train(with_export(config, tmp_path / "c.yaml", artifacts=["onnx"]), tmp_path / "runs")
    assert_untouched()
    manifest = json.loads((run.folder / "export" / "manifest.json").read_text())
    assert list(manifest["artifacts"]) == ["onnx"]
    assert manifest["checkpoint"]["file"] == "checkpoints/best.ckpt"
    checkpoint = torch.load(run.checkpoint(), weights_only=True)
    assert manifest["checkpoint"]["step"] == checkpoint["global_step"]


@pytest.mark.slow
def test_failure_is_said_and_training_is_finished(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """int8 that may not lose less than everything fails; the other artifact is there; so are the scores of the test."""
    artifacts = ["onnx", "onnx-int8"]
    file = with_export(config, tmp_path / "c.yaml", artifacts=artifacts, max_drop=-2.0)
    run = train(file, tmp_path / "runs")
    assert_untouched()
    printed = capfd.readouterr().out
    assert "export failed: error: onnx-int8: val/accuracy is worse by" in printed
    assert (run.folder / "metrics.json").exists()
    assert (run.folder / "export" / "model.onnx").exists()
    assert not (run.folder / "export" / "model-int8.onnx").exists()


def test_fast_dev_run(config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from project.__main__ import main

    file = with_export(config, tmp_path / "c.yaml")
    assert (
        main(["fit", "--config", str(file), "--runs_dir", str(tmp_path / "r"), "--trainer.fast_dev_run", "true"]) == 0
    )
    assert "export: skipped under fast_dev_run" in capfd.readouterr().out
    assert_untouched()
    assert not list(tmp_path.glob("r/**/export"))


def test_missing_package_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("project.export.artifacts.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[export\]'"):
        Export().setup(Trainer(logger=False, accelerator="cpu"), LightningModule(), "fit")
    Export().setup(Trainer(logger=False, accelerator="cpu"), LightningModule(), "test")


def test_without_a_run(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    trainer = Trainer(logger=False, accelerator="cpu", default_root_dir=tmp_path)
    Export().on_fit_end(trainer, LightningModule())
    assert lines() == ["export failed: it needs a run's folder with a checkpoint, as `python -m project fit` makes"]


class Online:
    """Stands for a W&B run with an account."""

    offline = False
    disabled = False

    def __init__(self) -> None:
        self.artifacts: list[Any] = []

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)


class Logger(WandbLogger):
    def __init__(self, experiment: Any) -> None:
        self.run, self.tables = experiment, []

    @property
    def experiment(self) -> Any:
        return self.run

    def log_table(self, key: str, columns: Any = None, data: Any = None, **kwargs: Any) -> None:  # type: ignore[override]
        self.tables.append((key, columns, data))


@pytest.mark.parametrize("offline", [True, False])
def test_wandb(bundle: Bundle, offline: bool) -> None:
    experiment = Online()
    experiment.offline = offline
    logger = Logger(experiment)
    trainer = Trainer(logger=False, accelerator="cpu")
    trainer.loggers = [logger]
    Export()._log(trainer, bundle.run)
    ((key, columns, rows),) = logger.tables
    assert key == "export"
    assert columns[0] == "artifact"
    assert [row[0] for row in rows] == ["eager", *bundle.manifest["artifacts"]]
    assert len(experiment.artifacts) == (0 if offline else 1)
    if not offline:
        names = {path.name for path in bundle.folder.iterdir()}
        assert set(experiment.artifacts[0].manifest.entries) == names


def test_wandb_that_refuses(bundle: Bundle, lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota may be spent; that is no failure of the export."""

    def refuse(self: Online, artifact: Any) -> None:
        raise OSError("quota exceeded")

    monkeypatch.setattr(Online, "log_artifact", refuse)
    trainer = Trainer(logger=False, accelerator="cpu")
    trainer.loggers = [Logger(Online())]
    Export()._log(trainer, bundle.run)
    assert lines() == [f"W&B did not take the bundle (OSError: quota exceeded); it is in {bundle.folder}"]


@pytest.mark.slow
@pytest.mark.parametrize("max_drop", ["1.0", "-2.0"])
def test_two_processes(
    config: Path, tmp_path: Path, max_drop: str, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Rank zero exports; the other waits, and nobody hangs when it fails."""
    content = yaml.safe_load(config.read_text())
    content["trainer"] |= {"devices": 2, "strategy": "ddp", "max_epochs": 1}
    init_args = {"artifacts": ["onnx", "onnx-int8"], "max_drop": float(max_drop)}
    content["trainer"]["callbacks"].append({"class_path": "project.callbacks.Export", "init_args": init_args})
    (tmp_path / "ddp.yaml").write_text(yaml.safe_dump(content))
    done = shell("fit", "--config", str(tmp_path / "ddp.yaml"), "--runs_dir", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("runs/*/*/export/manifest.json")
    manifest = json.loads(file.read_text())
    failed = ["onnx-int8"] if max_drop == "-2.0" else []
    assert list(manifest["failed"]) == failed
    assert done.stdout.count("export failed") == len(failed)
    assert (Run.open(file.parent).folder / "metrics.json").exists()


SHARDED = """
name: sharded
trainer:
  max_epochs: 1
  accelerator: cpu
  devices: 2
  precision: 32-true
  logger: false
  strategy:
    class_path: lightning.pytorch.strategies.ModelParallelStrategy
    init_args:
      data_parallel_size: 2
      tensor_parallel_size: 1
      process_group_backend: gloo
      save_distributed_checkpoint: false
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {filename: best, monitor: val/nll}
    - class_path: project.callbacks.Export
      init_args: {artifacts: [onnx, pt2]}
model: {class_path: tests.export.custom.Sharded}
data: {class_path: tests.export.custom.Data}
"""


@pytest.mark.slow
def test_sharded_weights(tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """FSDP2 in two processes: what is exported is the whole network."""
    (tmp_path / "c.yaml").write_text(SHARDED)
    done = shell("fit", "--config", str(tmp_path / "c.yaml"), "--runs_dir", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("runs/*/*/export/manifest.json")
    manifest = json.loads(file.read_text())
    assert list(manifest["artifacts"]) == ["onnx", "pt2"]
    program = torch.export.load(file.with_name("model.pt2"))
    assert program.state_dict["hidden.weight"].shape == (16, 5)


def test_checkpoints_in_pieces_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before training, where they are not written whole or not at all."""
    from project.__main__ import main

    (tmp_path / "c.yaml").write_text(SHARDED.replace("save_distributed_checkpoint: false", ""))
    assert main(["fit", "--config", str(tmp_path / "c.yaml"), "--runs_dir", str(tmp_path / "runs")]) == 1
    assert capsys.readouterr().err == (
        "error: ModelParallelStrategy would write checkpoints in pieces that may be left half written: "
        "give it save_distributed_checkpoint false, or take project.strategies.ModelParallel\n"
    )
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["half", "compiled", "averaged"])
def test_trainings_of_other_kinds(config: Path, tmp_path: Path, change: str) -> None:
    """bf16-true; a network compiled in place by a callback; averaged weights, Export before the averaging."""
    content = yaml.safe_load(config.read_text())
    extra = {
        "half": {},
        "compiled": {"class_path": "tests.export.test_callback.CompileInPlace"},
        "averaged": {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {"decay": 0.9}},
    }[change]
    if change == "half":
        content["trainer"]["precision"] = "bf16-true"
    content["trainer"]["max_epochs"] = 2
    content["trainer"]["callbacks"] += [
        {"class_path": "project.callbacks.Export", "init_args": {"artifacts": ["onnx", "torchscript", "pt2"]}},
        *([extra] if extra else []),
    ]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(content))
    run = train(tmp_path / "c.yaml", tmp_path / "runs")
    manifest = json.loads((run.folder / "export" / "manifest.json").read_text())
    assert list(manifest["artifacts"]) == ["onnx", "torchscript", "pt2"]
    assert {f["weights_sha256"] for f in manifest["artifacts"].values()} == {manifest["checkpoint"]["weights_sha256"]}


class CompileInPlace(Callback):
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.network.compile(backend="eager")  # type: ignore[operator, union-attr]
