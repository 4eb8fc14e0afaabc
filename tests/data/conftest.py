import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from project.data import TableFile, TextClassificationData

Row = tuple[str, object]

WORDS = {
    "animal": ["cat", "dog", "horse", "fur", "tail"],
    "food": ["bread", "cheese", "soup", "salt", "dish"],
    "plant": ["tree", "leaf", "root", "seed", "herb"],
}


@pytest.fixture
def rows() -> list[Row]:
    """300 different texts of 2 to 25 words in three classes of 60, 90 and 150."""
    generator = np.random.default_rng(7)
    classes = ["animal"] * 60 + ["food"] * 90 + ["plant"] * 150
    return [
        (" ".join([f"no{i}", *generator.choice(WORDS[c], generator.integers(1, 25))]), c) for i, c in enumerate(classes)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write rows of text and label as JSONL, return the path."""

    def write(rows: Sequence[Row], name: str = "data.jsonl") -> str:
        file = tmp_path / name
        lines = (json.dumps({"text": text, "label": label}) for text, label in rows)
        file.write_text("\n".join(lines), encoding="utf-8")
        return str(file)

    return write


@pytest.fixture
def make(write: Callable[..., str], tmp_path: Path) -> Callable[..., TextClassificationData]:
    """A data module over rows; with `val` or `test`, over one file per split."""

    def make(
        rows: Sequence[Row], val: Sequence[Row] | None = None, test: Sequence[Row] | None = None, **options: object
    ) -> TextClassificationData:
        given = {"val": val, "test": test}
        files = {name: write(part, f"{name}.jsonl") for name, part in given.items() if part is not None}
        source = TableFile(write(rows, "train.jsonl"), **files)
        return TextClassificationData(source, **({"cache_dir": str(tmp_path / "cache")} | options))  # type: ignore[arg-type]

    return make
