"""A manifest as a table, for the terminal and for W&B."""

from typing import Any

LEGEND = (
    "parity: largest difference of an output from eager's; drop: by how much the metric is worse; "
    "latency at batch 1 and throughput at batch 32: as multiples of eager's"
)


def table(manifest: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: what was made, then what failed or was skipped. sha256 is shortened.

    The metric is that of the whole validation split; where an artifact was measured on a part of it, the drop alone
    compares with eager.
    """
    eager, metric = manifest["eager"], manifest["metric"]
    columns = [
        "artifact",
        "file",
        "sha256",
        "MB",
        "parity",
        metric or "metric",
        "drop",
        "latency",
        "throughput",
        "note",
    ]
    rows: list[list[Any]] = [
        [
            "eager",
            "",
            "",
            round(eager["bytes"] / 1e6, 2),
            0.0,
            _rounded(eager["metrics"].get(metric)),
            0.0,
            1.0,
            1.0,
            "",
        ]
    ]
    for name, facts in manifest["artifacts"].items():
        notes = []
        if slower := [*["batch 1"] * (facts["latency_ratio"] > 1), *["batch 32"] * (facts["throughput_ratio"] < 1)]:
            notes.append(f"slower than eager at {' and '.join(slower)}")
        whole = facts["batches"] == manifest["batches"]
        if not whole:
            notes.append(f"drop on {facts['batches']} of {manifest['batches']} batches")
        rows.append(
            [
                name,
                facts["file"],
                facts["sha256"][:12],
                round(facts["bytes"] / 1e6, 2),
                float(f"{facts['parity']:.2g}"),
                _rounded(facts["metrics"].get(metric) if whole else None),
                _rounded(facts.get("metric_drop")),
                round(facts["latency_ratio"], 2),
                round(facts["throughput_ratio"], 2),
                "; ".join(notes),
            ]
        )
    for state in ("failed", "skipped"):
        rows += [[name, *[None] * 8, f"{state}: {reason}"] for name, reason in manifest[state].items()]
    return columns, rows


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def format_table(columns: list[str], rows: list[list[Any]]) -> str:
    """The table in plain text. latency: at batch 1; throughput: at batch 32; both as ratios to eager."""
    lines = [["" if cell is None else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
