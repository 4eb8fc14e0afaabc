"""Out of memory ends in sizes that are those of the model, and in options that save what is said."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from project.__main__ import main
from project.nn import Encoder
from project.out_of_memory import saved_bytes, size_of
from project.tasks import SequenceClassification


class Full(SequenceClassification):
    """Fails as the CPU's allocator does, in its second step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return super().training_step(batch, batch_idx)


def test_a_run_says_what_would_save_how_much(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model",
        "tests.e2e.test_out_of_memory.Full",
        "--trainer.precision",
        "32-true",
        "--model.encoder.d_model",
        "256",
    ]
    assert main(["fit", "--config", str(config), "--runs_dir", str(tmp_path), *words, "--trainer.logger", "false"]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    weights, gradients, state, activations = (int(n) for n in re.findall(r"([\d,]+) MiB", lines[0]))
    assert lines[0].startswith("error: out of memory: weights take ")
    assert weights == gradients == 3 and state == 6 and activations > 0
    saved = {line.split(" MiB  ")[1].split(":")[0]: int(line.split(" MiB")[0]) for line in lines[1:]}
    assert saved["--data.tokens_per_batch 64 --trainer.accumulate_grad_batches 2"] == pytest.approx(
        activations / 2, abs=1
    )
    assert 0 < saved["--model.encoder.activation_checkpointing true"] <= activations
    assert saved["--config configs/trainer/model_parallel.yaml"] == pytest.approx(6, abs=1)
    assert list(saved.values()) == sorted(saved.values(), reverse=True)


def test_what_autograd_keeps_is_counted_once_and_without_weights() -> None:
    linear, x = torch.nn.Linear(10, 20), torch.randn(7, 10)
    assert saved_bytes(lambda: linear(x), linear) == 4 * 7 * 10
    assert saved_bytes(lambda: (linear(x), linear(x)), linear) == 4 * 7 * 10
    encoder = Encoder(16, 6, 2, activation_checkpointing=True)
    tokens = torch.randn(3, 5, 16)
    assert saved_bytes(lambda: encoder(tokens), encoder) < 8 * 4 * tokens.numel()


def test_nested_tensors_are_summed() -> None:
    assert size_of({"a": {"b": torch.ones(3), "c": 1}, "d": torch.ones(2, dtype=torch.double)}) == 12 + 16
