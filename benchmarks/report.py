"""What every benchmark prints: the machine in words, Markdown tables."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch


def machine() -> str:
    """Date, processor or accelerator, threads and versions, in one line."""
    if torch.cuda.is_available():
        chip = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        chip = f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"
    return f"{datetime.now(UTC):%Y-%m-%d}, {chip}, Python {platform.python_version()}, torch {torch.__version__}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that also reads well as plain text; columns after the words are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    words = [all(not cell[:1].isdigit() for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if left else c.rjust(w) for c, w, left in zip(cells, widths, words, strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 2) if left else "-" * (w + 1) + ":" for w, left in zip(widths, words, strict=True))
    return "\n".join([line(header), f"|{rule}|", *map(line, rows)])
