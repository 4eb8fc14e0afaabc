"""The house as CONTRIBUTING.md draws it: who imports whom, what is imported when, and examples that run."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import project
from project.__main__ import VERBS, main

PACKAGE = project.__name__
ROOT = Path(project.__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
EXTRAS = {"demo", "export", "sweep", "dashboard", "bench", "notebooks"}
MODULE_NAMES = {"scikit-learn": "sklearn", "pyyaml": "yaml"}  # of packages that are imported by another name
NEED_AN_EXTRA = {"sweep.space", "sweep.study", "sweep.worker"}  # which `sweep.command` and Pruning import late


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


class Import(NamedTuple):
    importer: str  # a module of the package, such as "data.text"; "" is the package itself
    imported: str  # in full
    late: bool  # inside a function, or for the type checker alone


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts).removesuffix("__init__").rstrip(".")


def imports_of(importer: str, node: ast.AST, late: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(importer, alias.name, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer}: imports are absolute"
            names = [f"{PACKAGE}.{alias.name}" for alias in child.names] if child.module == PACKAGE else [child.module]
            yield from (Import(importer, str(name), late) for name in names)
        is_late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from imports_of(importer, child, late or is_late or is_typing)


MODULES = {module_name(file): ast.parse(file.read_text()) for file in sorted((ROOT / PACKAGE).rglob("*.py"))}
IMPORTS = [found for module, tree in MODULES.items() for found in imports_of(module, tree)]


def rooms(guide: str = GUIDE) -> dict[str, tuple[int, str]]:
    """Floor and room of each name in the list of CONTRIBUTING.md. The highest line is the lowest floor."""
    text = re.search(r"^```text\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert text
    places = {}
    for floor, line in enumerate(text[1].splitlines()):
        for room in re.split(r"\s{2,}", line)[0].split(", "):
            names = room.split(" + ")
            places |= {name: (floor, names[0]) for name in names}
    return places


def place(module: str, places: dict[str, tuple[int, str]]) -> tuple[int, str]:
    first, _, rest = module.partition(".")
    name = "*.command" if rest == "command" else first
    assert name in places, f"{PACKAGE}/{first} stands in no room: add it to the list in CONTRIBUTING.md"
    return places[name]


def violations(imports: list[Import], places: dict[str, tuple[int, str]]) -> list[str]:
    wrong = []
    for importer, imported, _ in imports:
        inside, _, module = imported.partition(".")
        if inside != PACKAGE or not module or module == "__version__" or not importer:
            continue
        (own_floor, own), (floor, room) = place(importer, places), place(module, places)
        if own != room and floor >= own_floor:
            wrong.append(f"{importer} imports {module}")
    return wrong


def test_rooms_keep_their_order() -> None:
    assert not violations(IMPORTS, rooms())


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("tasks.base", "data.text"), ("data.text", "tasks"), ("nn.encoder", "errors"), ("runs", "cli")],
)
def test_an_import_that_breaks_the_order_is_found(importer: str, imported: str) -> None:
    tree = ast.parse(f"def late():\n    from {PACKAGE}.{imported} import thing")
    assert violations(list(imports_of(importer, tree)), rooms()) == [f"{importer} imports {imported}"]


def test_nn_is_plain_torch() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    foreign = [
        f"{importer} imports {imported}"
        for importer, imported, _ in IMPORTS
        if importer.split(".")[0] == "nn"
        and not imported.startswith(f"{PACKAGE}.nn")
        and imported.split(".")[0] not in allowed
    ]
    assert not foreign


def test_what_an_extra_brings_is_imported_where_it_is_used() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = configuration["optional-dependencies"]
    names = [re.split(r"[^\w-]", line)[0] for extra in EXTRAS & extras.keys() for line in extras[extra]]
    optional = {MODULE_NAMES.get(name, name.replace("-", "_")) for name in names}
    early = {importer for importer, imported, late in IMPORTS if not late and imported.split(".")[0] in optional}
    assert "optuna" in optional
    assert early <= NEED_AN_EXTRA
    needing = {f"{PACKAGE}.{module}" for module in NEED_AN_EXTRA}
    assert not {i for i, imported, late in IMPORTS if not late and imported in needing and i not in NEED_AN_EXTRA}


def test_what_needs_no_torch_imports_none() -> None:
    light = ("__main__", "export.predictor", "compare", "compare.command", "predict", "fork.command")
    words = [f"{PACKAGE}.{name}" for name in light]
    heavy = ["torch", "lightning", "pandas", "matplotlib", "wandb", "pyarrow", "onnxruntime"]
    code = f"import sys, {', '.join(words)}; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == []


def test_the_daily_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in "".join(blocks("console")).splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), line
        elif "pytest" in words[0]:
            assert (ROOT / words[1]).exists(), line
        else:
            assert words[1:3] == ["-m", PACKAGE]
            assert words[3] in VERBS, line


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of CONTRIBUTING.md, each named by its first line, as the working folder."""
    for text in [*blocks("python"), *blocks("yaml")]:
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def test_the_examples_run(examples: Path) -> None:
    for line in "".join(blocks("bash")).splitlines():
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", PACKAGE], line
        assert main(words[3:]) == 0, line
    (run,) = examples.glob("runs/counts/2*")
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    assert "train/padding" in rows[0]
    error = float((run / "metrics.json").read_text().partition('"test/error":')[2].strip(" }\n").split(",")[0])
    assert error < 0.5  # that of the median, whatever the text, is above 1


def test_the_example_task_and_encoder_pass_the_suite(examples: Path) -> None:
    files = ["test_ordinal.py", "test_mixer.py"]
    assert pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(examples), *files]) == 0
