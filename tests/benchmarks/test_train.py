import importlib.util
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import peers
from benchmarks.batches import grouped_batches, largest_batch, random_batches, uniform_texts
from benchmarks.peers import OURS, PEERS, Sizes, build
from benchmarks.report import markdown
from benchmarks.train import HEADER, summary

SMALL = Sizes(d_model=32, num_heads=2, num_layers=2, d_ff=96, vocab_size=50, num_classes=3, max_length=16)


@pytest.fixture(params=[OURS, *PEERS])
def contender(request: pytest.FixtureRequest) -> str:
    library = {"BERT": "transformers", "ModernBERT": "transformers", "x-transformers": "x_transformers"}
    pytest.importorskip(library.get(request.param.split()[0], "torch"))
    return str(request.param)


def test_padding_changes_nothing(contender: str) -> None:
    model = build(contender, SMALL).eval()
    tokens = torch.randint(4, 50, (2, 8))
    real = torch.ones(2, 8, dtype=torch.bool)
    padded = torch.cat([tokens, torch.zeros(2, 5, dtype=torch.long)], 1)
    mask = torch.cat([real, torch.zeros(2, 5, dtype=torch.bool)], 1)
    logits = model(tokens, real)
    torch.testing.assert_close(model(padded, mask), logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(padded, torch.ones_like(mask)), logits, atol=1e-3)


def test_as_many_weights(contender: str) -> None:
    def weights(name: str) -> int:
        return sum(p.numel() for name, p in build(name, Sizes()).named_parameters() if "pos" not in name)

    assert weights(contender) == pytest.approx(weights("reference formula"), rel=0.01)


def test_flops_are_those_that_torch_counts() -> None:
    batch = largest_batch(64, 16, SMALL.vocab_size, SMALL.num_classes)
    model = build("reference formula", SMALL)
    with FlopCounterMode(display=False) as counter:
        model(batch["tokens"], batch["padding_mask"]).sum().backward()
    head = 3 * 2 * 4 * SMALL.d_model * SMALL.num_classes
    assert SMALL.flops(torch.full((4,), 16)) == counter.get_total_flops() - head


def test_batches_keep_the_budget_and_hold_each_text_once() -> None:
    texts = uniform_texts(40, 4000, vocab_size=50, num_classes=3)
    assert (texts.lengths.min(), texts.lengths.max()) == (10, 40)
    padding = {}
    for batches in (random_batches, grouped_batches):
        rows = batches(texts, 200)
        assert all(len(b) * texts.lengths[b].max() <= 200 for b in rows)
        assert len({row for b in rows for row in b}) == sum(map(len, rows)) > 0.9 * len(texts)
        padding[batches] = 1 - sum(texts.lengths[b].sum() for b in rows) / sum(
            len(b) * texts.lengths[b].max() for b in rows
        )
    assert padding[grouped_batches] < 0.1 < padding[random_batches]


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(sizes: Sizes) -> torch.nn.Module:
        raise ImportError("No module named 'fast_encoders'")

    monkeypatch.setattr(peers, "PEERS", {"fast": missing})
    assert peers.available() == [OURS]
    assert capsys.readouterr().out == (
        "fast is left out (No module named 'fast_encoders'): pip install -c constraints.txt -e '.[bench]'\n"
    )


def test_summary_names_the_fastest_peer() -> None:
    rows = [
        ["fp32", "64", OURS, "grouped", "900", "1.00 x", "9%", "1"],
        ["fp32", "64", "slow", "random", "300", "3.00 x", "3%", "1"],
        ["fp32", "64", "fast", "random", "600", "1.50 x", "6%", "1"],
        ["fp32", "64", "fast", "grouped", "1,000", "0.90 x", "10%", "1"],
    ]
    assert summary(rows) == (
        "fp32, 64: 1.50 x the fastest peer with random batches (fast), "
        "0.90 x the fastest peer with grouped batches (fast)"
    )


def test_markdown() -> None:
    assert markdown(["name", "n"], [["a", "10"], ["bcdef", "9"]]).splitlines() == [
        "| name  |  n |",
        "|-------|---:|",
        "| a     | 10 |",
        "| bcdef |  9 |",
    ]


@pytest.mark.slow
def test_the_whole_table() -> None:
    command = [sys.executable, "-m", "benchmarks.train", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = [[c.strip() for c in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
    assert table[0] == HEADER
    names = [name for name in [OURS, *PEERS] if _installed(name)]
    expected = [(p, n, b) for p in ("fp32", "bf16") for n in names for b in ("grouped", "random")]
    assert [(row[0], row[2], row[3]) for row in table[2:]] == expected
    for row in table[2:]:
        ours = next(r for r in table[2:] if r[0] == row[0])
        speeds = [float(r[4].replace(",", "")) for r in (ours, row)]
        assert float(row[5].split()[0]) == pytest.approx(speeds[0] / speeds[1], abs=0.011)
        assert float(row[7].split()[0].replace(",", "")) > 0


def _installed(name: str) -> bool:
    if name == "x-transformers":
        return importlib.util.find_spec("x_transformers") is not None
    return "(transformers)" not in name or importlib.util.find_spec("transformers") is not None
