"""Pretraining must not see what a later run is tested on."""

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from project.data.sources import Source
from project.data.text import TextClassificationData
from project.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


class WithoutHeldOut(Source):
    """A source without the texts that another configuration keeps for validation and test.

    Texts are the same if they differ in case and spacing only; one is also left out if a held-out text is what stands
    before one of its semicolons, as a definition stands before the examples of its use.

    Args:
        source: the texts.
        config: a configuration whose data is `TextClassificationData`, such as configs/classify.yaml.

    Raises:
        UserError: the configuration cannot be read, or holds no such data.
    """

    def __init__(self, source: Source, config: str) -> None:
        self.source, self.config = source, config

    @cached_property
    def other(self) -> TextClassificationData:
        """The data of the other configuration."""
        from jsonargparse import ArgumentError, ArgumentParser

        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(TextClassificationData, "data")
        try:
            data = yaml.safe_load(Path(self.config).read_text(encoding="utf-8"))["data"]
            other: TextClassificationData = parser.instantiate(parser.parse_object({"data": data})).data
        except OSError as error:
            raise UserError(f"cannot read {Path(self.config).absolute()}: {error.strerror}") from error
        except (yaml.YAMLError, KeyError, TypeError, ArgumentError) as error:
            raise UserError(f"{self.config} does not configure TextClassificationData as its data") from error
        return other

    def fingerprint(self) -> str:
        return json.dumps(["without held-out", self.source.fingerprint(), self.other.folder.resolve().name])

    def read(self) -> "dict[str, pd.DataFrame]":
        splits = self.other.splits
        held_out = {text for name in ("val", "test") for text in map(key, splits[name].texts)}
        return {
            name: table[[held_out.isdisjoint(beginnings(text)) for text in table["text"]]]
            for name, table in self.source.read().items()
        }


def key(text: str) -> str:
    return " ".join(text.lower().split())


def beginnings(text: str) -> list[str]:
    """The text, and all that stands before one of its semicolons."""
    parts = key(text).split(";")
    return [";".join(parts[:end]).strip() for end in range(1, len(parts) + 1)]
