"""Small text files: read with one line about what is wrong, written whole or not at all."""

import json
from pathlib import Path
from typing import Any

import yaml

from project.errors import UserError, nearest, one_line

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # seven times as fast, where PyYAML was built with it


def read_yaml(file: Path) -> dict[str, Any]:
    """A configuration's keys and values.

    Raises:
        UserError: it cannot be read, or is no YAML of keys and values.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    except OSError as error:
        there = [other.name for other in file.parent.iterdir()] if file.parent.is_dir() else []
        meant = nearest(file.name, there)
        hint = f"; did you mean {file.parent / meant}?" if meant else ""
        raise UserError(f"cannot read the configuration {file}: {error.strerror}{hint}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is no YAML: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no keys and values, as a configuration does")
    return content


def read_json(file: Path) -> dict[str, Any]:
    """A record's keys and values; none where there is no such file.

    Raises:
        UserError: it cannot be read, or is no JSON of keys and values.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no keys and values")
    return content


def write_whole(file: Path, text: str) -> None:
    """Readers see the old file or the new one, never a part."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
