"""What pretraining is worth where labels are few: fine-tuned against from scratch against TF-IDF with LinearSVC.

    python -m benchmarks.pretraining [--pretrained RUN] [--labels 1000 4000 all] [--seeds 1 2 3]

One command: it pretrains by configs/pretrain.yaml where no run is given, trains by configs/classify.yaml on so many of
its training texts, and scores everything on its test split. A seed draws the labelled texts, and is that of training.
Stopped and started again with the same --pretrained, it goes on after the last line of the table.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.linear import linear_row, load_data, vectorizers
from project.data import TableFile, TextClassificationData
from project.notebook import fit as train
from project.runs import Run

CLASSIFY, PRETRAIN = "configs/classify.yaml", "configs/pretrain.yaml"
Scores = dict[str, float]
CHECKPOINT = {"filename": "best", "monitor": "val/accuracy", "mode": "max", "enable_version_counter": False}
METRICS = {"accuracy": "test/accuracy", "macro F1": "test/macro_f1"}


def fit(config: str, options: dict[str, Any]) -> Run:
    """Train by the command line, in this process."""
    return train("--config", config, *(f"--{name}={value}" for name, value in options.items()))


def choose(labels: list[str], count: int, seed: int) -> list[int]:
    """Rows of a random sample of `count` that has each class at least once."""
    order = np.random.default_rng(seed).permutation(len(labels))
    _, first = np.unique(np.asarray(labels)[order], return_index=True)
    rest = np.setdiff1d(np.arange(len(order)), first)[: max(0, count - len(first))]
    return sorted(order[np.concatenate([first, rest])].tolist())


def write_tables(data: TextClassificationData, count: int | None, seed: int, folder: Path) -> dict[str, str]:
    """A file for each split, the training split cut to `count` texts."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, (texts, labels) in data.texts().items():
        rows = choose(labels, count, seed) if split == "train" and count else range(len(texts))
        table = pd.DataFrame({"text": [texts[i] for i in rows], "label": [labels[i] for i in rows]})
        files[split] = str(folder / f"{split}.parquet")
        table.to_parquet(files[split])
    return files


def training(count: int | None, seed: int, files: dict[str, str]) -> dict[str, Any]:
    """Settings common to both arms: small data take small batches and more epochs, with the same schedule."""
    source = {"data.source": "project.data.TableFile"} | {f"data.source.{k}": v for k, v in files.items()}
    epochs = 40 if count and count < 2000 else 20
    few = {
        "trainer.max_epochs": epochs,
        "trainer.check_val_every_n_epoch": epochs // 4,  # the validation split is larger than such a training split
        "data.tokens_per_batch": 1024,
    }
    callbacks = [{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": CHECKPOINT}]  # no export
    always = {"seed_everything": seed, "data.seed": seed, "trainer.callbacks": json.dumps(callbacks)}
    return source | always | (few if count else {})


def score(run: Run) -> Scores:
    scores = json.loads((run.folder / "metrics.json").read_text())
    return {name: scores[key] for name, key in METRICS.items()}


def measure(
    data: TextClassificationData, count: int | None, seed: int, pretrained: Run, root: Path
) -> dict[str, Scores]:
    files = write_tables(data, count, seed, root / f"{count or 'all'}-{seed}")
    common = training(count, seed, files)
    start = {"model.pretrained": pretrained.folder, "model.optimizer.lr": 1e-3, "model.layer_decay": 0.8}
    source = TableFile(files["train"], files["val"], files["test"])
    subset = TextClassificationData(source, cache_dir=str(data.cache_dir))
    subset.setup()
    _, accuracy, macro_f1, _ = linear_row("", vectorizers()["words 1-2"], subset)
    return {
        "pretrained": score(fit(CLASSIFY, common | start | {"name": "finetune"})),
        "from scratch": score(fit(CLASSIFY, common | {"name": "scratch"})),
        "TF-IDF, LinearSVC": {"accuracy": accuracy, "macro F1": macro_f1},
    }


def table(results: dict[str, list[dict[str, Scores]]]) -> str:
    """Mean and standard deviation over seeds, in Markdown."""
    lines = ["| labels | model | accuracy | macro F1 |", "|---|---|---|---|"]
    for count, runs in results.items():
        for model in runs[0]:
            cells = []
            for metric in METRICS:
                values = [run[model][metric] for run in runs]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{statistics.mean(values):.3f} ± {spread:.3f}")
            lines.append(f"| {count} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="folder of a finished run of configs/pretrain.yaml; default: make one")
    parser.add_argument("--labels", nargs="+", default=["1000", "4000", "all"], help="sizes of the training split")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output", default=".cache/pretraining", help="folder of subsets and results")
    options = parser.parse_args()
    root = Path(options.output)
    pretrained = Run.open(options.pretrained) if options.pretrained else fit(PRETRAIN, {})
    data = load_data(yaml.safe_load(Path(CLASSIFY).read_text()))
    record = root / f"{pretrained.id}.json"
    done: dict[str, dict[str, Scores]] = json.loads(record.read_text()) if record.is_file() else {}
    results: dict[str, list[dict[str, Scores]]] = {}
    for count in options.labels:
        for seed in options.seeds:
            key, number = f"{count}, seed {seed}", None if count == "all" else int(count)
            if key not in done:
                done[key] = measure(data, number, seed, pretrained, root)
                record.write_text(json.dumps(done, indent=2) + "\n")
            results.setdefault(count, []).append(done[key])
            print(table(results), flush=True)


if __name__ == "__main__":
    main()
