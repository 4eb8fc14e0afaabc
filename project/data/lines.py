"""Texts without labels, one a line."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from project.data.sources import Source, hash_files
from project.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


class TextLines(Source):
    """The lines of text files in UTF-8; blank lines are left out. All carry the one label `text`.

    Args:
        files: one or several.
    """

    def __init__(self, files: str | list[str]) -> None:
        self.files = [Path(file).expanduser() for file in ([files] if isinstance(files, str) else files)]

    def fingerprint(self) -> str:
        return json.dumps(["lines", hash_files(self.files)])

    def read(self) -> "dict[str, pd.DataFrame]":
        import pandas as pd

        lines: list[str] = []
        for file in self.files:
            try:
                lines += [line.strip() for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
            except OSError as error:
                raise UserError(f"cannot read {file.absolute()}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise UserError(f"{file} is not utf-8 (byte {error.start}); convert it first") from error
        where = ", ".join(map(str, self.files))
        if not lines:
            raise UserError(f"{where}: no line with text")
        table = pd.DataFrame({"text": lines, "label": "text"}, index=range(1, len(lines) + 1))
        table.attrs["where"] = where
        return {"train": table}
