"""A run's README.md: what it is, how good, on which data, how fast, how to load it; from its folder alone."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from project.export.table import table
from project.files import read_json, write_whole
from project.intervals import Counts, accuracy, bootstrap, macro_f1, wilson
from project.runs import Run

NOTES = "## Notes"
HINT = "What is written below this heading stays when the card is made again."


def write_model_card(run: Run) -> None:
    """Write README.md and, where there is a confusion.csv, confusion.png; what stands below `NOTES` is kept."""
    file = run.folder / "README.md"
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    notes = old.partition(NOTES)[2].strip() or HINT
    confusion = read_confusion(run.folder / "confusion.csv")
    if confusion is not None:
        draw_confusion(*confusion, run.folder / "confusion.png")
    write_whole(file, f"{card(run, confusion)}\n\n{NOTES}\n\n{notes}\n")


def card(run: Run, confusion: tuple[list[str], Counts] | None) -> str:
    """The card's text, without the notes."""
    config, data = run.config, read_json(run.folder / "data.json")
    task = config["model"]["class_path"]
    source = data.get("source") or (config.get("data") or {}).get("class_path") or "its own loaders"
    sections = [
        f"# {run.name}/{run.id}",
        f"`{task}` trained on `{source}`.",
        "## Results",
        results(run, confusion),
        *(["![Confusion matrix: rows are true classes](confusion.png)"] if confusion else []),
        "## Data",
        splits(data),
        "## Configuration",
        configuration(config),
        code(read_json(run.folder / "provenance.json")),
        "## Training",
        training(run, data),
        *export(run),
        "## How to load it",
        loading(run),
    ]
    return "\n\n".join(section for section in sections if section)


def read_confusion(file: Path) -> tuple[list[str], Counts] | None:
    """Labels and counts (C, C), rows the true classes; None where the task has none."""
    if not file.exists():
        return None
    with file.open(newline="", encoding="utf-8") as stream:
        (_, *labels), *rows = csv.reader(stream)
    return labels, np.array([row[1:] for row in rows], dtype=np.int64)


def results(run: Run, confusion: tuple[list[str], Counts] | None) -> str:
    """Scores and, where the confusion matrix gives the same score, its 95 % interval."""
    scores = read_json(run.folder / "metrics.json")
    if not scores:
        return "The run has no final scores: it has not ended, or was stopped."
    intervals = {} if confusion is None else {name: of for name, of in _intervals(confusion[1], scores)}
    rows = [
        [f"`{name}`", f"{value:.4f}", "{:.4f} to {:.4f}".format(*intervals[name]) if name in intervals else "–"]
        for name, value in sorted(scores.items(), key=lambda item: (not item[0].startswith("test/"), item[0]))
    ]
    text = markdown(["metric", "value", "95 % interval"], rows)
    if intervals:
        total = int(confusion[1].sum()) if confusion else 0
        text += (
            f"\n\nOn {total:,} test examples. Intervals tell how much another test set of this size would move a score "
            "(accuracy: Wilson; F1: bootstrap), not how much another training would."
        )
    return text


def _intervals(confusion: Counts, scores: dict[str, float]) -> Iterable[tuple[str, tuple[float, float]]]:
    known = {
        "test/accuracy": (accuracy, lambda: wilson(int(np.trace(confusion)), int(confusion.sum()))),
        "test/macro_f1": (macro_f1, lambda: bootstrap(confusion, macro_f1)),
    }
    for name, (score, interval) in known.items():
        if name in scores and abs(float(score(confusion)) - scores[name]) < 1e-4:  # else it is another score
            yield name, interval()


def splits(data: dict[str, Any]) -> str:
    """Sizes and hashes, then what else the data module tells."""
    order = {name: i for i, name in enumerate(("train", "val", "test"))}
    rows = [
        [name, f"{facts['examples']:,}" if "examples" in facts else "–", f"`{facts.get('sha256', '–')[:16]}`"]
        for name, facts in sorted(data.get("splits", {}).items(), key=lambda item: order.get(item[0], 3))
    ]
    if not rows:
        return "The data module does not tell."
    others = [f"{key.replace('_', ' ')}: {value}" for key, value in data.items() if key not in ("splits", "source")]
    rest = f"\n\n{'; '.join(others)}." if others else ""
    return markdown(["split", "examples", "sha256 of its content"], rows) + rest


def configuration(config: dict[str, Any]) -> str:
    """Model and data in full, of the rest what matters most."""
    trainer = config.get("trainer") or {}
    names = ("max_epochs", "max_steps", "precision", "accumulate_grad_batches", "gradient_clip_val")
    chosen = {"seed_everything": config.get("seed_everything")}
    chosen["trainer"] = {name: trainer[name] for name in names if trainer.get(name) not in (None, -1)}
    chosen |= {name: config[name] for name in ("model", "data") if config.get(name)}
    return f"The whole is in [config.yaml](config.yaml).\n\n```yaml\n{yaml.safe_dump(chosen, sort_keys=False)}```"


def code(facts: dict[str, Any]) -> str:
    if not facts:
        return ""
    packages = facts.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "lightning", "numpy") if name in packages)
    changes = len(facts.get("git_changes", []))
    commit = f"commit `{facts.get('git_commit') or 'unknown'}`" + f", {changes} files not committed" * bool(changes)
    return f"Code: {commit}; Python {facts.get('python')}, {versions}."


def training(run: Run, data: dict[str, Any]) -> str:
    """How long, how fast, how large."""
    facts, machine = read_json(run.folder / "training.json"), read_json(run.folder / "provenance.json")
    if not facts:
        return "Not recorded."
    seconds = facts.get("seconds")
    examples = data.get("splits", {}).get("train", {}).get("examples")
    speed = f", {examples * facts['epochs'] / seconds:,.0f} examples a second" if seconds and examples else ""
    took = f" in {seconds:,.0f} s" if seconds else ""
    return (
        f"{facts['epochs']} epochs, {facts['steps']:,} steps{took}{speed}, on {machine.get('accelerator', 'cpu')} "
        f"({machine.get('torch_threads')} threads, processes: {facts['processes']}). "
        f"{facts['parameters']:,} parameters, peak memory {facts['peak_memory'] / 1e9:.2f} GB."
    )


def export(run: Run) -> list[str]:
    """The bundle's table; nothing where there is no bundle."""
    manifest = read_json(run.folder / "export/manifest.json")
    if not manifest:
        return []
    columns, rows = table(manifest)
    note = (
        "`latency` at batch 1 and `throughput` at batch 32 are ratios to eager; `parity` is the largest difference of "
        "an output. Every file was verified in a process of its own."
    )
    return ["## Export", markdown(columns, rows), note]


def loading(run: Run) -> str:
    path = "/".join(run.folder.absolute().parts[-3:])
    shell = [f"python -m project test --run {path}"]
    if (run.folder / "tokenizer.json").exists() and (run.folder / "labels.json").exists():
        shell.append(f'echo "a text" | python -m project predict --run {path}')
        if any((run.folder / "export").glob("*.onnx")):
            shell.append(f'echo "a text" | python -m project predict --bundle {path}/export   # without torch')
    python = [
        "from project.notebook import load_run",
        "",
        f'run = load_run("{path}")  # run.task, run.tokenizer, run.data',
    ]
    return "```bash\n" + "\n".join(shell) + "\n```\n\n```python\n" + "\n".join(python) + "\n```"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [list(columns), ["---"] * len(columns), *rows]
    cells = [["" if cell is None else str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def draw_confusion(labels: Sequence[str], counts: Counts, file: Path) -> None:
    """Each row as shares of its class; counts are written where they are legible."""
    from matplotlib.figure import Figure  # pyplot would keep the figure, and choose a screen

    size = max(3.2, 0.3 * len(labels) + 1.6)
    figure = Figure(figsize=(size, size), layout="constrained")
    axis = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(len(labels)), labels, rotation=90)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_xlabel("predicted")
    axis.set_ylabel("actual")
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    if len(labels) <= 40:
        for (i, j), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[i, j] > 0.6 else "#333333"
                axis.text(j, i, str(count), ha="center", va="center", fontsize=6, color=colour)
    figure.savefig(file, dpi=150)
