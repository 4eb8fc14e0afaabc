import subprocess
import sys

import pytest
import torch

from benchmarks.batches import uniform_texts
from benchmarks.gpu import TINY, Packed, PackedClassifier, network


def test_packed_equals_padded() -> None:
    texts = uniform_texts(32, 300, TINY.vocab_size, TINY.num_classes)
    batch = texts[[0, 1, 2, 3, 4]]
    assert not batch["padding_mask"].all()
    padded, packed = network(TINY).train(), PackedClassifier(network(TINY)).train()
    expected = padded(batch["tokens"], batch["padding_mask"])
    actual = packed(Packed.of(batch, TINY.max_length))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    expected.square().sum().backward()
    actual.square().sum().backward()
    gradients = dict(packed.network.named_parameters())
    for name, parameter in padded.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradients[name].grad, parameter.grad, atol=1e-4, rtol=1e-4)


def test_packed_attention_stays_within_texts() -> None:
    packed = PackedClassifier(network(TINY)).eval()
    texts = uniform_texts(32, 300, TINY.vocab_size, TINY.num_classes)
    together, alone = packed(Packed.of(texts[[0, 1]], 32)), packed(Packed.of(texts[[1]], 32))
    torch.testing.assert_close(together[1], alone[0], atol=1e-5, rtol=1e-5)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which would be measured")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = run()
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("no CUDA GPU here")


@pytest.mark.slow
def test_dry_run_takes_every_way() -> None:
    done = run("--dry-run")
    assert done.returncode == 0, done.stderr
    table = [[c.strip() for c in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
    assert [row[0] for row in table[2:]] == [
        "padded, fused attention",
        "padded, fused attention, compiled",
        "packed, varlen attention",
        "packed, varlen attention, compiled",
    ]
    assert all(float(row[1].replace(",", "")) > 0 for row in table[2:])
    assert "accumulation, clipping, 16-mixed" in done.stdout.splitlines()[-1]
