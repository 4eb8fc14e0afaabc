"""The command line's parser: strict options, and errors that begin with their cause."""

import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from project.errors import UserError, nearest

# What jsonargparse says around a cause.
NOISE = re.compile(r"(Does not validate|Subtypes:|Errors:|Given value|expected NoneType|\^+$|$)")
# What else the value could have been: said last, and not at all beside a cause.
GUESS = re.compile(r"(Expected a path|Expected a dot import path|expected (list|dict)|Type typing\.|Subclass types)")
ROOMS = ("nn", "tasks", "data")
KEY = re.compile(r'Parser key "([^"]+)":\s*(.*)')


class Parser(LightningArgumentParser):
    """Raises `UserError` instead of printing a page of usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(explain(message, self._names())) from ex

    def _names(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action.choices, dict):  # the verbs' parsers, unless they are built only when asked for
                for parser in action.choices.values():
                    yield from parser._names() if isinstance(parser, Parser) else ()


def explain(message: str, names: Iterable[str] = ()) -> str:
    """The key, the cause and the nearest name, from jsonargparse's nested account.

    Args:
        message: what jsonargparse says.
        names: all options that exist.
    """
    keys: list[str] = []
    causes: list[str] = []
    given = ""
    for line in message.splitlines():
        line = re.sub(r"Expected a <class '(\w+)'>", r"expected \1", line.strip().removeprefix("- "))
        if match := re.match(r"Given value: NestedArg\(key='([\w.]+)'", line):
            keys += match[1].split(".")[:-1]
        elif line.startswith("Given value: ") and len(line) < 80:
            given = f", got {line.removeprefix('Given value: ')}"
        if match := KEY.match(line):
            keys.append(match[1])
            line = match[2]
        if not NOISE.match(line) and line not in causes:
            causes.append(line)
    if match := re.search(r"Expected a dot import path string: ([\w.]+)", message):
        causes = [cause for cause in causes if not GUESS.match(cause)] or [f"there is no class {match[1]}"]
    causes.sort(key=lambda cause: bool(GUESS.match(cause)))
    cause = ("; ".join(causes[:3]) or message) + given
    if re.search(r"arguments are required: \w+\.\w", cause):  # not one of a class
        cause += "; give a whole run: --config configs/classify.yaml"
    if match := re.search(r"unrecognized arguments: (\S+\.ya?ml)$", cause):
        cause += f"; did you mean --config {match[1]}?"
    text = f"{'.'.join(keys)}: {cause}" if keys else cause
    nearest = _nearest(cause, list(names))
    return f"{text}\ndid you mean {nearest}?" if nearest else text


def _nearest(cause: str, options: list[str]) -> str | None:
    """The existing option, class or parameter most like the one that the cause names."""
    if match := re.search(r"(--[\w.]+)", cause):
        candidates, word = options, match[1]
    elif match := re.search(r"does not accept option '([\w.]+)'", cause):
        candidates, word = [option.removeprefix("--") for option in options], match[1]
    elif match := re.search(r"module '([\w.]+)' has no attribute '(\w+)'", cause):
        candidates, word = _public_names(match[1]), match[2]
    elif match := re.search(r"Option '(\w+)' is not accepted", cause):
        candidates, word = _parameters_of_loaded_classes(), match[1]
    elif match := re.search(r"there is no class (\w+)(?:,|$)", cause):
        modules = [f"project.{room}" for room in (*ROOMS, "callbacks", "loggers")]
        modules += ["lightning.pytorch.callbacks", "torch.optim"]
        candidates, word = [name for module in modules for name in _public_names(module)], match[1]
    elif match := re.search(r"class_path '?([\w.]+)\.(\w+)'?", cause):
        candidates, word = _public_names(match[1]), match[2]
    else:
        return None
    longer = (candidate for candidate in candidates if candidate.startswith(word) and "+" not in candidate)
    found = next(longer, None) or nearest(word, candidates)
    return found if found != word and f"did you mean {found}?" not in cause else None


def _public_names(module: str) -> list[str]:
    try:
        return [name for name in dir(import_module(module)) if not name.startswith("_")]
    except ImportError:
        return []


def _parameters_of_loaded_classes() -> list[str]:
    """Parameter names of the project's own classes."""
    modules = [import_module(f"project.{room}") for room in ROOMS]
    classes = [value for module in modules for value in vars(module).values() if inspect.isclass(value)]
    return [name for c in classes for name in inspect.signature(c).parameters]
