"""The real command line on small data."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from project.__main__ import main
from project.runs import Run

ROOT = Path(__file__).parents[2]

TINY = {
    "name": "tiny",
    "seed_everything": 1,
    "trainer": {
        "max_epochs": 3,
        "accelerator": "cpu",
        "devices": 1,
        "log_every_n_steps": 2,
        "callbacks": [
            {
                "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                "init_args": {
                    "filename": "best",
                    "monitor": "val/accuracy",
                    "mode": "max",
                    "enable_version_counter": False,
                },
            }
        ],
    },
    "model": {
        "class_path": "project.tasks.SequenceClassification",
        "init_args": {
            "encoder": {
                "class_path": "project.nn.Encoder",
                "init_args": {"d_model": 32, "num_layers": 1, "num_heads": 2, "max_length": 32},
            },
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
        },
    },
}


@pytest.fixture(scope="session")
def config(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that trains in two seconds."""
    folder = tmp_path_factory.mktemp("config")
    source = {"class_path": "project.data.TableFile", "init_args": {"train": str(table)}}
    init_args = {
        "source": source,
        "vocab_size": 300,
        "max_length": 32,
        "tokens_per_batch": 128,
        "cache_dir": str(folder / "cache"),
    }
    data = {"class_path": "project.data.TextClassificationData", "init_args": init_args}
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump({**TINY, "data": data}))
    return file


@pytest.fixture(scope="session")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of that configuration. Tests must not change it."""
    return train(config, tmp_path_factory.mktemp("runs"))


def train(config: Path, runs: Path, *options: str) -> Run:
    before = set(runs.glob("*/*/config.yaml"))
    assert main(["fit", "--config", str(config), "--runs_dir", str(runs), *options]) == 0
    assert Run.current() is None
    (file,) = set(runs.glob("*/*/config.yaml")) - before
    return Run(file.parent)


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m project ...` as a user would, in a process of its own."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "project", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=environment.pop("cwd", ROOT),
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            timeout=300,
        )

    return run
