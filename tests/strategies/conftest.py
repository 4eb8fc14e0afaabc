"""Trainings in one process and in several, on the same small data."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Together
from tests.processes import torchrun

# Without dropout and in float32, every step in the CSV. AdamW divides a gradient by its size, also where it is nothing
# but the rounding of zero, as that of a key's bias: eps keeps such from growing.
DIGITS = (
    *("--config", "configs/digits.yaml", "--data.batch_size=100"),
    *("--trainer.accelerator=cpu", "--trainer.precision=32-true"),
    *("--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=1", "--trainer.log_every_n_steps=1"),
    *("--trainer.gradient_clip_val=0.5", "--trainer.logger=project.loggers.MetricsCSV"),
    *("--model.encoder.d_model=16", "--model.encoder.num_layers=3", "--model.optimizer.eps=1e-3"),
    *("--model.encoder.dropout=0", "--model.embedding_dropout=0", "--model.head_dropout=0"),
)

Fit = Callable[..., list[tuple[int, str]]]


@pytest.fixture(scope="session")
def fit(together: Together) -> Fit:
    """Begins a run in a folder or goes on with it, in as many processes as asked for."""

    def run(folder: Path, *options: str, devices: int = 1) -> list[tuple[int, str]]:
        words = ["fit", "--run", str(folder), "--ckpt_path", "auto", *DIGITS, *options, f"--trainer.devices={devices}"]
        return together([(rank, words) for rank in torchrun(1, devices)])

    return run
