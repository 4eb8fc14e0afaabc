"""Two processes train as one does, and end together, whatever befalls one of them."""

import csv
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from project.data import DigitsData
from project.tasks import SequenceClassification
from tests.conftest import Together
from tests.e2e.conftest import TINY
from tests.processes import free_port, torchrun

pytestmark = pytest.mark.slow

Results = list[tuple[int, str]]
Start = Callable[..., Results]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits without dropout in float32, every step in the CSV: 26 batches of 50 an epoch."""
    encoder = {"d_model": 32, "num_layers": 1, "num_heads": 2, "max_length": 8, "dropout": 0.0}
    model = {
        "encoder": {"class_path": "project.nn.Encoder", "init_args": encoder},
        "embedding_dropout": 0.0,
        "head_dropout": 0.0,
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 2e-3}},
    }
    content: dict[str, Any] = TINY | {
        "trainer": TINY["trainer"] | {"max_epochs": 2, "log_every_n_steps": 1, "precision": "32-true"},
        "model": {"class_path": "project.tasks.SequenceClassification", "init_args": model},
        "data": {"class_path": "project.data.DigitsData", "init_args": {"batch_size": 50}},
    }
    file = tmp_path_factory.mktemp("digits") / "digits.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def start(digits: Path, together: Together) -> Start:
    """Fits that configuration into a folder, in processes that torchrun or srun seem to have started, without W&B."""

    def run(
        folder: Path, *options: str, nodes: int = 1, devices: int = 2, wandb: bool = False, slurm: Path | None = None
    ) -> Results:
        words = ["fit", "--config", str(digits), "--run", str(folder), "--ckpt_path", "auto"]
        words += ["--trainer.devices", str(devices), "--trainer.num_nodes", str(nodes), "--trainer.strategy", "ddp"]
        if not wandb:
            words += ["--trainer.logger", "project.loggers.MetricsCSV"]
        ranks = torchrun(nodes, devices) if slurm is None else srun(nodes, devices, slurm)
        return together([(rank, [*words, *options]) for rank in ranks])

    return run


def srun(nodes: int, devices: int, folder: Path) -> list[dict[str, str]]:
    """What SLURM would have in the environment of each process, with the folder of an scontrol in its path."""
    fixed = {"NTASKS": nodes * devices, "NTASKS_PER_NODE": devices, "JOB_ID": 4217, "JOB_NAME": "train"}
    fixed |= {"NODELIST": "localhost"}
    place = {"MASTER_PORT": free_port(), "PATH": f"{folder}:{os.environ['PATH']}"}
    ranks = [{"PROCID": i, "LOCALID": i % devices, "NODEID": i // devices} for i in range(nodes * devices)]
    return [place | {f"SLURM_{name}": str(value) for name, value in (fixed | rank).items()} for rank in ranks]


def columns(run: Path, *names: str) -> Tensor:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return torch.tensor([[float(row[name]) for row in rows if row[name]] for name in names])


@pytest.mark.parametrize(("nodes", "devices"), [(1, 2), (2, 1)])
def test_two_processes_are_one_with_the_same_batches(nodes: int, devices: int, start: Start, tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    assert start(two, nodes=nodes, devices=devices, wandb=True) == [(0, ""), (0, "")]
    assert start(one, "--trainer.accumulate_grad_batches", "2", devices=1) == [(0, "")]
    curves = [columns(run, "train/loss") for run in (two, one)]
    assert curves[0].shape == (1, 26) and curves[0][0, -1] < curves[0][0, 0] - 0.2
    torch.testing.assert_close(*curves, rtol=0, atol=1e-5)
    scores = [columns(run, "val/loss", "val/accuracy", "val/macro_f1") for run in (two, one)]
    torch.testing.assert_close(*scores, rtol=0, atol=1e-5)
    tests = [json.loads((run / "metrics.json").read_text()) for run in (two, one)]
    assert tests[0] == pytest.approx(tests[1], abs=1e-5)
    assert tests[0]["test/accuracy"] == tests[1]["test/accuracy"]
    assert (two / "confusion.csv").read_text() == (one / "confusion.csv").read_text()
    assert len(list(two.glob("wandb/offline-run-*"))) == 1


class Unused(SequenceClassification):
    """Has weights that its loss does not use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.network.extra = nn.Linear(3, 3)


def test_a_parameter_without_gradient_is_named(start: Start, tmp_path: Path) -> None:
    results = start(tmp_path / "run", "--model", "tests.e2e.test_processes.Unused")
    assert [status for status, _ in results] == [1, 1]
    (line,) = results[0][1].splitlines()
    assert line.startswith("error: ") and "no gradient reaches network.extra.weight, network.extra.bias" in line


class Fail(Callback):
    """On one process, at the sixth step."""

    def __init__(self, rank: int, how: str) -> None:
        self.rank, self.how = rank, how

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == self.rank and trainer.global_step == 5:
            if self.how == "raise":
                raise ValueError("this is the cause")
            os.kill(os.getpid(), getattr(signal, self.how))


def fail(rank: int, how: str) -> list[str]:
    callback = {"class_path": "tests.e2e.test_processes.Fail", "init_args": {"rank": rank, "how": how}}
    return ["--trainer.callbacks+", json.dumps(callback)]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_failure_is_the_last_thing_shown(rank: int, start: Start, tmp_path: Path) -> None:
    results = start(tmp_path / "run", *fail(rank, "raise"))
    assert [status for status, _ in results] == [1, 1]
    assert "Traceback" in results[rank][1] and results[rank][1].endswith("ValueError: this is the cause\n")
    assert results[1 - rank][1] == ("error: process 1: ValueError: this is the cause\n" if rank == 1 else "")


def test_a_process_that_is_killed_ends_the_others(start: Start, tmp_path: Path) -> None:
    results = start(tmp_path / "run", *fail(1, "SIGKILL"))
    assert [status for status, _ in results] == [1, -signal.SIGKILL]
    (line,) = results[0][1].splitlines()
    assert line.startswith("error: another process has ended without a word")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_saves_and_ends_all(rank: int, start: Start, tmp_path: Path) -> None:
    results = start(tmp_path / "run", *fail(rank, "SIGTERM"))
    assert [status for status, _ in results] == [143, 143]
    assert results[0][1] == "stopped by SIGTERM, saved at step 6\n"
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 6


def test_slurms_signal_saves_and_queues_again_and_the_next_job_goes_on(start: Start, tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/queued")
    scontrol.chmod(0o755)
    results = start(tmp_path / "run", *fail(0, "SIGUSR1"), slurm=tmp_path)
    assert [status for status, _ in results] == [128 + signal.SIGUSR1, 143]  # SLURM would have told both
    assert [error for _, error in results] == ["stopped by SIGUSR1, saved at step 6\n", ""]
    assert (tmp_path / "queued").read_text() == "requeue 4217\n"
    assert [path.name for path in tmp_path.glob("run/**/*.ckpt")] == ["last.ckpt"]
    assert [status for status, _ in start(tmp_path / "run", slurm=tmp_path)] == [0, 0]
    assert columns(tmp_path / "run", "train/loss").shape == (1, 26)


class Open(IterableDataset[dict[str, Tensor]]):
    """As many batches as it was given, without a length."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.batches)


class UnequalDigits(DigitsData):
    """The process of rank 1 has five batches, the other has four."""

    def __init__(self, sized: bool, batch_size: int = 50) -> None:
        super().__init__(batch_size)
        self.sized = sized

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        batches = list(super().train_dataloader())[: 4 + self.trainer.global_rank]
        return DataLoader(batches if self.sized else Open(batches), batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("sized", [True, False])
def test_unequal_data_is_refused(sized: bool, start: Start, tmp_path: Path) -> None:
    data = ["--data", "tests.e2e.test_processes.UnequalDigits", "--data.sized", str(sized).lower()]
    results = start(tmp_path / "run", *data, "--trainer.max_steps", "99", "--trainer.use_distributed_sampler", "false")
    assert [status for status, _ in results] == [1, 1]
    expected = "the processes have 4, 5 training batches" if sized else "after training batch 4 the data of some"
    assert results[0][1].startswith("error: ") and expected in results[0][1]


class Spike(SequenceClassification):
    """The loss of process 1's batch leaps at step 8."""

    def weighted_loss(self, loss_sum: Tensor, weight: Tensor | int) -> Tensor:
        leap = self.global_step == 8 and self.trainer.global_rank == 1
        return super().weighted_loss(loss_sum * (100.0 if leap else 1.0), weight)


def test_a_spike_of_one_process_is_skipped_by_all(start: Start, tmp_path: Path) -> None:
    skip = {"class_path": "project.callbacks.SkipSpikes", "init_args": {"factor": 3.0, "window": 20}}
    options = ["--trainer.callbacks+", json.dumps(skip), "--model", "tests.e2e.test_processes.Spike"]
    (status, error), _ = start(tmp_path / "run", *options)
    assert status == 0, error
    assert columns(tmp_path / "run", "train/skipped_steps").tolist() == [[0.0] * 8 + [1.0] * 18]
