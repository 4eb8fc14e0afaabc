"""W&B's agent makes its command line from our search spaces; ours takes it word for word."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("optuna")
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from project.arguments import flatten
from project.cli import parse
from project.sweep.space import Space, words

FILES = sorted((Path(__file__).parents[2] / "configs/sweep").glob("*.yaml"))


def agent_command(file: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `wandb agent` would start for these values of the parameters."""
    from wandb import wandb_agent

    started: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)

    monkeypatch.setattr(wandb_agent, "AgentProcess", Process)
    monkeypatch.setattr(wandb_agent.config_util, "save_config_file_from_dict", lambda *_: None)
    agent = wandb_agent.Agent(api=None, queue=None, sweep_id="s1")
    agent._sweep_command = yaml.safe_load(file.read_text())["command"]
    given = {key: {"value": value} for key, value in values.items()}
    monkeypatch.setenv("WANDB_RUN_ID", "")  # which the agent sets
    agent._command_run({"type": "run", "run_id": "r1", "program": "project", "args": given})
    return started[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_command_line_of_the_agent_is_taken_word_for_word(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space.read(file)
    for values in space.ends():
        env, python, *rest = agent_command(file, values, monkeypatch)
        assert (env, python, rest[:3]) == ("/usr/bin/env", "python", ["-m", "project", "fit"])
        assert rest[-len(values) :] == words(values)
        monkeypatch.setattr(sys, "argv", ["python"])
        parsed = flatten(parse(rest[2:]))
        assert {key: parsed[key] for key in values} == values


def test_our_words_are_those_of_wandb() -> None:
    values = {"a": 1, "b": 1e-05, "c": True, "d": "mean", "e": "[1, 2]"}
    given = create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})
    assert words(values) == given["args"]
    assert create_sweep_command()[-1] == "${args}"
