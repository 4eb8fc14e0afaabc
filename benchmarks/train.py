"""Training throughput of the template's network beside other encoder libraries, on one machine in one run.

What is measured: a whole training step (forward, loss, backward, fused AdamW) of classifiers of one size, dropout,
pooling and head, on batches of one budget of rows x longest row. Counted are real tokens, never padding. Contenders
take turns batch by batch, in an order that is drawn anew each round, so that whatever else the machine does hits all
alike; the median over rounds is reported.

"random" batches are padded to their longest row, as the libraries' documentation advises; "grouped" batches come from
the template's own sampler. The template uses the latter; each contender is shown with both.

The share of the peak is what the real tokens need in floating-point operations (`Sizes.flops`), over the time taken,
over the fastest matrix product measured in the same run. Peak memory is how much the resident memory of a fresh
process grew by two training steps on the largest batch: weights, gradients, optimizer state, activations.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

import torch
from torch import Tensor

from benchmarks.batches import Batch, gloss_texts, grouped_batches, largest_batch, random_batches, uniform_texts
from benchmarks.memory import in_fresh_process, peak
from benchmarks.peers import OURS, Sizes, Trainee, available
from benchmarks.report import machine, markdown
from project.cpu import multiply_in_onednn
from project.data import TokenDataset
from project.errors import UserError
from project.machine import matmul_peak

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HEADER = ["precision", "texts", "contender", "batches", "tokens/s", "project is", "of the peak", "peak memory"]


@dataclass
class Entry:
    """A contender with one kind of batches."""

    name: str
    batching: str
    trainee: Trainee
    batches: list[Batch]
    speeds: list[float] = field(default_factory=list)  # real tokens/s, by round
    flops: list[float] = field(default_factory=list)  # useful FLOP/s, by round

    def turn(self, number: int, sizes: Sizes) -> None:
        batch = self.batches[number % len(self.batches)]
        start = time.perf_counter()
        self.trainee.step(batch)
        elapsed = time.perf_counter() - start
        lengths: Tensor = batch["padding_mask"].sum(1)
        self.speeds.append(int(lengths.sum()) / elapsed)
        self.flops.append(sizes.flops(lengths) / elapsed)


def race(entries: Sequence[Entry], sizes: Sizes, time_limit: float, min_rounds: int) -> None:
    """Let all take turns until the time is over; the first round only warms up."""
    deadline = time.perf_counter() + time_limit
    for number in count():
        if number > min_rounds and time.perf_counter() > deadline:
            return
        for entry in random.Random(number).sample(entries, len(entries)):
            entry.turn(number, sizes)
        if number == 0:
            for entry in entries:
                entry.speeds.clear()
                entry.flops.clear()


def grown_memory(name: str, sizes: Sizes, precision: str, batch: Batch) -> float:
    """MiB by which building and training a contender raises the peak of this process."""
    before = peak()
    trainee = Trainee(name, sizes, precision)
    for _ in range(2):  # the optimizer's state is there from the second on
        trainee.step(batch)
    return peak() - before


def measure(
    names: Sequence[str],
    texts: TokenDataset,
    label: str,
    precision: str,
    fastest: float,
    sizes: Sizes,
    budget: int,
    time_limit: float,
    min_rounds: int,
    onednn: bool,
) -> list[list[str]]:
    """The table's rows for one kind of texts in one precision."""
    largest = largest_batch(budget, int(texts.lengths.max()), sizes.vocab_size, sizes.num_classes)
    memory = {name: in_fresh_process(grown_memory, name, sizes, precision, largest) for name in names}
    kinds = {"grouped": grouped_batches(texts, budget), "random": random_batches(texts, budget)}
    batches = {kind: [texts[rows] for rows in kinds[kind][:64]] for kind in kinds}
    entries = [
        Entry(name, kind, trainee, batches[kind])
        for name in names
        for trainee in [Trainee(name, sizes, precision, onednn)]
        for kind in kinds
    ]
    race(entries, sizes, time_limit, min_rounds)
    ours = median(entries[0].speeds)
    return [
        [
            precision,
            label,
            entry.name,
            entry.batching,
            f"{median(entry.speeds):,.0f}",
            f"{ours / median(entry.speeds):.2f} x",
            f"{median(entry.flops) / fastest:.0%}",
            f"{memory[entry.name]:,.0f} MiB",
        ]
        for entry in entries
    ]


def summary(rows: Sequence[Sequence[str]]) -> str:
    """For each kind of texts and precision, the template against the fastest of the others."""
    lines = []
    for precision, label in dict.fromkeys((row[0], row[1]) for row in rows):
        peers = [row for row in rows if row[:2] == [precision, label] and row[2] != OURS]
        parts = []
        for batching in ("random", "grouped"):
            if group := [row for row in peers if row[3] == batching]:
                best = min(group, key=lambda row: float(row[5].split()[0]))
                parts.append(f"{best[5].split()[0]} x the fastest peer with {batching} batches ({best[2]})")
        if parts:
            lines.append(f"{precision}, {label}: {', '.join(parts)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--texts", nargs="+", help="longest text in tokens (uniform lengths), or glosses")
    parser.add_argument("--precisions", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--dropout", type=float, default=0.1, help="of every contender")
    parser.add_argument("--budget", type=int, default=4096, help="rows x longest row of a batch")
    parser.add_argument("--onednn", action="store_true", help="float32 products as in the template for every contender")
    parser.add_argument("--seconds", type=float, default=40.0, help="of racing, for each of texts and precisions")
    options = parser.parse_args(arguments)
    sizes = Sizes(dropout=options.dropout)
    budget, time_limit, min_rounds = options.budget, options.seconds, 3
    texts: list[str] = options.texts or ["64", "128", "512", "glosses"]
    if options.quick:
        sizes = Sizes(32, 2, 1, 64, 100, 4, 64, options.dropout)
        budget, time_limit, min_rounds, texts = 256, 0.0, 2, options.texts or ["32"]

    names = available()
    print(f"{machine()}; {sizes}; {budget} tokens a batch", flush=True)
    multiply_in_onednn()  # the faster of the two ways
    peaks = {precision: matmul_peak(DTYPES[precision]) for precision in options.precisions}
    print("fastest matrix product: " + ", ".join(f"{p} {flops / 1e9:,.0f} GFLOP/s" for p, flops in peaks.items()))
    rows: list[list[str]] = []
    for text in texts:
        try:
            if text == "glosses":
                dataset, label = gloss_texts(sizes.vocab_size), "WordNet glosses"
            else:
                tokens = 64 * budget
                dataset = uniform_texts(int(text), tokens, sizes.vocab_size, sizes.num_classes)
                label = f"{int(text) // 4} to {text}"
        except UserError as error:
            print(f"{text} is left out: {error}")
            continue
        for precision in options.precisions:
            print(f"... {label} tokens, {precision}", file=sys.stderr, flush=True)
            limits = (time_limit, min_rounds)
            rows += measure(names, dataset, label, precision, peaks[precision], sizes, budget, *limits, options.onednn)
    print(f"\n{markdown(HEADER, rows)}\n\n{summary(rows)}")


if __name__ == "__main__":
    main()
