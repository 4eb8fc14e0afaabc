"""Examples and rates are those that can be counted by hand, over processes, validations and stops."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

import project.callbacks.throughput as throughput
from project.callbacks import Throughput
from project.callbacks.throughput import weights_of_products
from project.machine import matmul_peak

SIZES = [3, 5, 2, 6, 4, 1]  # examples of each batch, with one token more than their row's number


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.linear = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        return self.linear(self.embedding(tokens)).square().mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Clock(Callback):
    """A training batch takes a second, and a validation a hundred."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(throughput.time, "perf_counter", lambda: self.now)

    def on_train_batch_start(self, *_: Any) -> None:
        self.now += 1.0

    def on_validation_batch_end(self, *_: Any) -> None:
        self.now += 100.0


def batch(size: int) -> dict[str, Tensor]:
    tokens = torch.zeros(size, size, dtype=torch.int64)
    return {"tokens": tokens, "padding_mask": torch.ones(size, size, dtype=torch.bool).tril()}


def loader(batches: list[Any]) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def fit(folder: Path, batches: list[Any], *callbacks: Callback, **options: Any) -> list[dict[str, str]]:
    ckpt_path = options.pop("ckpt_path", None)
    settings: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "log_every_n_steps": 1, **options}
    trainer = Trainer(
        callbacks=list(callbacks),
        logger=CSVLogger(folder, "", ""),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **settings,
    )
    trainer.fit(Module(), loader(batches), loader([batch(2)]), ckpt_path=ckpt_path, weights_only=True)
    if ckpt_path is None and trainer.world_size == 1:
        trainer.save_checkpoint(folder / "end.ckpt")
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def column(rows: list[dict[str, str]], name: str) -> dict[int, float]:
    return {int(row["step"]): float(row[name]) for row in rows if row.get(name)}


def test_examples_tokens_and_the_share_of_the_peak_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "matmul_peak", lambda dtype, device: 1000.0)
    rows = fit(tmp_path, [batch(size) for size in SIZES], Clock(monkeypatch), Throughput(2))
    assert column(rows, "examples") == {1: 8, 3: 16, 5: 21, 7: 29, 9: 37, 11: 42}
    tokens = [size * (size + 1) / 2 for size in SIZES]
    rates = {2 * i + 1: (tokens[2 * i % 6] + tokens[2 * i % 6 + 1]) / 2 for i in range(6)}
    assert column(rows, "speed/tokens_per_second") == rates
    assert column(rows, "speed/examples_per_second")[7] == 4.0
    weights = 4 * 2 + 2
    assert column(rows, "speed/share_of_peak") == pytest.approx({k: 6 * weights * v / 1000 for k, v in rates.items()})
    assert all(0.05 < value < 100 for value in column(rows, "speed/peak_memory_gb").values())
    assert any(row["val/loss"] == "" and row["examples"] and not row["speed/tokens_per_second"] for row in rows)


def test_a_run_that_goes_on_counts_on(tmp_path: Path) -> None:
    fit(tmp_path / "a", [batch(size) for size in SIZES], Throughput(4))
    rows = fit(
        tmp_path / "b", [batch(size) for size in SIZES], Throughput(4), max_epochs=3, ckpt_path=tmp_path / "a/end.ckpt"
    )
    assert column(rows, "examples") == {15: 58, 17: 63}


def test_batches_of_another_kind_are_counted_without_tokens(tmp_path: Path) -> None:
    rows = fit(tmp_path, [torch.zeros(size, 2, dtype=torch.int64) for size in SIZES], Throughput(3), max_epochs=1)
    assert column(rows, "examples") == {2: 10, 5: 21}
    assert set(column(rows, "speed/examples_per_second")) == {2, 5} and "speed/tokens_per_second" not in rows[0]


def test_two_processes_count_together(tmp_path: Path) -> None:
    rows = fit(tmp_path, [batch(size) for size in SIZES], Throughput(3), strategy="ddp_fork", devices=2, max_epochs=1)
    assert column(rows, "examples") == {2: 20, 5: 42}


def test_embedding_tables_tied_or_not_are_no_products() -> None:
    module = Module()
    module.out = nn.Linear(4, 11, bias=False)
    module.out.weight = module.embedding.weight
    assert weights_of_products(module) == 10


def test_the_peak_leaves_random_numbers_as_they_are() -> None:
    before = torch.get_rng_state()
    assert matmul_peak(torch.float32, sizes=[(64, 64, 64)]) > 1e6
    assert torch.equal(torch.get_rng_state(), before)
