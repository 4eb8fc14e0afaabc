"""What is shown counts epochs from one."""

import pytest
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from project.callbacks.progress import LiveProgress
from tests.tasks.test_base import make_batch, make_task


def test_the_live_bar_counts_epochs_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[LiveProgress()], logger=False, enable_checkpointing=False
    )
    trainer.fit(make_task(), DataLoader([make_batch(2, 5, 0)], batch_size=None))  # type: ignore[arg-type]
    shown = "".join(capsys.readouterr())
    assert "Epoch 1:" in shown and "Epoch 2:" in shown and "Epoch 0" not in shown
