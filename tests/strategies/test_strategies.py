"""Several processes that share a network train it as one process does, and go on from each other's checkpoints."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.distributed.tensor import DTensor

from project.__main__ import main
from project.checkpoint_io import read_checkpoint
from tests.strategies.conftest import Fit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

MESH = "--config=configs/trainer/model_parallel.yaml"
PIPELINE = "--config=configs/trainer/pipeline.yaml"
TENSOR = (MESH, "--trainer.strategy.data_parallel_size=1")
DATA = (MESH, "--trainer.strategy.tensor_parallel_size=1")
ALONE = "--config=configs/trainer/cpu.yaml"
SHARDED = "--trainer.strategy.save_distributed_checkpoint=true"
HALVES = ("--data.batch_size=50", "--model.members=2")
ACCUMULATED = (*HALVES, "--trainer.accumulate_grad_batches=2")
LONGER = "--trainer.max_epochs=2"


@pytest.fixture(scope="module")
def one(fit: Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process does: an epoch, and another; the same with an ensemble and two half batches a step."""
    folder = tmp_path_factory.mktemp("one")
    for name, options in {"whole": (), "halves": ACCUMULATED}.items():
        done(fit(folder / name, *options))
        shutil.copytree(folder / name, folder / f"{name}, longer")
        done(fit(folder / f"{name}, longer", *options, LONGER))
    return folder


def done(results: list[tuple[int, str]]) -> None:
    assert [status for status, _ in results] == [0] * len(results), results


def copied(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to))


def assert_same(actual: Path, expected: Path) -> None:
    """Curves, scores, counts of the test, weights and the optimizer's state, to 1e-5."""
    curves = [columns(run, "train/loss", "val/loss") for run in (actual, expected)]
    assert curves[0]["train/loss"][-1] < curves[0]["train/loss"][0] - 0.05
    torch.testing.assert_close(*curves, rtol=0, atol=1e-5)
    scores = [json.loads((run / "metrics.json").read_text()) for run in (actual, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert (actual / "confusion.csv").read_text() == (expected / "confusion.csv").read_text()
    for name in ("best.ckpt", "last.ckpt"):
        contents = [read_checkpoint(run / "checkpoints" / name) for run in (actual, expected)]
        for key in ("state_dict", "optimizer_states"):
            values = [numbers(content[key]) for content in contents]
            torch.testing.assert_close(*values, rtol=0, atol=1e-5)
        assert contents[0]["global_step"] == contents[1]["global_step"]
    assert not list(actual.glob("checkpoints/*.partial")) + list(actual.glob("checkpoints/previous.ckpt"))


def columns(run: Path, *names: str) -> dict[str, Tensor]:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: torch.tensor([float(row[name]) for row in rows if row[name]]) for name in names}


def numbers(tree: Any) -> Any:
    """Without what differs between forms of saving alone: lists for tuples."""
    if isinstance(tree, dict):
        return {key: numbers(value) for key, value in tree.items() if value is not None}
    return [numbers(value) for value in tree] if isinstance(tree, list | tuple) else tree


def test_pipeline(fit: Fit, one: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done(fit(run, PIPELINE, devices=2))
    assert_same(run, one / "whole")
    alone = copied(run, tmp_path / "alone")
    done(fit(run, LONGER, devices=2))
    assert_same(run, one / "whole, longer")
    done(fit(alone, LONGER, ALONE))
    assert_same(alone, one / "whole, longer")


def test_pipeline_goes_on_from_one_process(fit: Fit, one: Path, tmp_path: Path) -> None:
    run = copied(one / "whole", tmp_path / "run")
    done(fit(run, PIPELINE, LONGER, "--trainer.strategy.chunks=3", devices=3))  # of unequal rows, a layer a process
    assert_same(run, one / "whole, longer")


def test_pipeline_of_an_ensemble(fit: Fit, one: Path, tmp_path: Path) -> None:
    run = copied(one / "halves", tmp_path / "run")
    done(fit(run, PIPELINE, *ACCUMULATED, LONGER, devices=2))
    assert_same(run, one / "halves, longer")


def test_tensor_parallel(fit: Fit, one: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done(fit(run, *TENSOR, devices=2))
    assert_same(run, one / "whole")
    done(fit(run, LONGER, devices=2))
    assert_same(run, one / "whole, longer")


def test_sharded_checkpoints(fit: Fit, one: Path, tmp_path: Path) -> None:
    """Written by two processes that share all weights: tested, exported and trained on in one."""
    run = tmp_path / "run"
    done(fit(run, *DATA, *HALVES, SHARDED, devices=2))
    assert {path.name for path in run.glob("checkpoints/*.ckpt/*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}
    assert_same(run, one / "halves")
    assert main(["test", "--run", str(run), ALONE]) == 0
    (scores,) = run.glob("evaluations/test-*.json")
    assert json.loads(scores.read_text())["test/loss"] == pytest.approx(
        json.loads((run / "metrics.json").read_text())["test/loss"], abs=1e-6
    )
    assert main(["export", "--run", str(run), "--artifacts", "pt2"]) == 0
    weights = read_checkpoint(run / "checkpoints" / "best.ckpt")["state_dict"]
    exported = torch.export.load(run / "export" / "model.pt2").state_dict
    torch.testing.assert_close(exported, {k.removeprefix("network."): v for k, v in weights.items()}, rtol=0, atol=0)
    done(fit(run, ALONE, *ACCUMULATED, LONGER))
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert_same(run, one / "halves, longer")


def test_four_processes(fit: Fit, one: Path, tmp_path: Path) -> None:
    """Two by two; and two processes go on from what four wrote in pieces."""
    run = tmp_path / "run"
    done(fit(run, MESH, *HALVES, SHARDED, devices=4))
    assert_same(run, one / "halves")
    done(fit(run, *TENSOR, SHARDED, *ACCUMULATED, LONGER, devices=2))
    assert_same(run, one / "halves, longer")


class Watch(Callback):
    """Compares, between the processes, the masks that the network sees and the weights that all should have alike."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.shares: list[float] = []
        pl_module.network.register_forward_pre_hook(
            lambda _, inputs: self.shares.append(inputs[1].float().mean().item())
        )  # type: ignore[union-attr, operator]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        alike = [p.full_tensor() for p in pl_module.parameters() if isinstance(p, DTensor)]  # none of a stage's own
        seen: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(seen, (self.shares, [p.detach() for p in alike]))
        assert len(set(seen[0][0])) > 1 and seen[0][0] == seen[1][0]
        torch.testing.assert_close(seen[0][1], seen[1][1], rtol=0, atol=0)


@pytest.mark.parametrize("strategy", [(PIPELINE,), TENSOR], ids=["pipeline", "tensor"])
def test_dropout(strategy: tuple[str, ...], fit: Fit, tmp_path: Path) -> None:
    """Processes hide the same words, and do not drift apart by the dropout of what each has whole."""
    dropout = ["--model.word_dropout=0.3", "--model.encoder.dropout=0.3", "--model.embedding_dropout=0.3"]
    watch = "--trainer.callbacks+=tests.strategies.test_strategies.Watch"
    done(fit(tmp_path / "run", *strategy, *dropout, watch, devices=2))


class Poison(Callback):
    """One process gets a batch that is not finite."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == 1 and batch_idx == 3:
            batch["tokens"].fill_(torch.nan)


def test_loss_of_one_process_not_finite(fit: Fit, tmp_path: Path) -> None:
    """All end, though no process could look for the cause alone."""
    results = fit(tmp_path / "run", *DATA, "--trainer.callbacks+=tests.strategies.test_strategies.Poison", devices=2)
    assert [status for status, _ in results] == [1, 1]
    assert "the loss is nan in epoch 0, batch 3" in results[0][1]
    assert "embedding is the first module whose output is not finite" in results[0][1]
