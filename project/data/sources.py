"""Where labelled texts come from. A source reads tables with the columns `text` and `label`, nothing more.

The index of a table holds row numbers as the user counts them, from 1, so that any later error can name the row.
"""

import hashlib
import json
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from project.errors import UserError, one_line
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
            raise UserError(f"datasets cannot load {self.path!r}: {one_line(error)[:300]}") from error
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
        return select(number_rows(table), self.text, self.label, where)


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
    return number_rows(pd.DataFrame({"text": texts, "label": names}), where, table.index)


def number_rows(table: "pd.DataFrame", where: str | None = None, index: Any = None) -> "pd.DataFrame":
    """Set the index to row numbers from 1, and note the table's name for errors."""
    rows: Any = range(1, len(table) + 1) if index is None else index
    table.index = rows
    if where is not None:
        table.attrs["where"] = where
    return table
