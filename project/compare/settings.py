"""A nested configuration as dotted names, as one types them: ``model.encoder.d_model``."""

from collections.abc import Iterable
from typing import Any

import yaml

from project.errors import UserError, nearest

# What a run is called, and what does not change its numbers.
ASIDE = (
    "name",
    "runs_dir",
    "checkpoint",
    "data.cache_dir",
    "trainer.callbacks.Export",
    "trainer.default_root_dir",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.logger",
)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Values by name, without the levels ``init_args`` and ``class_path``; of a list of classes each has its name."""
    if isinstance(config, dict):
        flat: dict[str, Any] = {}
        for key, value in config.items():
            inner = prefix if key in ("init_args", "class_path") else f"{prefix}.{key}".strip(".")
            flat |= flatten(value, inner)
        return flat
    if isinstance(config, list) and config and all(isinstance(item, dict) and "class_path" in item for item in config):
        flat = {}
        for item in config:
            name = f"{prefix}.{str(item['class_path']).rpartition('.')[2]}"
            while name in flat:
                name += "'"
            flat |= flatten(item, name)
        return flat
    return {prefix: config}


def is_seed(name: str) -> bool:
    """Whether runs that differ in this setting are repeats of each other."""
    return name.rpartition(".")[2] in ("seed", "seed_everything")


def is_aside(name: str) -> bool:
    """Whether the setting does not change a run's numbers."""
    return any(name == aside or name.startswith(aside + ".") for aside in ASIDE)


def resolve(typed: str, names: Iterable[str]) -> str:
    """The setting meant by a name that may leave out parts: ``model.d_model`` is ``model.encoder.d_model``.

    Raises:
        UserError: there is none, or more than one.
    """
    names = sorted(names)
    if typed in names:
        return typed
    found = [name for name in names if _abbreviates(typed, name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"the filter {typed} could mean {', '.join(found)}; say which")
    meant = nearest(typed, [*names, *(name.rpartition(".")[2] for name in names)])
    hint = f"; did you mean {meant}?" if meant else ""
    raise UserError(f"no run has a setting {typed}{hint}")


def _abbreviates(typed: str, name: str) -> bool:
    """Whether the typed parts stand in the name in order, the last of them at its end."""
    *before, last = typed.split(".")
    *parts, end = name.split(".")
    rest = iter(parts)
    return last == end and all(part in rest for part in before)


def means(typed: str, value: Any) -> bool:
    """Whether a typed text stands for a setting's value: ``256``, ``2e-3``, ``null``, ``project.nn.Encoder``."""
    try:
        if isinstance(value, float):
            return float(typed) == value
        return typed == str(value) or bool(yaml.safe_load(typed) == value)
    except (ValueError, yaml.YAMLError):
        return False
