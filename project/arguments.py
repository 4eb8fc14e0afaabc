"""What a command line stands for before it is parsed: a run's configuration and weights, and the files it names."""

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from project.checkpoint_io import read_checkpoint
from project.errors import UserError
from project.files import read_yaml
from project.runs import Run, import_class, is_checkpoint


def take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of ``name VALUE`` or ``name=VALUE``, and the arguments without it."""
    rest, value, words = [], None, iter(arguments)
    for word in words:
        if word == name:
            value = next(words, None)
            if value is None:
                raise UserError(f"{name} needs a value")
        elif word.startswith(name + "="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest


def arguments_from_run(verb: str, options: list[str]) -> list[str]:
    """Replace --run by what it stands for: the run's configuration, its data assets and a checkpoint.

    They come first, so that whatever is typed beats them.

    Raises:
        UserError: no such run or checkpoint, or a test without weights.
    """
    folder, options = take_option(options, "--run")
    checkpoint, rest = take_option(options, "--ckpt_path")
    has_config = any(word in ("-c", "--config") or word.startswith("--config=") for word in options)
    if folder is None and checkpoint is not None and not has_config:
        folder = checkpoint
    names = ("auto", "best", "last")
    if checkpoint in names and folder is None:
        raise UserError(f"--ckpt_path {checkpoint} needs --run runs/<name>/<id>")
    if checkpoint not in (None, *names) and not is_checkpoint(Path(str(checkpoint))):
        raise UserError(f"there is no checkpoint {checkpoint}")
    if folder is None:
        if verb != "fit" and checkpoint is None and not {"-h", "--help"}.intersection(options):
            raise UserError(f"{verb} needs trained weights: --run runs/<name>/<id>, or --ckpt_path FILE")
        return options
    if verb == "fit" and checkpoint == "auto" and not Run(Path(folder)).has_begun:
        Run.begin(Path(folder)).make_current()
        return rest
    run = Run.open(folder)
    run.make_current()
    if checkpoint in (None, *names):
        resume = checkpoint in ("auto", "last") or (checkpoint is None and verb == "fit")
        checkpoint = str(run.resume_point() if resume else run.checkpoint())
    read_checkpoint(Path(str(checkpoint)))  # refuses a damaged one before anything is built
    config = run.config
    data = config.get("data") or {}
    accepted = inspect.signature(import_class(data["class_path"])).parameters if data else {}
    assets = [
        f"--data.{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in run.data_assets().items()
        if name in accepted
    ]
    return ["--config", str(run.config_file), *assets, "--ckpt_path", checkpoint, *rest]


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """The values of a configuration by the names that a command line gives them: ``model.encoder.d_model``."""
    if not isinstance(config, dict):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, prefix if key == "init_args" else f"{prefix}.{key}".strip("."))
    return flat


def read_configs(arguments: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Name and content of each configuration file named, in order.

    Raises:
        UserError: one is not there, or is no YAML of keys and values.
    """
    files: list[Path] = []
    words = iter(arguments)
    for word in words:
        if word in ("-c", "--config") and (file := next(words, "")):
            files.append(Path(file))
        elif word.startswith("--config="):
            files.append(Path(word.partition("=")[2]))
    return [(file.name, read_yaml(file)) for file in files]


def overridden(files: Sequence[tuple[str, dict[str, Any]]], final: dict[str, Any]) -> list[str]:
    """One line for each value of a configuration file that something later replaced."""
    values = flatten(final)
    lines = []
    for file, content in files:
        for key, old in flatten(content).items():
            new = values.get(key, old)
            if isinstance(old, str | int | float) and isinstance(new, str | int | float) and str(new) != str(old):
                lines.append(f"override: {key}: {old} ({file}) -> {new}")
    return lines
