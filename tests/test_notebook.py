"""A run trained and loaded from Python."""

from pathlib import Path

import pytest
import torch

from project.errors import UserError
from project.notebook import CONFIGS, fit, load_run
from project.runs import Run
from tests.e2e.conftest import config, finished, train

__all__ = ["config", "finished", "train"]


def test_a_loaded_run_holds_all_of_it(finished: Run) -> None:
    loaded = load_run(finished.checkpoint())
    assert loaded.run == finished and loaded.config["name"] == "tiny"
    answers = loaded.predict(["a small dog", "old cheese of the"])
    assert [answer["label"] for answer in answers] == ["animal", "food"]
    assert loaded.tokenizer is not None
    tokens = torch.tensor([loaded.tokenizer.encode("a small dog").ids])
    with torch.inference_mode():
        logits = loaded.task.network(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert logits.softmax(-1).max().item() == pytest.approx(answers[0]["probability"], abs=0.02)
    batches = list(loaded.data.test_dataloader())
    assert sum(len(batch["ids"]) for batch in batches) == 60


def test_one_process_trains_runs_one_after_the_other(config: Path, tmp_path: Path) -> None:
    words = ("--config", config, "--runs_dir", tmp_path, "--trainer.max_epochs", "1", "--trainer.logger", "false")
    runs = [fit(*words), fit(*words)]
    assert runs[0].folder != runs[1].folder and all((run.folder / "README.md").is_file() for run in runs)
    assert Run.current() is None
    with pytest.raises(UserError, match="no_such"):
        fit(*words, "--no_such", "1")


def test_there_must_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run"):
        load_run(tmp_path)
    assert (CONFIGS / "quick.yaml").is_file()
