"""Runs that are equal in everything but their seeds, as one: mean and standard deviation of scores and curves."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from project.compare.record import Floats, Record
from project.compare.settings import is_aside, is_seed


@dataclass(frozen=True)
class Statistic:
    """Mean of n values and their sample standard deviation, which is NaN for n < 2."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Statistic":
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), std, len(values))


@dataclass(frozen=True)
class Curve:
    """The mean over runs at each step, the sample standard deviation (NaN for fewer than two runs), their number."""

    steps: Floats
    mean: Floats
    std: Floats
    n: Floats

    @classmethod
    def of(cls, curves: Sequence[tuple[Floats, Floats]]) -> "Curve":
        """At each step where a run has a value: of the runs that have begun and not ended there, straight between."""
        steps = np.unique(np.concatenate([s for s, _ in curves]))
        values = np.stack([np.interp(steps, s, v, left=np.nan, right=np.nan) for s, v in curves])
        there = np.isfinite(values)
        n = there.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(there, values, 0).sum(0) / n
            squares = np.where(there, (values - mean) ** 2, 0).sum(0)
            return cls(steps, mean, np.sqrt(np.where(n > 1, squares / (n - 1), np.nan)), n.astype(float))

    def thinned(self, most: int) -> "Curve":
        """At most so many points, evenly chosen, the first and the last among them."""
        if len(self.steps) <= most:
            return self
        kept = np.linspace(0, len(self.steps) - 1, most).round().astype(int)
        return Curve(self.steps[kept], self.mean[kept], self.std[kept], self.n[kept])


@dataclass(frozen=True)
class Group:
    """Repeats of one experiment.

    Attributes:
        label: a letter for short.
        records: its runs.
    """

    label: str
    records: list[Record]

    def score(self, metric: str) -> Statistic | None:
        """Of the final scores; None if no run has one."""
        values = [record.scores[metric] for record in self.records if metric in record.scores]
        return Statistic.of(values) if values else None

    def took(self, fact: str) -> Statistic | None:
        """Of what training took: seconds, parameters, ...; None if no run says."""
        values = [value for record in self.records if (value := record.training.get(fact)) is not None]
        return Statistic.of(values) if values else None

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Mean curves by metric."""
        names = {name for record in self.records for name in record.curves}
        return {name: Curve.of([r.curves[name] for r in self.records if name in r.curves]) for name in names}

    @cached_property
    def seeds(self) -> list[str]:
        """What each run was seeded with: its values of those seeds in which the runs differ."""
        names = {name for record in self.records for name in record.settings if is_seed(name)}
        varying = [n for n in sorted(names) if len({str(r.settings.get(n)) for r in self.records}) > 1]
        values = [[str(r.settings.get(n, "–")) for n in varying or ["seed_everything"]] for r in self.records]
        return ["/".join(dict.fromkeys(several)) for several in values]


def group(records: Iterable[Record]) -> list[Group]:
    """Repeats together, the best by `main_metric` first, those without a score last; labelled A, B, ..."""
    repeats: dict[str, list[Record]] = {}
    for record in records:
        repeats.setdefault(identity(record), []).append(record)
    unsorted = [Group("", repeat) for repeat in repeats.values()]
    metric, mode = main_metric(unsorted)
    sign = -1.0 if mode == "max" else 1.0

    def rank(candidate: Group) -> float:
        score = candidate.score(metric) if metric else None
        return math.inf if score is None or math.isnan(score.mean) else sign * score.mean

    return [Group(letters(i), g.records) for i, g in enumerate(sorted(unsorted, key=rank))]


def identity(record: Record) -> str:
    """Equal for runs that differ in seeds, name and what is aside alone: settings, data and code."""
    settings = {k: v for k, v in record.settings.items() if not (is_aside(k) or is_seed(k))}
    code = record.code.get("code_sha256") or [record.code.get("git_commit"), record.code.get("git_changes")]
    return json.dumps([settings, record.data.get("splits"), code], sort_keys=True, default=str)


def main_metric(groups: Sequence[Group]) -> tuple[str | None, str]:
    """What to rank by: the test's counterpart of the metric that the checkpoints were chosen by, or that itself."""
    for record in (record for g in groups for record in g.records):
        monitor, mode = record.monitor
        if monitor is not None:
            test = "test/" + monitor.partition("/")[2]
            tested = any(test in record.scores for g in groups for record in g.records)
            return (test if tested else monitor), mode
    return None, "min"


def direction(metric: str, groups: Sequence[Group]) -> str | None:
    """Whether the best is the ``min`` or the ``max``; None if neither the monitor nor the name tells."""
    main, mode = main_metric(groups)
    kind = metric.rpartition("/")[2]
    if main is not None and kind == main.rpartition("/")[2]:
        return mode
    if any(word in kind for word in ("loss", "perplexity", "error", "nll")):
        return "min"
    return "max" if any(word in kind for word in ("accuracy", "f1", "auroc", "precision", "recall")) else None


def best(metric: str, groups: Sequence[Group]) -> Group | None:
    """The group whose mean is best, if there is more than one and it can be said."""
    mode = direction(metric, groups)
    scored = [(score.mean, g) for g in groups if (score := g.score(metric)) and math.isfinite(score.mean)]
    if mode is None or len(scored) < 2:
        return None
    return (max if mode == "max" else min)(scored, key=lambda pair: pair[0])[1]


def letters(number: int) -> str:
    """A for 0, Z for 25, AA for 26."""
    return (letters(number // 26 - 1) if number >= 26 else "") + chr(65 + number % 26)
