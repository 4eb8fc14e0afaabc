"""Trainings in one process and in several, on the same small data."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT

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


@pytest.fixture(scope="module")
def fit() -> Iterator[Fit]:
    """Begins a run in a folder or goes on with it, in as many processes as asked for."""
    command = [sys.executable, "-m", "tests.e2e.processes"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    server = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT, env=environment)
    assert server.stdin and server.stdout and server.stdout.readline() == "ready\n"

    def run(folder: Path, *options: str, devices: int = 1) -> list[tuple[int, str]]:
        words = ["fit", "--run", str(folder), "--ckpt_path", "auto", *DIGITS, *options, f"--trainer.devices={devices}"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place: dict[str, str] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        place |= {"WORLD_SIZE": str(devices), "NODE_RANK": "0"} if devices > 1 else {}
        ranks: list[dict[str, Any]] = [{"LOCAL_RANK": str(i)} for i in range(devices)] if devices > 1 else [{}]
        assert server.stdin and server.stdout
        print(json.dumps([(place | rank, words) for rank in ranks]), file=server.stdin, flush=True)
        results = [(status, error) for status, error in json.loads(server.stdout.readline())]
        return results

    yield run
    server.stdin.close()
    server.wait()
