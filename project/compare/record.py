"""What one run's folder tells: settings, data, code, final scores and curves."""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from project.compare.sections import X_AXES
from project.compare.settings import flatten
from project.errors import UserError
from project.files import read_json
from project.runs import Run

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """One run.

    Attributes:
        run: its folder.
        settings: the configuration by dotted name.
        data: source, and sizes and hashes of its splits; empty if the run did not record them.
        code: commit, changes, packages, machine.
        training: seconds, steps, parameters; empty before the end.
        scores: the final ones by metric; empty before the end.
        curves: steps and values of every logged metric, (S,) each.
    """

    run: Run
    settings: dict[str, Any]
    data: dict[str, Any]
    code: dict[str, Any]
    training: dict[str, Any]
    scores: dict[str, float]
    curves: dict[str, tuple[Floats, Floats]]

    @classmethod
    def read(cls, run: Run) -> "Record":
        """
        Raises:
            UserError: a file of the run is broken; says which.
        """
        folder = run.folder
        settings = flatten(run.config)
        if earlier := len(list(folder.glob("config-*.yaml"))):
            settings["earlier_configurations"] = earlier  # it went on with other settings than it began with
        scores = read_json(folder / "metrics.json")
        return cls(
            run=run,
            settings=settings,
            data=read_json(folder / "data.json"),
            code=read_json(folder / "provenance.json"),
            training=read_json(folder / "training.json"),
            scores={name: float(value) for name, value in scores.items() if isinstance(value, int | float)},
            curves=read_curves(folder / "metrics.csv"),
        )

    @cached_property
    def monitor(self) -> tuple[str | None, str]:
        """The metric that its checkpoint was chosen by, and whether it is to be ``min`` or ``max``."""
        for name, value in self.settings.items():
            if name.endswith(".ModelCheckpoint.monitor") and value:
                return value, self.settings.get(name.removesuffix("monitor") + "mode") or "min"
        return None, "min"


def read_curves(file: Path) -> dict[str, tuple[Floats, Floats]]:
    """Steps in ascending order and values of every metric in ``metrics.csv``; of values logged twice the last counts.

    Raises:
        UserError: it has no column of steps, or a field is no number; names the line.
    """
    points: dict[str, dict[float, float]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if reader.fieldnames and "step" not in reader.fieldnames:
                raise UserError(f"{file} has no column 'step'")
            names = [name for name in reader.fieldnames or () if name not in X_AXES]
            for row in reader:
                for name in names:
                    if row[name]:
                        points.setdefault(name, {})[float(row["step"])] = float(row[name])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, TypeError, csv.Error) as error:  # also of a row that is cut off
        raise UserError(f"{file}: line {reader.line_num}: {error}") from error
    return {name: (np.array(sorted(p)), np.array([p[step] for step in sorted(p)])) for name, p in points.items()}
