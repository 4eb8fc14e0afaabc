"""Which runs: named by their folders, found in a folder of runs, narrowed by filters such as ``model.d_model=256``."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from project.compare.record import Record
from project.compare.settings import means, resolve
from project.errors import UserError, some
from project.runs import Run


def find(words: Sequence[str], runs_dir: Path) -> tuple[list[Record], list[str]]:
    """The runs that the words name, in the order of their folders, and why others in those folders cannot be read.

    Args:
        words: runs, folders of runs, and filters, all of which a run must pass.
        runs_dir: where to look if there are only filters.

    Raises:
        UserError: nothing is there, or a run that was named itself is broken.
    """
    filters = [word for word in words if "=" in word and not Path(word).exists()]
    places = [Path(word) for word in words if word not in filters] or [runs_dir]
    records: dict[Path, Record] = {}
    broken = []
    for place in places:
        folders = list(_runs_below(place))
        for folder in folders or [Run.open(place).folder]:
            try:
                records.setdefault(folder.resolve(), Record.read(Run(folder)))
            except UserError as error:
                if len(folders) < 2:
                    raise
                broken.append(str(error))
    if not records:
        raise UserError(f"none of the {len(broken)} runs can be read; the first: {broken[0]}")
    chosen = [records[folder] for folder in sorted(records)]
    for text in filters:
        chosen = _filter(text, chosen)
    return chosen, broken


def _runs_below(place: Path) -> Iterator[Path]:
    """Folders with a config.yaml, not looking into those, nor into W&B's, which has files of that name too."""
    for folder, inner, files in os.walk(place):
        if "config.yaml" in files:
            inner.clear()
            yield Path(folder)
        inner[:] = sorted(name for name in inner if name != "wandb" and not name.startswith("."))


def _filter(text: str, records: list[Record]) -> list[Record]:
    typed, _, value = text.partition("=")
    name = resolve(typed, {name for record in records for name in record.settings})
    chosen = [r for r in records if name in r.settings and means(value, r.settings[name])]
    if not chosen:
        there = sorted({str(r.settings[name]) for r in records if name in r.settings})
        raise UserError(f"no run has {name}={value}; there are {some(there, 8)}")
    return chosen
