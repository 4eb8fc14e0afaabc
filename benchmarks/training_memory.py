"""Peak memory of training by batch, precision, accumulation and checkpointing: python -m benchmarks.training_memory."""

import argparse
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

from benchmarks.memory import in_fresh_process, peak
from benchmarks.report import machine, markdown
from project.cpu import use_cpu_well
from project.nn import Encoder, SequenceClassifier

LENGTH, VOCABULARY, CLASSES = 128, 16_000, 26

# tokens of a step, precision, micro-batches that make it, checkpointing
SETTINGS = [
    (8192, "fp32", 1, False),
    (4096, "fp32", 1, False),
    (8192, "bf16", 1, False),
    (8192, "fp32", 4, False),
    (8192, "fp32", 1, True),
    (8192, "bf16", 4, True),
]


def train(
    d_model: int, layers: int, tokens: int, precision: str, micro_batches: int, checkpointing: bool
) -> tuple[float, float]:
    """MiB that two steps take at most, beyond what the libraries take, and seconds of the second."""
    torch.manual_seed(0)
    use_cpu_well()
    before = peak()
    encoder = Encoder(d_model, layers, d_model // 64, max_length=LENGTH, activation_checkpointing=checkpointing)
    network = SequenceClassifier(encoder, VOCABULARY, CLASSES)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    rows = tokens // LENGTH // micro_batches
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(micro_batches):
            ids, mask = torch.randint(VOCABULARY, (rows, LENGTH)), torch.ones(rows, LENGTH, dtype=torch.bool)
            with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
                logits = network(ids, mask)
            F.cross_entropy(logits.float(), torch.randint(CLASSES, (rows,))).div(micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    return peak() - before, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--d_model", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    rows = []
    for tokens, precision, micro_batches, checkpointing in SETTINGS:
        setting = (tokens, precision, micro_batches, checkpointing)
        mib, seconds = in_fresh_process(train, options.d_model, options.layers, *setting)
        words = [f"{tokens:,}", precision, str(micro_batches), "yes" if checkpointing else "no"]
        rows.append([*words, f"{mib:,.0f}", f"{seconds:.1f}"])
    print(f"{machine()}; d_model {options.d_model}, {options.layers} layers, {LENGTH} tokens a text, AdamW\n")
    print(markdown(["tokens a step", "precision", "micro-batches", "checkpointing", "peak MiB", "s a step"], rows))


if __name__ == "__main__":
    main()
