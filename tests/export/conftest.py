"""A finished run and its bundle, once for all tests of this folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from project.export.bundle import export, monitored, validation_batches
from project.export.parity import Batch, Examination
from project.export.source import Source
from project.runs import Run
from tests.e2e.conftest import config, finished, shell, train

__all__ = ["config", "finished", "shell", "train"]


@dataclass
class Bundle:
    run: Run
    folder: Path
    manifest: dict[str, Any]


@pytest.fixture(scope="session")
def bundle(finished: Run) -> Bundle:
    """The default artifacts of the finished run. int8 may lose anything: a network this small has nothing to spare."""
    manifest = export(finished, finished.checkpoint(), max_drop=1.0)
    return Bundle(finished, finished.folder / "export", manifest)


@pytest.fixture(scope="session")
def source(finished: Run) -> Source:
    return Source(finished, finished.checkpoint())


@pytest.fixture(scope="session")
def batches(finished: Run) -> list[Batch]:
    return validation_batches(finished)


@pytest.fixture(scope="session")
def examination(finished: Run, source: Source, batches: list[Batch]) -> Examination:
    return Examination(source, batches, monitored(finished.config), max_drop=1.0)


CUSTOM = """
name: custom
trainer:
  max_epochs: 1
  accelerator: cpu
  devices: 1
  precision: 32-true
  logger: false
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{filename: best, monitor: val/nll}}
model: {{class_path: tests.export.custom.{task}}}
data: {{class_path: tests.export.custom.Data}}
"""


def custom_run(folder: Path, task: str) -> Run:
    """A run of one of the tasks in custom.py."""
    config = folder / "custom.yaml"
    config.write_text(CUSTOM.format(task=task))
    return train(config, folder / "runs")


@pytest.fixture(scope="session")
def float_config(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration in float32, in which scores in training and after are the same to the last digit."""
    content = yaml.safe_load(config.read_text())
    content["trainer"]["precision"] = "32-true"
    file = tmp_path_factory.mktemp("config") / "float.yaml"
    file.write_text(yaml.safe_dump(content))
    return file
