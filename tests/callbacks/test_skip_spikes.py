"""A step whose loss leaps changes nothing, is named and counted, and a run that goes on knows of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from project.callbacks import SkipSpikes
from project.tasks import SequenceClassification
from tests.tasks.test_base import make_batch, make_task

STEPS = 6  # of an epoch


class Record(Callback):
    """Weights and moments after each step, the count of those skipped, and a checkpoint after the first epoch."""

    def __init__(self, file: Path) -> None:
        self.file, self.states, self.skipped = file, list[list[Tensor]](), list[float]()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        moments = [state["exp_avg"] for state in trainer.optimizers[0].state.values()]
        self.states.append([value.detach().clone() for value in (*pl_module.parameters(), *moments)])
        self.skipped.append(trainer.callback_metrics["train/skipped_steps"].item())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self.file)


def fit(leaps: set[int], file: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Record:
    """Two epochs; at some steps the loss is a hundred times what it is."""
    weighted_loss = SequenceClassification.weighted_loss

    def leaping(task: SequenceClassification, loss_sum: Tensor, weight: int) -> Tensor:
        return weighted_loss(task, loss_sum * (100.0 if task.global_step in leaps else 1.0), weight)

    record = Record(file)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        callbacks=[SkipSpikes(factor=3.0, window=8), record],
        enable_checkpointing=False,
        **quiet,
    )
    batches = DataLoader([make_batch(6, 7, seed) for seed in range(STEPS)], batch_size=None)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(SequenceClassification, "weighted_loss", leaping)
        task = make_task(optimizer=lambda params: torch.optim.AdamW(params, lr=0.01))
        trainer.fit(task, batches, weights_only=True, **options)
    return record


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_only_the_leap_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("project.callbacks.skip_spikes.log.propagate", True)
    record = fit({4}, tmp_path / "epoch.ckpt", monkeypatch)
    unchanged = [same(a, b) for a, b in zip(record.states, record.states[1:], strict=False)]
    assert unchanged == [step == 4 for step in range(1, 2 * STEPS)]
    assert record.skipped == [0.0] * 4 + [1.0] * 8
    (line,) = {r.message for r in caplog.records if r.name == "project"}
    assert line.startswith("skipped optimizer step 4 in epoch 0: its loss ")
    assert line.endswith("training rows: [0, 1, 2, 3, 4, 5]")


def test_a_run_that_goes_on_skips_as_the_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit({4, STEPS}, tmp_path / "epoch.ckpt", monkeypatch)
    again = fit({4, STEPS}, tmp_path / "none.ckpt", monkeypatch, ckpt_path=tmp_path / "epoch.ckpt")
    assert again.skipped == whole.skipped[STEPS:] == [2.0] * STEPS
    assert all(same(a, b) for a, b in zip(again.states, whole.states[STEPS:], strict=True))


def test_a_loss_that_stays_high_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = fit(set(range(4, 99)), tmp_path / "epoch.ckpt", monkeypatch)
    assert record.skipped == [0.0] * 4 + [1.0, 2.0, 3.0, 4.0] + [4.0] * 4


@pytest.mark.parametrize("options", [{"factor": 1.0}, {"window": 3}])
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"factor .* must exceed 1, and window"):
        SkipSpikes(**options)
