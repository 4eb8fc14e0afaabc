import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from benchmarks import dependencies


def test_each_dependency_says_what_it_is_for() -> None:
    lines = list(dependencies.declared(dependencies.PYPROJECT.read_text()))
    assert {extra for extra, _, _ in lines} >= {"", "demo", "export", "sweep", "dashboard", "bench", "notebooks", "dev"}
    assert [requirement for _, requirement, purpose in lines if not purpose] == []


def test_what_a_package_brings_is_counted() -> None:
    found = dependencies.closure(["jsonargparse[signatures]"])
    assert found >= {"jsonargparse", "pyyaml", "docstring-parser"} and "torch" not in found
    assert dependencies.closure(["jsonargparse"]) < found
    assert dependencies.megabytes(["pyyaml"]) < dependencies.megabytes(["pyyaml", "numpy"]) > 10


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        '[project]\ndependencies = [\n    "numpy>=2", # arrays\n]\n'
        '[project.optional-dependencies]\nsweep = ["optuna>=5"] # searches\n'
        'more = [\n    "no-such-package", # nothing\n]\n'
        "[tool.ruff]\n"
    )
    monkeypatch.setattr(dependencies, "PYPROJECT", pyproject)
    dependencies.main(["--repeats", "1"])
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row[1:] for row in table if len(row) == 5}
    assert rows["numpy"][:2] == ["always", "arrays"] and rows["numpy"][3].endswith(" s")
    assert rows["optuna"][:2] == ["sweep", "searches"] and rows["optuna"][2].endswith(" MB")
    assert rows["no-such-package"] == ["more", "nothing", "", ""]


def test_all_that_they_bring_is_pinned_exactly() -> None:
    lines = (dependencies.PYPROJECT.parent / "constraints.txt").read_text().splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==[\w.]+", line) for line in lines if not line.startswith("#")]
    assert all(pins)
    names = {canonicalize_name(pin[1]) for pin in pins if pin}
    lines = dependencies.declared(dependencies.PYPROJECT.read_text())
    brought = dependencies.closure(requirement for _, requirement, _ in lines)
    assert len(brought) > 50 and brought - names == set()
