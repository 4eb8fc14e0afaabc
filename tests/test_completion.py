"""Completion in real shells: what TAB offers, and that other commands of python are completed as before."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from project.__main__ import main
from project.arguments import flatten
from project.completion import PACKAGE, SHELLS, script
from tests.test_schema import CONFIGS

AS_BASH_DOES = """
compopt() { printf '%s\\n' "$*"; }
tab() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  local completer=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
  "$completer" "$1" "${@: -1}" "${@: -2:1}"
  [[ -z $COMPREPLY ]] || printf '%s\\n' "${COMPREPLY[@]}"
}
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {shell: script(shell) for shell in SHELLS}


def output(shell: str, code: str, folder: Path) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    flags = {"bash": ["--norc"], "zsh": ["-f"]}[shell]
    done = subprocess.run([shell, *flags], input=code, capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def tab(scripts: dict[str, str], folder: Path, *words: str, before: str = "") -> list[str]:
    """What bash would offer for the last word, and what it is asked to do besides."""
    quoted = " ".join(f"'{word}'" for word in words)
    return output("bash", f"{before}\n{scripts['bash']}\n{AS_BASH_DOES}\ntab {quoted}", folder)


TASKS = [f"{PACKAGE}.tasks.MaskedLanguageModeling", f"{PACKAGE}.tasks.SequenceClassification", f"{PACKAGE}.tasks.Task"]


# The word typed so far, the one before it, the verb.
@pytest.mark.parametrize(
    ("typed", "before", "verb", "offered"),
    [
        ("v", PACKAGE, "", ["validate"]),
        ("--t", "fit", "fit", ["--trainer."]),
        ("--trainer.max", "fit", "fit", ["--trainer.max_epochs", "--trainer.max_steps", "--trainer.max_time"]),
        ("--c", "fit", "fit", ["--checkpoint.", "--ckpt_path", "--config"]),
        ("--c", "sweep", "sweep", ["--checkpoint.", "--ckpt_path", "--config"]),
        ("--ru", "test", "test", ["--run", "--runs_dir"]),
        ("--v", "test", "test", ["--verbose"]),
        ("--w", "fit", "fit", ["--weights", "--weights_only"]),
        ("--only", "check", "check", ["--only"]),
        ("--pr", "predict", "predict", ["--precision"]),
        ("--model.enc", "fit", "fit", ["--model.encoder", "--model.encoder."]),
        ("--model.encoder.d_", "fit", "fit", ["--model.encoder.d_ff", "--model.encoder.d_model"]),
        ("--model.init_args.encoder.init_args.d_m", "", "fit", ["--model.init_args.encoder.init_args.d_model"]),
        ("--model.encoder.word", "", "fit", []),  # a task is no encoder of a task
        ("--model.optimizer.weight", "", "fit", ["--model.optimizer.weight_decay"]),
        ("--data.source.tr", "", "fit", ["--data.source.train"]),
        ("--trainer.callbacks.monit", "", "fit", ["--trainer.callbacks.monitor"]),
        ("", "--model", "fit", TASKS),
        ("", "--model.pooling", "fit", ["mean", "max", "mean_max", "cls"]),
        ("", "--model.init_args.pooling", "fit", ["mean", "max", "mean_max", "cls"]),
        ("bf", "--trainer.precision", "fit", ["bf16-true", "bf16-mixed", "bf16"]),
        ("", "--trainer.barebones", "fit", ["true", "false"]),
        ("fsdp", "--trainer.strategy", "fit", ["fsdp", "fsdp_cpu_offload"]),
        (
            f"{PACKAGE}.callbacks.Grad",
            "--trainer.callbacks+",
            "fit",
            [f"{PACKAGE}.callbacks.GradientMonitor", f"{PACKAGE}.callbacks.GradualUnfreezing"],
        ),
        ("", "--run", "test", ["runs/a/1", "runs/b/2"]),
        ("runs/b", "--weights", "fit", ["runs/b/2"]),
        ("", "--config", "fit", []),
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_offers(
    scripts: dict[str, str], tmp_path: Path, shell: str, typed: str, before: str, verb: str, offered: list[str]
) -> None:
    for run in ("a/1", "b/2"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "config.yaml").touch()
    (tmp_path / "runs/b/empty").mkdir()
    defined = scripts[shell].partition(f"_{PACKAGE}()")[0]
    print_reply = '((${#reply[@]})) && printf "%s\\n" "${reply[@]}" || true'
    code = f"{defined}\nreply=()\n_{PACKAGE}_reply '{typed}' '{before}' '{verb}'\n{print_reply}"
    assert output(shell, code, tmp_path) == offered


def test_no_run_is_offered_where_there_is_none(scripts: dict[str, str], tmp_path: Path) -> None:
    assert tab(scripts, tmp_path, "python", "-m", PACKAGE, "test", "--run", "") == ["-o bashdefault -o default"]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_key_of_the_configurations_is_an_option(scripts: dict[str, str], file: Path) -> None:
    options = set(re.search(r"^ +fit\) list=\"(.*)\"", scripts["bash"], re.MULTILINE)[1].split())  # type: ignore[index]
    keys = {key.removesuffix(".class_path") for key in flatten(yaml.safe_load(file.read_text()))}
    assert {f"--{key}" for key in keys if ".source.source." not in key} <= options  # of a source within a source


@pytest.mark.parametrize("python", ["python", "python3"])
def test_bash_completes_verbs_of_the_module(scripts: dict[str, str], tmp_path: Path, python: str) -> None:
    assert tab(scripts, tmp_path, python, "-m", PACKAGE, "f") == ["fit"]
    assert tab(scripts, tmp_path, python, "-u", "-m", PACKAGE, "fit", "--trainer.max_ti") == ["--trainer.max_time"]
    assert tab(scripts, tmp_path, python, "-m", PACKAGE, "fit", "--tr") == ["-o nospace", "--trainer."]
    assert tab(scripts, tmp_path, python, "-m", PACKAGE, "fit", "--config", "c") == ["-o bashdefault -o default"]


def test_bash_completes_a_value_after_the_sign(scripts: dict[str, str], tmp_path: Path) -> None:
    words = ("python", "-m", PACKAGE, "fit", "--trainer.barebones", "=")
    assert tab(scripts, tmp_path, *words) == ["true", "false"]
    assert tab(scripts, tmp_path, *words, "f") == ["false"]


OTHER = "other() { COMPREPLY=(theirs); }; complete -F other python"
LOADER = "load() { other() { COMPREPLY=(loaded); }; complete -F other $1; return 124; }; complete -D -F load"


@pytest.mark.parametrize(
    ("before", "offered"), [("", ["-o bashdefault -o default"]), (OTHER, ["theirs"]), (LOADER, ["loaded"])]
)
@pytest.mark.parametrize("words", [["foo."], ["-m", "pytest", "te"], ["-m", ""], ["-m", f"{PACKAGE}s", ""]])
def test_other_commands_are_completed_as_before(
    scripts: dict[str, str], tmp_path: Path, before: str, offered: list[str], words: list[str]
) -> None:
    assert tab(scripts, tmp_path, "python", *words, before=before) == offered


def test_two_packages_are_completed_side_by_side_however_often_they_are_sourced(
    scripts: dict[str, str], tmp_path: Path
) -> None:
    text = scripts["bash"]
    fork = text.replace(f"_{PACKAGE}", "_mine").replace(f"-m {PACKAGE}", "-m mine").replace("validate", "verify")
    before = "\n".join([OTHER, text, fork, text, fork])
    assert tab(scripts, tmp_path, "python", "-m", PACKAGE, "v", before=before) == ["validate"]
    assert tab(scripts, tmp_path, "python", "-m", "mine", "v", before=before) == ["verify"]
    assert tab(scripts, tmp_path, "python", "foo.", before=before) == ["theirs"]


def test_the_verb_prints_the_script(scripts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == scripts["bash"]
    assert main(["completion", "fish"]) == 1
    assert capsys.readouterr().err.startswith("error: argument shell: invalid choice: 'fish'")
