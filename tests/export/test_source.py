"""Which weights go out, whatever the training did to the live module."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from torch import Tensor

from project.errors import UserError
from project.export.artifacts import digest, fingerprint
from project.export.bundle import monitored, validation_batches
from project.export.parity import Recorder, validate
from project.export.source import Source
from project.runs import Run
from project.sharded_checkpoint import save
from tests.e2e.conftest import train
from tests.export.conftest import custom_run
from tests.export.custom import Data, Regression

AVERAGE = {
    "class_path": "lightning.pytorch.callbacks.EMAWeightAveraging",
    "init_args": {"decay": 0.9},
}


def rewritten(run: Run, path: Path, change: Any) -> Path:
    """A copy of the run's best checkpoint with its weights changed."""
    content = torch.load(run.checkpoint(), weights_only=True)
    content["state_dict"] = change(content["state_dict"])
    torch.save(content, path)
    return path


def weights(state: dict[str, Tensor]) -> dict[str, str]:
    prefix = "network."
    return {k.removeprefix(prefix): digest(v.float().numpy()) for k, v in state.items() if k.startswith(prefix)}


def test_weights_are_the_checkpoints(finished: Run, source: Source) -> None:
    assert source.weights == weights(torch.load(finished.checkpoint(), weights_only=True)["state_dict"])
    assert not source.network.training
    assert {p.dtype for p in source.network.parameters()} == {torch.float32}


def test_best_and_not_last(float_config: Path, tmp_path: Path) -> None:
    """The greatest loss is the best here, so that the first epoch wins."""
    content = yaml.safe_load(float_config.read_text())
    content["trainer"]["callbacks"][0]["init_args"]["monitor"] = "val/loss"
    config = tmp_path / "first.yaml"
    config.write_text(yaml.safe_dump(content))
    run = train(config, tmp_path / "runs")
    best, last = (Source(run, run.checkpoint(name)) for name in ("best", "last"))
    assert (best.epoch, last.epoch) == (0, 2)
    assert best.weights == weights(torch.load(run.checkpoint(), weights_only=True)["state_dict"])
    assert not set(best.weights.values()) & set(last.weights.values())


def test_one_changed_number_is_another_fingerprint(finished: Run, source: Source, tmp_path: Path) -> None:
    def change(state: dict[str, Tensor]) -> dict[str, Tensor]:
        state["network.head.linear.weight"][0, 0] += 1e-6
        return state

    other = Source(finished, rewritten(finished, tmp_path / "changed.ckpt", change))
    assert fingerprint(other.weights.values()) != fingerprint(source.weights.values())
    changed = {name for name in source.weights if source.weights[name] != other.weights[name]}
    assert changed == {"head.linear.weight"}


def test_digest_knows_no_orientation() -> None:
    matrix = torch.randn(3, 5).numpy()
    assert digest(matrix) == digest(matrix.T) != digest(matrix[::-1])


def test_names_of_a_compiled_module(finished: Run, source: Source, tmp_path: Path) -> None:
    def wrap(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace("network.", "network._orig_mod."): value for name, value in state.items()}

    assert Source(finished, rewritten(finished, tmp_path / "compiled.ckpt", wrap)).weights == source.weights


def test_half_precision_is_carried_over_exactly_and_its_buffers_are_not(finished: Run, tmp_path: Path) -> None:
    def halve(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.bfloat16() if value.is_floating_point() else value for name, value in state.items()}

    source = Source(finished, rewritten(finished, tmp_path / "half.ckpt", halve))
    table = source.network.get_buffer("encoder.position.table")
    assert table.dtype == torch.float32
    assert not torch.equal(table, table.bfloat16().float())
    stored = torch.load(tmp_path / "half.ckpt", weights_only=True)["state_dict"]["network.head.linear.weight"]
    assert stored.dtype == torch.bfloat16
    assert torch.equal(source.network.get_parameter("head.linear.weight"), stored.float())


def test_damaged_checkpoint(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "half.ckpt").write_bytes(finished.checkpoint().read_bytes()[:1000])
    for name in ("half.ckpt", "none.ckpt"):
        with pytest.raises(UserError, match=rf"{name} is damaged or no checkpoint: "):
            Source(finished, tmp_path / name)


def test_sharded_checkpoint_is_gathered(finished: Run, source: Source, tmp_path: Path) -> None:
    save(torch.load(finished.checkpoint(), weights_only=True) | {"optimizer_states": []}, tmp_path / "best.ckpt", True)
    assert (tmp_path / "best.ckpt").is_dir()
    assert Source(finished, tmp_path / "best.ckpt").weights == source.weights


@pytest.mark.parametrize("first", ["average", "checkpoint"])
def test_averaged_weights_in_either_order(float_config: Path, tmp_path: Path, first: str) -> None:
    content = yaml.safe_load(float_config.read_text())
    callbacks = content["trainer"]["callbacks"]
    content["trainer"]["callbacks"] = [AVERAGE, *callbacks] if first == "average" else [*callbacks, AVERAGE]
    config = tmp_path / "average.yaml"
    config.write_text(yaml.safe_dump(content))
    run = train(config, tmp_path / "runs")

    checkpoint = torch.load(run.checkpoint(), weights_only=True)
    source = Source(run, run.checkpoint())
    assert source.weights == weights(checkpoint["state_dict"])
    assert not set(source.weights.values()) & set(weights(checkpoint["current_model_state"]).values())
    # What earned the score that this checkpoint was chosen by is what goes out.
    (state,) = [s for name, s in checkpoint["callbacks"].items() if name.startswith("ModelCheckpoint")]
    metric = monitored(run.config)
    assert metric is not None
    scores = validate(source.task, Recorder(source), validation_batches(run))
    assert scores[metric.name] == pytest.approx(float(state["best_model_score"]), abs=1e-7)


def test_network_that_compiles_itself(tmp_path: Path) -> None:
    run = custom_run(tmp_path, "Compiled")
    source = Source(run, run.checkpoint())
    state = torch.load(run.checkpoint(), weights_only=True)["state_dict"]
    assert "network._orig_mod.mean.weight" in state
    assert torch.equal(source.network.get_parameter("mean.weight"), state["network._orig_mod.mean.weight"])
    assert source.network.hidden._compiled_call_impl is None
    assert set(source.weights) == {f"{part}.{p}" for part in ("hidden", "mean", "scale") for p in ("weight", "bias")}


def test_task_that_does_not_say_how(tmp_path: Path) -> None:
    run = custom_run(tmp_path, "Silent")
    with pytest.raises(UserError, match="Silent does not say how it is exported: give it a method export_spec"):
        Source(run, run.checkpoint())


def test_task_built_by_hand(finished: Run, tmp_path: Path) -> None:
    trainer = Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Regression(), Data())
    (file,) = tmp_path.glob("checkpoints/*.ckpt")
    with pytest.raises(
        UserError, match="does not say how its task is built; export needs a run of `python -m project fit`"
    ):
        Source(finished, file)
