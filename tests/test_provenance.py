"""What is written down of the code."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from project.callbacks.run_record import code_sha256, installed_packages, provenance


def test_versions_are_those_that_packages_say_of_themselves() -> None:
    packages = installed_packages()
    assert {name: packages[name] for name in ("torch", "lightning", "wandb")} == {
        name: version(name) for name in ("torch", "lightning", "wandb")
    }


def test_the_commit_is_the_checkouts() -> None:
    facts = provenance()
    assert facts["git_commit"] is None or len(facts["git_commit"]) == 40
    assert isinstance(facts["git_changes"], list)


def test_the_code_is_hashed_with_what_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    hashes = []
    for name, text in [("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("README.md", "text"), ("a.py", "1")]:
        (tmp_path / name).write_text(text)
        hashes.append(code_sha256())
    assert len(set(hashes[:3])) == 3 and hashes[3] == hashes[2] and hashes[4] not in hashes[:4]
