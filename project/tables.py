"""Read CSV, TSV, JSONL and Parquet files, exactly and with errors that name the line; without torch."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from project.errors import UserError, first_line, nearest

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def read_table(
    file: Path, encoding: str = "utf-8", delimiter: str | None = None, quotes: bool = True
) -> "pd.DataFrame":
    """A CSV, TSV, JSONL or Parquet file. Fields of CSV and TSV stay strings, "NA" and "" included.

    The index counts rows from 1: below the header, or the lines of JSONL.

    Raises:
        UserError: it cannot be read, is empty, malformed or encoded otherwise.
    """
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{file} ends in {suffix!r}; known are {', '.join(SUFFIXES)}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file.absolute()}: {error.strerror}") from error
    if not content.strip():
        raise UserError(f"{file} is empty")
    if suffix == ".parquet":
        table = _parse_parquet(content, file)
    elif suffix == ".jsonl":
        table = _parse_json_lines(_decode(content, encoding, file), file)
    else:
        separator = delimiter or ("\t" if suffix == ".tsv" else ",")
        table = _parse_delimited(_decode(content, encoding, file), separator, quotes, file)
    if table.empty:
        raise UserError(f"{file} holds no rows")
    return table


def require_column(table: "pd.DataFrame", column: str, where: str, see: str = "") -> None:
    """
    Args:
        where: what the table is called in the error.
        see: the option that names the column.

    Raises:
        UserError: the table lacks it; says which it has, and what may be meant.
    """
    names = [str(name) for name in table.columns]
    if column not in names:
        meant = nearest(column, names)
        hint = f"did you mean {meant!r}?" if meant else _other_delimiter(names)
        parts = [f"{where} has no column {column!r}", f"it has {', '.join(names)}", hint, see and f"see {see}"]
        raise UserError("; ".join(filter(None, parts)))


def _other_delimiter(header: list[str]) -> str:
    """What to try where a header was not split, though it holds what else stands between fields."""
    found = [mark for mark in ";\t|," if mark in header[0]] if len(header) == 1 else []
    return f"are its fields separated by {found[0]!r}? Then set delimiter" if found else ""


def _decode(content: bytes, encoding: str, file: Path) -> str:
    try:
        return content.decode(encoding).removeprefix("\ufeff")  # byte order mark
    except LookupError as error:
        raise UserError(f"encoding {encoding!r} is unknown; examples are utf-8, latin-1, cp1252") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{file} is not {encoding} (byte 0x{content[error.start]:02x} in line {line}); convert it, or set encoding"
        ) from error


def _parse_delimited(content: str, separator: str, quotes: bool, file: Path) -> "pd.DataFrame":
    import pandas as pd

    csv.field_size_limit(2**31 - 1)  # a text may be a book
    quoting: Any = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, quoting=quoting, strict=True)
    rows = []
    try:
        header = next(reader)
        if repeated := {name for name in header if header.count(name) > 1}:
            raise UserError(f"{file} has several columns {min(repeated)!r}; rename all but one")
        for row in reader:
            if row and len(row) != len(header):
                raise UserError(
                    f"{file}: line {reader.line_num} has {len(row)} fields, the header {len(header)}; "
                    + (_other_delimiter(header) or "quote fields that hold a delimiter, or set delimiter or quotes")
                )
            if row:  # else a blank line
                rows.append(row)
    except csv.Error as error:
        raise UserError(
            f"{file}: line {reader.line_num}: {error}; set quotes to false if a quote is a character like any other"
        ) from error
    return _number(pd.DataFrame(rows, columns=header, dtype=object))


def _parse_json_lines(content: str, file: Path) -> "pd.DataFrame":
    import pandas as pd

    records = {}
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records[number] = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}: line {number} is not JSON: {error.msg} at column {error.colno}") from error
        if not isinstance(records[number], dict):
            raise UserError(f"{file}: line {number} is not a JSON object")
    return pd.DataFrame(list(records.values()), index=list(records), dtype=object)


def _parse_parquet(content: bytes, file: Path) -> "pd.DataFrame":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a readable Parquet file: {first_line(error)}") from error
    return _number(table.to_pandas(integer_object_nulls=True, ignore_metadata=True))


def _number(table: "pd.DataFrame") -> "pd.DataFrame":
    """Rows as the user counts them, from 1."""
    return table.set_axis(range(1, len(table) + 1))
