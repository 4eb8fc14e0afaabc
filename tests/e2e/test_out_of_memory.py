"""Out of memory ends in sizes that are those of the model, and in options that save what is said."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import Precision
from torch import Tensor

from project.__main__ import main
from project.nn import Encoder
from project.out_of_memory import activation_sizes, saved_bytes, size_of
from project.tasks import SequenceClassification


class Full(SequenceClassification):
    """Fails as the CPU's allocator does, in its second step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return super().training_step(batch, batch_idx)


def test_a_run_says_what_would_save_how_much(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model=tests.e2e.test_out_of_memory.Full", "--trainer.precision=32-true", "--trainer.logger=false"]
    words += ["--model.encoder.d_model=256", "--model.encoder.num_layers=2", "--data.tokens_per_batch=512"]
    assert main(["fit", "--config", str(config), "--runs_dir", str(tmp_path), *words]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    weights, gradients, state, activations = (int(n) for n in re.findall(r"([\d,]+) MiB", lines[0]))
    assert lines[0].startswith("error: out of memory: weights take ")
    assert weights == gradients == 6 and state == 12 and activations > 9
    saved = {line.split(" MiB  ")[1].split(":")[0]: int(line.split(" MiB")[0]) for line in lines[1:]}
    assert saved["--data.tokens_per_batch 256 --trainer.accumulate_grad_batches 2"] == pytest.approx(
        activations / 2, abs=1
    )
    assert 0.4 * activations < saved["--model.encoder.activation_checkpointing true"] < activations / 2
    assert saved["--config configs/trainer/model_parallel.yaml"] == pytest.approx(12, abs=1)
    assert list(saved.values()) == sorted(saved.values(), reverse=True)


def test_activations_are_those_of_the_whole_batch() -> None:
    encoder = Encoder(16, 4, 2, max_length=12)
    task = SequenceClassification(encoder, labels=["a", "b"], vocab_size=20)
    mask = torch.ones(40, 12, dtype=torch.bool)
    batch = {"tokens": torch.randint(4, 20, mask.shape), "padding_mask": mask, "ids": torch.arange(40)}
    trainer: Any = SimpleNamespace(train_dataloader=[batch], precision_plugin=Precision())
    kept = saved_bytes(lambda: task(batch["tokens"], mask), task)
    before, checkpointed = activation_sizes(trainer, task)
    assert before == pytest.approx(kept, rel=0.01)
    assert encoder.activation_checkpointing
    inputs = saved_bytes(lambda: task(batch["tokens"], mask), task)
    assert checkpointed == pytest.approx(inputs + (kept - inputs) / 4, rel=0.01)


def test_what_autograd_keeps_is_counted_once_and_without_weights() -> None:
    linear, x = torch.nn.Linear(10, 20), torch.randn(7, 10)
    assert saved_bytes(lambda: linear(x), linear) == 4 * 7 * 10
    assert saved_bytes(lambda: (linear(x), linear(x)), linear) == 4 * 7 * 10
    encoder = Encoder(16, 6, 2, activation_checkpointing=True)
    tokens = torch.randn(3, 5, 16)
    assert saved_bytes(lambda: encoder(tokens), encoder) < 8 * 4 * tokens.numel()


def test_nested_tensors_are_summed() -> None:
    assert size_of({"a": {"b": torch.ones(3), "c": 1}, "d": torch.ones(2, dtype=torch.double)}) == 12 + 16
