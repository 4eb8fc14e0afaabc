import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer

from benchmarks.loop import BesideBareLoop, times, write_table
from project.data import TableFile, TextClassificationData
from project.nn import Encoder
from project.tasks import SequenceClassification


@pytest.fixture
def data(tmp_path: Path) -> TextClassificationData:
    write_table(tmp_path / "texts.csv", 60)
    return TextClassificationData(TableFile(str(tmp_path / "texts.csv")), vocab_size=200, cache_dir=str(tmp_path / "c"))


def test_bare_loop_takes_the_steps_of_the_trainer(data: TextClassificationData) -> None:
    """Without dropout, and at a constant learning rate, both end at the same weights."""
    torch.manual_seed(0)
    encoder = Encoder(d_model=16, num_layers=1, num_heads=2, dropout=0.0)
    task = SequenceClassification(
        encoder,
        data.labels,
        data.vocab_size,
        embedding_dropout=0.0,
        head_dropout=0.0,
        label_smoothing=0.1,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        warmup_ratio=0.0,
    )
    beside = BesideBareLoop()
    before = task.network.head.linear.weight.detach().clone()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=1,  # the schedule starts at its peak, and falls from then on
        gradient_clip_val=0.01,
        log_every_n_steps=1,
        callbacks=[beside],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, data)
    assert len(beside.pairs) == len(beside.tokens_per_second) == 1
    assert not torch.equal(task.network.head.linear.weight, before)
    for bare, own in zip(beside.bare.network.parameters(), task.network.parameters(), strict=True):
        torch.testing.assert_close(bare, own)


def test_overhead_is_of_all_pairs_but_the_first() -> None:
    beside = BesideBareLoop()
    beside.pairs = [(9.0, 1.0), (1.0, 1.0), (2.2, 2.0), (1.5, 1.0)]
    assert beside.overhead == pytest.approx([0.05, 0.1, 0.3])


def test_times_are_measured_from_the_start_of_the_command() -> None:
    start = time.time()
    script = "import time; t = time.time(); time.sleep(0.3); print('noise\\nclock: left', t)"
    measured = times(["-c", script])
    assert set(measured) == {"left", "leaving"}
    assert 0 < measured["left"] < time.time() - start
    assert measured["leaving"] >= 0.3
    with pytest.raises(RuntimeError, match=r"failed: .*boom"):
        times(["-c", "raise SystemExit('boom')"])


def test_table_has_distinct_texts_in_three_classes(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", 90)
    table = pd.read_csv(tmp_path / "t.csv")
    assert table["text"].nunique() == 90
    assert table["label"].value_counts().to_dict() == {0: 30, 1: 30, 2: 30}


@pytest.mark.slow
def test_everything_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loop", "--quick"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    table = [[c.strip() for c in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
    measured = {row[0]: row[1] for row in table if len(row) == 3}
    assert measured["training loop over the bare loop"].endswith("%")
    for what in ("loader", "bare loop", "command to first step", "importing torch and lightning"):
        assert float(measured[what].split()[0].replace(",", "")) > 0
    growth = [row for row in table if len(row) == 6]
    assert [row[0] for row in growth[2:]] == ["300", "3,000", "quotient"]
