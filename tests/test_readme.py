"""Each command of README.md and of its translations, word for word, on small data.

What shortens them is one thing: they run where `configs/` holds small copies (`small`) and `runs/` two runs named ID.
What cannot run here is checked as far as it can be: benchmarks, trainings in several processes and a GPU's by their
words, what installs by what it names.
"""

import importlib
import io
import pkgutil
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import project
from project.__main__ import main

PACKAGE = project.__name__
ROOT = Path(__file__).parents[1]


def commands(file: Path) -> list[str]:
    """The lines of the blocks of bash, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.join(words) for block in blocks for line in block.splitlines() if (words := shlex.split(line, True))]


PAGES = sorted(ROOT.glob("README*.md"))
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_translations_have_the_same_commands(page: Path) -> None:
    assert len(COMMANDS) > 10 and commands(page) == commands(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(
        rf"`((?:configs|{PACKAGE}|benchmarks|notebooks|tests)/[\w./-]+|[\w.]+\.(?:toml|txt|yaml|zh\.md))`", text
    )
    named += re.findall(r"\[[^]]*\]\(([\w./-]+)\)", text)
    assert "pyproject.toml" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_objects_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(rf"`({PACKAGE}(?:\.\w+)+)[`(]", page.read_text(encoding="utf-8"))
    assert f"{PACKAGE}.notebook.load_run" in named
    for name in named:
        assert pkgutil.resolve_name(name)


def small(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that trains in a second: a table of its own, one layer, twice two batches, no export."""
    trainer, model, data = config["trainer"], config["model"]["init_args"], config["data"]["init_args"]
    trainer |= {"max_epochs": 2, "limit_train_batches": 2, "limit_val_batches": 2, "accelerator": "cpu", "devices": 1}
    trainer["check_val_every_n_epoch"] = 1
    export = f"{PACKAGE}.callbacks.Export"
    trainer["callbacks"] = [callback for callback in trainer["callbacks"] if callback["class_path"] != export]
    model["encoder"]["init_args"]["num_layers"] = 1
    if "source" in data:
        table = {"class_path": f"{PACKAGE}.data.TableFile", "init_args": {"train": "texts.csv"}}
        data |= {"source": table, "vocab_size": 300, "tokens_per_batch": 512}
    return config


@pytest.fixture(scope="module")
def finished(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with small configurations, tables and finished runs."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "configs", folder / "configs")
    for name in "classify", "digits", "pretrain":
        file = folder / "configs" / f"{name}.yaml"
        file.write_text(yaml.safe_dump(small(yaml.safe_load(file.read_text()))))
    space = folder / "configs/sweep/classify.yaml"
    space.write_text(yaml.safe_dump(yaml.safe_load(space.read_text()) | {"run_cap": 1}))
    texts = pd.read_csv(table)
    texts.assign(body=texts["text"]).to_csv(folder / "texts.csv", index=False)
    texts.rename(columns={"text": "body", "label": "stars"}).to_csv(folder / "reviews.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "offline")
        for name in "classify", "pretrain":
            fit = ["fit", "--config", f"configs/{name}.yaml", "--run", f"runs/{name}/ID", "--ckpt_path", "auto"]
            assert main(fit) == 0
        if any("--bundle" in command for command in COMMANDS):
            assert main(["export", "--run", "runs/classify/ID", "--artifacts", "onnx"]) == 0
    return folder


@pytest.fixture
def workspace(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "work"
    shutil.copytree(finished, folder, symlinks=True)
    monkeypatch.chdir(folder)
    yield folder


def status(arguments: list[str]) -> int | str | None:
    try:
        return main(arguments)
    except SystemExit as end:  # argparse's, after --help
        return end.code


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_what_it_says(
    command: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    if words[0] == "echo":
        said, bar, words = words[1], words[2], words[3:]
        assert bar == "|"
        monkeypatch.setattr("sys.stdin", io.StringIO(said + "\n"))
    if words[0] == "source":
        words = shlex.split(" ".join(words[1:]).removeprefix("<(").removesuffix(")"))
    words[0] = words[0].removeprefix(".venv/bin/")
    match words:
        case ["python", "-m", package, "fit", *options] if package == PACKAGE and "configs/trainer/" in command:
            from project.cli import parse

            assert parse(["fit", *options])["trainer"]["devices"]  # trained in tests of strategies and processes
        case ["python", "-m", package, *arguments] if package == PACKAGE:
            before = {*workspace.rglob("*")}
            assert status(arguments) == 0
            made = {path.name for path in {*workspace.rglob("*")} - before}
            said = capsys.readouterr().out
            assert made or said.strip()
            if "--output" in arguments:
                assert arguments[arguments.index("--output") + 1] in made
        case ["python", "-m", module, *arguments] if module.startswith("benchmarks."):
            assert not refused(module, arguments, monkeypatch, capsys)
        case ["wandb", "sweep", *arguments]:
            from wandb.cli.cli import sweep

            context = sweep.make_context("sweep", arguments)
            assert yaml.safe_load(Path(context.params["config_yaml_or_sweep_id"]).read_text())["parameters"]
        case ["torchrun", *launch] if (end := launch.index("--")) and launch[end + 1 : end + 3] == [PACKAGE, "fit"]:
            from torch.distributed.run import get_args_parser

            from project.arguments import take_option
            from project.cli import parse

            nodes = get_args_parser().parse_args(launch).nnodes
            run, options = take_option(launch[end + 3 :], "--run")
            point, options = take_option(options, "--ckpt_path")
            assert run and point == "auto"
            assert str(parse(["fit", *options])["trainer"]["num_nodes"]) == nodes
        case ["sbatch", script, *options]:
            subprocess.run(["bash", "-n", script], check=True)
            from project.cli import parse

            assert parse(["fit", *options])["model"]
        case ["make", target]:
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}: \.venv/installed$", makefile, re.MULTILINE)
        case ["python3", "-m", "venv", folder]:
            assert folder == ".venv"
        case ["pip", "install", "-c", constraints, *packages]:
            assert (ROOT / constraints).is_file()
            installs(packages)
        case _:
            pytest.fail(f"nothing here knows how to run it: {command}")


def refused(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Which words a benchmark does not know. One more that none knows ends it before it measures."""
    monkeypatch.setattr("sys.argv", [module, *arguments, "--unknown"])
    with pytest.raises(SystemExit):
        importlib.import_module(module).main()
    error = capsys.readouterr().err
    return "" if "unrecognized arguments: --unknown\n" in error else error


def installs(packages: list[str]) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match packages:
        case ["-e", own]:
            named = re.fullmatch(r"\.\[(.+)\]", own)
            assert named and {*named[1].split(",")} <= {*declared["optional-dependencies"]}
        case [package]:
            assert any(re.match(rf"{package}\b", line) for line in declared["dependencies"])
        case _:
            pytest.fail(f"nothing here knows how to install {packages}")
