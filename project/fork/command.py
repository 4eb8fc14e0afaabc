"""new: a project of your own out of this one: the package under your name, a fresh git history, the same tests."""

import keyword
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import project
from project.errors import UserError
from project.fork.parts import PARTS, TEXTS
from project.fork.rename import Renaming
from project.options import Options

ROOT = Path(project.__file__).parents[1]
PACKAGE = project.__name__


class File(NamedTuple):
    """A file of the fork.

    Attributes:
        source: its path here.
        target: its path in the fork.
        content: what it holds there.
        changed: how many lines differ.
    """

    source: Path
    target: Path
    content: bytes
    changed: int


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: the name cannot be a package's, the folder is taken, or something fails; then no folder is left.
    """
    parser = Options("new", __doc__)
    parser.add_argument("path", type=Path, help="folder to be made")
    parser.add_argument("--name", required=True, help="of the package, such as my_research")
    parser.add_argument(
        "--without",
        nargs="+",
        choices=PARTS,
        default=[],
        help=f"leave out the benchmarks, or the demo data: WordNet, the notebooks and benchmarks on it; "
        f"configurations then read {TEXTS}",
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would be done, and do nothing")
    options = parser.parse_args(arguments[1:])
    target = Path(os.path.abspath(options.path.expanduser()))
    check_target(target)
    check_name(options.name)
    without = {*options.without, *(["benchmarks"] if "demo" in options.without else [])}  # which measure on the data
    sources = repository_files()
    files = plan(sources, options.name, without)
    left_out = sorted(set(sources) - {file.source for file in files})
    if options.dry_run:
        for file in files:
            if file.changed or file.source != file.target:
                moved = f" -> {file.target}" if file.source != file.target else ""
                print(f"  {file.source}{moved}: {file.changed} lines changed")
        for path in left_out:
            print(f"  {path}: left out")
        print(f"{target} would hold {len(files)} files and one commit; nothing is written")
        return
    make(target, files, f"A fork of {PACKAGE} {project.__version__}{here()}")
    print(f"{target}: {len(files)} files, package {options.name}, one commit; {len(left_out)} files are left out")
    print(f"next: cd {options.path} && make test")
    if "demo" in without:
        print(f"make fit then trains on {TEXTS} there, a table with the columns text and label")


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a package here.

    Raises:
        UserError: it is no identifier that can be installed, a keyword, or the name of something that is there.
    """
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name):
        hint = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_0123456789").lower()
        raise UserError(
            f"--name {name!r}: a package is named by small letters, digits and _, a letter first and no _ last"
            + (f", such as {hint}" if hint else "")
        )
    if keyword.iskeyword(name):
        raise UserError(f"--name {name}: that is a keyword of Python")
    if (ROOT / name).exists():
        raise UserError(f"--name {name}: the repository has a folder of that name")
    if (found := find_spec(name)) is not None:
        where = found.origin or next(iter(found.submodule_search_locations or ()), "")
        raise UserError(f"--name {name}: a module of that name is installed ({where}); one would hide the other")


def check_target(target: Path) -> None:
    """Refuse a folder that cannot be made.

    Raises:
        UserError: it is there, lies within this repository, or what it would lie in is not there; or this is no clone.
    """
    if not (ROOT / "pyproject.toml").is_file():
        raise UserError(f"{ROOT} holds no repository, only the package; call new from a clone")
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise UserError(f"{target} is there already; give a folder that is not, or an empty one")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent} is no folder; make it first")
    if target.resolve().is_relative_to(ROOT.resolve()):
        raise UserError(f"{target} lies within {ROOT}; give a folder outside")


def git(folder: Path, *words: str) -> str:
    """What git prints, in a folder, whatever repository the caller is in.

    Raises:
        UserError: git fails, or is not there.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    except OSError as error:
        raise UserError(f"git cannot be run, and a fork begins a history: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise UserError(f"git {' '.join(words)}: {error.stderr.strip()}") from error
    return done.stdout


def here() -> str:
    """The commit that is forked, in words; empty where there is no history."""
    try:
        return " at " + git(ROOT, "rev-parse", "--short", "HEAD").strip()
    except UserError:
        return ""


def repository_files() -> list[Path]:
    """Files of the repository that git tracks; of an unpacked archive those that .gitignore does not name."""
    try:
        listed = git(ROOT, "ls-files", "-z")
    except UserError:
        listed = ""
    if not listed:
        with TemporaryDirectory() as folder:
            git(ROOT, "init", "-q", "--bare", folder)
            listed = git(ROOT, f"--git-dir={folder}", "--work-tree=.", "ls-files", "-zo", "--exclude-standard")
    return sorted(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())


def plan(sources: Sequence[Path], name: str, without: set[str]) -> list[File]:
    """Every file of the fork, in memory."""
    modules = frozenset(path.parts[1].removesuffix(".py") for path in sources if path.parts[0] == PACKAGE)
    renaming = Renaming(PACKAGE, name, modules)
    parts = [PARTS[part] for part in sorted(without)]
    files = []
    for source in sources:
        content = (ROOT / source).read_bytes()
        try:
            old = content.decode()
        except UnicodeDecodeError:
            old = None
        if any(part.holds(source, old or "", PACKAGE) for part in parts):
            continue
        if old is None:
            files.append(File(source, renaming.path(source), content, 0))
            continue
        text = old
        for part in parts:
            text = part.removed_from(source, text)
        text = renaming.file(source, text)
        changed = len(set(old.splitlines()) - set(text.splitlines()))
        files.append(File(source, renaming.path(source), text.encode(), changed))
    return files


def make(target: Path, files: Sequence[File], message: str) -> None:
    """Write the fork beside its place, commit it, and move it there.

    Raises:
        UserError: it could not be written or committed.
    """
    stage = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        for file in files:
            path = stage / file.target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            shutil.copymode(ROOT / file.source, path)
        format_code(stage)
        git(stage, "init", "-q", "-b", "main")
        git(stage, "add", "--all", "--force")
        git(stage, *author(stage), "commit", "-qm", message)
        stage.rename(target)
    except OSError as error:
        raise UserError(f"cannot make {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def author(folder: Path) -> list[str]:
    """Options of git by which somebody is the author, where git knows of nobody."""
    try:
        git(folder, "var", "GIT_AUTHOR_IDENT")
    except UserError:
        return ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    return []


def format_code(folder: Path) -> None:
    """Sort imports and wrap code as the new name's first letter and length ask, where ruff is installed."""

    def ruff(*words: str) -> str:
        command = [sys.executable, "-m", "ruff", *words, "--quiet", "--no-cache", "."]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout

    if find_spec("ruff") is None:
        return
    ruff("check", "--select", "I", "--fix")
    ruff("format")
    file = folder / "pyproject.toml"
    text = file.read_text()
    if ruff("check", "--select", "E501") and '"E501"' not in text:  # comments and texts, which no formatter wraps
        ignored = '"E501", # comments with the package\'s long name; code is wrapped by the formatter'
        file.write_text(text.replace("\nignore = [\n", f"\nignore = [\n    {ignored}\n"))
