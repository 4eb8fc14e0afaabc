"""The table of final scores: one row a group, with what tells it from the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from project.compare.differences import code, data, short_names, telling
from project.compare.groups import Group, Statistic, best, main_metric

MOST_SETTINGS = 8  # columns of settings; the rest are in the table of differences


@dataclass(frozen=True)
class Column:
    """Cells in the order of the groups.

    Attributes:
        name: its head.
        cells: texts.
        score: whether it holds a measured number.
        best: number of the row that is best, where there is one.
    """

    name: str
    cells: list[str]
    score: bool = False
    best: int | None = None


def summary(groups: Sequence[Group]) -> list[Column]:
    """Label, settings that differ, number of runs, metrics, what training took."""
    columns = [Column("", [g.label for g in groups]), *distinctions(groups)]
    columns += [Column("n", [str(len(g.records)) for g in groups])]
    for metric in metrics(groups):
        winner = best(metric, groups)
        row = None if winner is None else list(groups).index(winner)
        columns.append(Column(metric, show_all([g.score(metric) for g in groups]), score=True, best=row))
    for fact, name, decimals in (("seconds", "training, s", 1), ("parameters", "parameters", 0)):
        statistics = [g.took(fact) for g in groups]
        if any(statistics):
            columns.append(Column(name, show_all(statistics, decimals), score=True))
    return columns


def distinctions(groups: Sequence[Group]) -> list[Column]:
    """What tells groups apart: settings by short name, and hashes of code and of training data."""
    if len(groups) < 2:
        return []
    rows = dict(telling(groups))
    short = short_names(list(rows))
    columns = [Column(short[name], values) for name, values in list(rows.items())[:MOST_SETTINGS]]
    coded, datas = dict(code(groups)), dict(data(groups))
    for name, values in (
        ("code", coded.get("code_sha256") or coded.get("git_commit")),
        ("data", datas.get("splits.train.sha256")),
    ):
        if values is not None:
            columns.append(Column(name, values))
    return columns


def describe(groups: Sequence[Group], most: int = 64) -> list[str]:
    """What tells each group from the others, in a few words."""
    columns = distinctions(groups)
    texts = []
    for i in range(len(groups)):
        text = ", ".join(f"{column.name} {column.cells[i]}" for column in columns)
        texts.append(text if len(text) <= most else text[: most - 1] + "…")
    return texts


def metrics(groups: Sequence[Group]) -> list[str]:
    """Names of the final scores: what is ranked by, then those of the test, then the others."""
    main, _ = main_metric(groups)
    names = {name for g in groups for record in g.records for name in record.scores}
    return sorted(names, key=lambda name: (name != main, not name.startswith("test/"), name))


def show_all(statistics: Sequence[Statistic | None], most: int = 6) -> list[str]:
    """``mean ± standard deviation``, with decimals, `most` at most, for two digits of the column's usual spread."""
    decimals = min(_decimals([s for s in statistics if s is not None]), most)
    return ["–" if s is None else show(s, decimals) for s in statistics]


def show(statistic: Statistic, decimals: int) -> str:
    mean = f"{statistic.mean:,.{decimals}f}"
    return mean if math.isnan(statistic.std) or statistic.std == 0 else f"{mean} ± {statistic.std:.{decimals}f}"


def _decimals(statistics: Sequence[Statistic]) -> int:
    spreads = sorted(s.std for s in statistics if s.std > 0)  # not NaN
    sizes = [abs(s.mean) for s in statistics if math.isfinite(s.mean) and s.mean]
    if spreads:
        digits = 1 - math.floor(math.log10(spreads[len(spreads) // 2]))
    else:
        digits = 3 - math.floor(math.log10(max(sizes, default=1.0)))
    return max(digits, 0)
