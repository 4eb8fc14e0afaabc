"""A fork of this repository: what is in it, what is refused, and its own tests."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from project.__main__ import main
from project.errors import UserError
from project.fork import command
from project.fork.command import PACKAGE, ROOT, git, repository_files
from project.fork.parts import markdown_sections
from project.fork.rename import yaml_nodes

NAME = f"torch_{PACKAGE}s_x"  # holds the old name


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks") / "some where"
    assert main(["new", str(folder), "--name", NAME]) == 0
    return folder


@pytest.fixture(scope="module")
def bare_fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("an empty folder")
    with pytest.MonkeyPatch.context() as patch, StringIO() as said:
        patch.setattr(sys, "stdout", said)
        assert main(["new", str(folder), "--name", NAME, "--without", "demo"]) == 0
        assert said.getvalue().endswith("trains on texts.csv there, a table with the columns text and label\n")
    return folder


def imported(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


def test_nothing_means_the_old_package(fork: Path) -> None:
    meant = re.compile(
        rf"-m(?: --)?[\"', ]+{PACKAGE}\b|(?<![\w/]){PACKAGE}\.(nn|tasks|data|callbacks|cli|loggers|runs)\b"
    )
    files = git(fork, "ls-files").splitlines()
    imports = set()
    for name in files:
        text = (fork / name).read_text(errors="replace")
        assert not meant.findall(text), name
        if name.endswith(".py"):
            imports |= imported(ast.parse(text))
    assert NAME in imports and PACKAGE not in imports
    moved = {re.sub(f"^{PACKAGE}/", f"{NAME}/", str(path)) for path in repository_files()}
    assert set(files) == moved


def test_configurations_name_the_new_package_and_are_otherwise_as_they_were(fork: Path) -> None:
    for file in sorted((ROOT / "configs").rglob("*.yaml")):
        old, new = (yaml.safe_load((root / file.relative_to(ROOT)).read_text()) for root in (ROOT, fork))
        assert str(new) == re.sub(rf"\b{PACKAGE}(\.|(?=', 'fit'))", rf"{NAME}\1", str(old)), file
    table = tomllib.loads((fork / "pyproject.toml").read_text())
    assert table["project"]["name"] == NAME
    assert table["tool"]["setuptools"]["packages"]["find"]["include"] == [f"{NAME}*"]
    assert list(table["tool"]["setuptools"]["package-data"]) == [NAME]
    assert table["tool"]["coverage"]["run"]["source"] == [NAME]
    assert table["tool"]["mypy"]["files"][0] == NAME


def test_one_commit_that_holds_everything(fork: Path) -> None:
    assert git(fork, "rev-list", "--count", "HEAD").strip() == "1"
    assert git(fork, "status", "--porcelain", "--ignored") == ""
    assert os.access(fork / ".ci/run", os.X_OK) and not os.access(fork / "README.md", os.X_OK)
    assert [path.name for path in fork.parent.iterdir()] == [fork.name]


@pytest.mark.parametrize("which", ["fork", "bare_fork"])
def test_it_is_linted(which: str, request: pytest.FixtureRequest) -> None:
    for words in (["check"], ["format", "--check"]):
        run = [sys.executable, "-m", "ruff", *words, "--no-cache", "."]
        done = subprocess.run(run, cwd=request.getfixturevalue(which), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_without_the_demo_nothing_reads_it(bare_fork: Path) -> None:
    files = [bare_fork / name for name in git(bare_fork, "ls-files").splitlines()]
    texts = {str(file.relative_to(bare_fork)): file.read_text(errors="replace") for file in files}
    naming = {name for name, text in texts.items() if re.search("WordNet|-m benchmarks|transformers[.=>]", text)}
    assert {name for name in naming if "fork/" not in name} == set()
    assert not (bare_fork / "benchmarks").exists() and not (bare_fork / "tests/benchmarks").exists()
    for name in ("classify", "quick", "pretrain"):
        nodes = [*yaml_nodes((bare_fork / "configs" / f"{name}.yaml").read_text())]
        assert f"{NAME}.data.TableFile" in [node.value for node in nodes]
    table = tomllib.loads((bare_fork / "pyproject.toml").read_text())
    assert "bench" not in table["project"]["optional-dependencies"]
    assert table["tool"]["mypy"]["files"] == [NAME]


def test_without_the_demo_its_documents_show_no_figures_and_are_whole(bare_fork: Path) -> None:
    for page in sorted(bare_fork.glob("*.md")):
        blocks = [block for section in markdown_sections(page.read_text()) for block in section]
        numbers = [block for block in blocks if re.search(r"\d \||65,188|8,148|run\.png", block)]
        assert numbers == [], page
        assert blocks[-1][0] not in "#|", page
        for block, following in pairwise(blocks):
            assert not (block.startswith("## ") and following.startswith("## ")), block
            assert block[-1] not in ":：" or following.startswith(("```", "- ", "|")), block


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["new", str(tmp_path / "a"), "--name", NAME, "--without", "benchmarks", "--dry_run"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  {PACKAGE}/errors.py -> {NAME}/errors.py: 0 lines changed" in lines
    assert re.search(r"^  configs/digits\.yaml: 3 lines changed$", "\n".join(lines), re.MULTILINE)
    dropped = {f"  {path}: left out" for path in repository_files() if "benchmarks" in path.parts}
    assert {line for line in lines if line.endswith("left out")} == dropped
    assert not any("LICENSE" in line for line in lines)
    assert re.fullmatch(rf"{tmp_path}/a would hold \d+ files and one commit; nothing is written", lines[-1])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my-research", "small letters, digits and _, a letter first and no _ last, such as my_research"),
        ("2x", "a letter first"),
        ("x_", "no _ last, such as x"),
        ("größe", "small letters"),
        ("a.b", "such as a_b"),
        ("", "a letter first"),
        ("class", "a keyword of Python"),
        ("json", "a module of that name is installed"),
        ("torch", "a module of that name is installed"),
        (PACKAGE, "the repository has a folder of that name"),
        ("configs", "the repository has a folder of that name"),
    ],
)
def test_names_that_are_refused(name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / "a"), "--name", name]) == 1
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folders_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for path, says in (
        (tmp_path, "is there already"),
        (tmp_path / "file", "is there already"),
        (tmp_path / "none" / "a", "is no folder; make it first"),
        (ROOT / "tests" / "a", f"lies within {ROOT}"),
    ):
        assert main(["new", str(path), "--name", NAME]) == 1
        assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [UserError("no space"), KeyboardInterrupt()])
def test_nothing_half_made_stays(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        assert (folder / NAME / "__main__.py").is_file()
        raise error

    monkeypatch.setattr(command, "format_code", fail)
    monkeypatch.setattr(command, "repository_files", lambda: [Path(PACKAGE, "__main__.py")])
    assert main(["new", str(tmp_path / "a"), "--name", NAME]) != 0
    assert not list(tmp_path.iterdir())


def test_an_unpacked_archive_is_forked_without_what_git_would_ignore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        ".gitignore",
        "pyproject.toml",
        f"{PACKAGE}/a.py",
        f"{PACKAGE}/__pycache__/a.pyc",
        "runs/a/config.yaml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("__pycache__/\nruns/\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))  # as in a hook
    assert list(map(str, repository_files())) == sorted([".gitignore", f"{PACKAGE}/a.py", "pyproject.toml"])


@pytest.mark.slow
def test_its_own_tests_pass(bare_fork: Path, tmp_path: Path) -> None:
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").write_text("raise ImportError('the template is imported')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    chosen = [
        "tests/nn",
        "tests/fork/test_rename.py",
        "tests/test_house.py",
        "tests/test_parser.py",
        "tests/e2e/test_digits.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *chosen],
        cwd=bare_fork, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
