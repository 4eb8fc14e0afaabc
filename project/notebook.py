"""A run from Python, for notebooks and scripts: train one, load one."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import project
from project.runs import Run

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule
    from tokenizers import Tokenizer

    from project.tasks import Task

CONFIGS = Path(project.__file__).parents[1] / "configs"

# What follows is imported late, so that Lightning finds this set: its bars are text here.
warnings.filterwarnings("ignore", "IProgress not found")


@dataclass
class LoadedRun:
    """All of a run that one may want to look at.

    Attributes:
        run: its folder.
        config: its configuration.
        task: with the weights of its best checkpoint, on the CPU, in evaluation mode; `task.network` is plain torch.
        tokenizer: None where its data are no texts.
    """

    run: Run
    config: dict[str, Any]
    task: "Task"
    tokenizer: "Tokenizer | None"

    @cached_property
    def data(self) -> "LightningDataModule":
        """The run's data, with its own tokenizer and labels, prepared when first asked for."""
        from project.export.bundle import data_module

        data = data_module(self.run)
        for stage in ("fit", "test"):
            data.setup(stage)
        return data

    def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        """Label and probability of each text."""
        from project.predict import predict_run

        return predict_run(self.run, self.run.checkpoint(), texts)


def load_run(folder: str | Path) -> LoadedRun:
    """A finished run, by its folder or anything in it.

    Raises:
        UserError: there is no run, or it has no best checkpoint.
    """
    from tokenizers import Tokenizer

    run = Run.open(folder)
    file = run.folder / "tokenizer.json"
    return LoadedRun(run, run.config, run.load_task(), Tokenizer.from_file(str(file)) if file.exists() else None)


def fit(*words: str | Path) -> Run:
    """``python -m project fit`` in this process, which can then train the next.

    Args:
        words: as on the command line.

    Raises:
        UserError: bad input.
    """
    from project.cli import main

    return Run(Path(main(["fit", *map(str, words)]).trainer.default_root_dir))
