"""TF-IDF n-grams and a linear support vector machine, on the very split that a run was trained on: the bar to clear.

    python -m benchmarks.linear [--run runs/classify/ID]

C is chosen on val, by macro F1, for each kind of n-grams; the test split is looked at once.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from sklearn.base import TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_union
from sklearn.svm import LinearSVC

from project.data import TextClassificationData
from project.runs import Run

DEFAULT = Path("configs/classify.yaml")
Row = tuple[str, float, float, float]  # name, accuracy, macro F1, seconds


def load_data(config: dict[str, Any]) -> TextClassificationData:
    """The data module of a run's configuration, set up."""
    parser = ArgumentParser()
    parser.add_subclass_arguments(TextClassificationData, "data")
    data: TextClassificationData = parser.instantiate(parser.parse_object({"data": config["data"]})).data
    data.setup()
    return data


def vectorizers() -> dict[str, TransformerMixin]:
    words = TfidfVectorizer(ngram_range=(1, 2))
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), min_df=2, sublinear_tf=True)
    return {"words 1-2": words, "words 1-2, characters 2-5": make_union(words, characters)}


def linear_row(name: str, vectorizer: TransformerMixin, data: TextClassificationData) -> Row:
    """Test scores of the best of three values of C; seconds of its training, the features included."""
    start = time.perf_counter()
    features = vectorizer.fit_transform(data.splits["train"].texts)
    features_time = time.perf_counter() - start

    def scores(model: LinearSVC, split: str) -> tuple[float, float]:
        truth, found = data.splits[split].labels, model.predict(vectorizer.transform(data.splits[split].texts))
        return float(accuracy_score(truth, found)), float(f1_score(truth, found, average="macro"))

    fitted = []
    for c in (0.5, 1.0, 2.0):
        start = time.perf_counter()
        model = LinearSVC(C=c).fit(features, data.splits["train"].labels)
        fitted.append((scores(model, "val")[1], c, time.perf_counter() - start, model))
    _, c, fit_time, model = max(fitted, key=lambda entry: entry[:2])
    return f"LinearSVC, {name}, C {c:g}", *scores(model, "test"), features_time + fit_time


def run_row(run: Run) -> Row:
    """Test scores of a finished run; seconds from its first file to the last checkpoint, validation included."""
    scores = yaml.safe_load((run.folder / "metrics.json").read_text())
    seconds = run.checkpoint("last").stat().st_mtime - (run.folder / "provenance.json").stat().st_mtime
    return f"encoder, {run.name}/{run.id}", scores["test/accuracy"], scores["test/macro_f1"], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help=f"folder of a finished run; without it, the data of {DEFAULT}")
    folder = parser.parse_args().run
    run = Run.open(folder) if folder else None
    data = load_data(run.config if run else yaml.safe_load(DEFAULT.read_text()))
    rows = [linear_row(name, vectorizer, data) for name, vectorizer in vectorizers().items()]
    rows += [run_row(run)] if run else []
    print(f"{'':45} {'accuracy':>9} {'macro F1':>9} {'seconds':>8}")
    for name, accuracy, macro_f1, seconds in rows:
        print(f"{name:45} {accuracy:9.4f} {macro_f1:9.4f} {seconds:8.0f}")


if __name__ == "__main__":
    main()
