"""What differs between groups: in configuration, in data, in code."""

from collections.abc import Callable, Sequence
from typing import Any

from project.compare.groups import Group
from project.compare.record import Record
from project.compare.settings import flatten, is_aside, is_seed

ABSENT = "–"
CODE = ("git_commit", "git_changes", "code_sha256", "python", "platform", "accelerator", "torch_threads")

# Name of what differs, and its value in each group, in the groups' order.
Rows = list[tuple[str, list[str]]]


def configuration(groups: Sequence[Group]) -> Rows:
    """Settings, without seeds and without what does not change a run's numbers."""
    return differing(groups, lambda r: {k: v for k, v in r.settings.items() if not (is_aside(k) or is_seed(k))})


def telling(groups: Sequence[Group]) -> Rows:
    """The same for a short table: options of a class that differs come last, and only if not implied by the class."""
    rows = dict(configuration(groups))
    below = {name for name in rows if any(name.startswith(f"{other}.") for other in rows)}
    implied = {name for name in below if ABSENT in rows[name] and len(set(rows[name])) == 2}  # one value, or not there
    return sorted(((name, rows[name]) for name in rows if name not in implied), key=lambda row: row[0] in below)


def data(groups: Sequence[Group]) -> Rows:
    """Source, sizes and hashes of the splits."""
    return differing(groups, lambda r: flatten(r.data) if r.data else {"data.json": "not recorded"})


def code(groups: Sequence[Group]) -> Rows:
    """Commit, uncommitted files, hash of all Python files, machine and package versions."""

    def facts(record: Record) -> dict[str, Any]:
        packages = {f"package {name}": version for name, version in record.code.get("packages", {}).items()}
        return {name: record.code[name] for name in CODE if name in record.code} | packages

    return differing(groups, facts)


def differing(groups: Sequence[Group], facts: Callable[[Record], dict[str, Any]]) -> Rows:
    """What has not the same value in all runs. Where the runs of a group differ, it has all their values."""
    by_group = [[facts(record) for record in g.records] for g in groups]
    names = dict.fromkeys(name for runs in by_group for run in runs for name in run)  # in order
    rows: Rows = []
    for name in names:
        values = [
            list(dict.fromkeys(show(name, run[name]) if name in run else ABSENT for run in runs)) for runs in by_group
        ]
        if len({value for several in values for value in several}) > 1:
            rows.append((name, [" | ".join(several) for several in values]))
    return rows


def show(name: str, value: Any) -> str:
    """A value for the reader; hashes shortened."""
    if value is None:
        return "null" if name not in CODE else "none"
    if name == "git_changes":
        return ", ".join(line[3:] or line for line in value) or "none"
    if name.endswith(("sha256", "commit")):
        return str(value)[:8]
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """As few last parts of each dotted name as tell it from the others."""
    short = {}
    for name in names:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            short[name] = ".".join(parts[-count:])
            if sum(other.endswith("." + short[name]) or other == short[name] for other in names) == 1:
                break
    return short


def warnings(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before comparing scores."""
    found = []
    records = [record for g in groups for record in g.records]
    tests = {record.data.get("splits", {}).get("test", {}).get("sha256") for record in records} - {None}
    if len(tests) > 1:
        found.append("The runs were tested on different data: their test scores do not compare.")
    if unknown := sum(not record.data for record in records):
        found.append(f"{unknown} of {len(records)} runs did not record their data.")
    if unfinished := sum(not record.scores for record in records):
        found.append(f"{unfinished} of {len(records)} runs have no final scores: they have not ended, or were stopped.")
    for g in groups:
        if repeated := sorted({seed for seed in g.seeds if g.seeds.count(seed) > 1}):
            found.append(
                f"Runs of {g.label} share the seed {', '.join(repeated)}: their spread says less than it seems."
            )
    return found
