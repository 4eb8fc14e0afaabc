"""A search space, in the format of W&B's sweeps: `wandb sweep` and `python -m project sweep` read the same file.

https://docs.wandb.ai/models/sweeps/sweep-config-keys. What Optuna has no equivalent of is refused by name: normal and
beta distributions, weighted choices, nested parameters.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from project.arguments import read_configs
from project.errors import UserError, nearest

KEYS = (
    "command", "controller", "description", "early_terminate", "entity", "method", "metric", "name", "parameters",
    "program", "project", "run_cap",
)  # fmt: skip
# What a sweep sets itself, for each trial.
TAKEN = ("config", "run", "ckpt_path", "name", "runs_dir", "weights")


@dataclass(frozen=True)
class Space:
    """
    Args:
        metric: name of a logged value; of each run the best of it counts.
        run_cap: number of trials, if the file gives one.
        early_terminate: `min_iter` epochs that every trial gets, and `eta`: one in eta goes on, at each power of eta.
        parameters: distribution of each option of `fit`.
        content: the file, as read.
    """

    name: str
    method: Literal["grid", "random", "bayes"]
    metric: str
    goal: Literal["maximize", "minimize"]
    run_cap: int | None
    early_terminate: dict[str, int] | None
    parameters: dict[str, BaseDistribution]
    content: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> "Space":
        """
        Raises:
            UserError: the file cannot be read, or something in it is wrong; says which key.
        """
        ((_, content),) = read_configs(["--config", str(file)])
        try:
            known(content, KEYS)
            metric = mapping(content, "metric")
            known(metric, ("name", "goal", "target"), "metric.")
            name = metric.get("name", "")
            if not name or str(name).startswith("test/"):
                raise ValueError(f"metric.name must be a value that validation logs, such as val/loss; got {name!r}")
            parameters = mapping(content, "parameters")
            if not parameters:
                raise ValueError("parameters is empty")
            space = cls(
                name=re.sub(r"[^\w.-]+", "-", str(content.get("name", file.stem))),
                method=choice(content, "method", ("grid", "random", "bayes")),
                metric=name,
                goal=choice(metric, "goal", ("maximize", "minimize"), "metric."),
                run_cap=whole(content, "run_cap", None),
                early_terminate=early_terminate(content),
                parameters={key: distribution(key, value) for key, value in parameters.items()},
                content=content,
            )
            if space.method == "grid":
                space.grid()
        except ValueError as error:
            raise UserError(f"{file}: {error}") from error
        return space

    def grid(self) -> list[dict[str, Any]]:
        """Every combination."""
        values = product(*(steps(key, distribution) for key, distribution in self.parameters.items()))
        return [dict(zip(self.parameters, row, strict=True)) for row in values]

    def ends(self) -> list[dict[str, Any]]:
        """A few assignments in which every choice, and both ends of every range, occur."""
        ends = {key: getattr(d, "choices", None) or [d.low, d.high] for key, d in self.parameters.items()}  # type: ignore[attr-defined]
        count = max(map(len, ends.values()))
        return [{key: values[i % len(values)] for key, values in ends.items()} for i in range(count)]

    def check(self, read: Callable[[list[str]], dict[str, Any]]) -> None:
        """See that the command line takes every parameter.

        Args:
            read: the values, by short name, that options of `fit` stand for.

        Raises:
            UserError: one does not exist, or a value of it is of the wrong type.
        """
        for key in self.parameters.keys() & set(TAKEN):
            raise UserError(f"parameters.{key}: a sweep sets it itself")
        for values in self.ends():
            parsed = read(words(values))
            for key, value in values.items():
                if not isinstance(value, str) and (got := parsed.get(key)) != value:
                    raise UserError(f"parameters.{key}: the command line reads {value!r} as {got!r}")


def words(parameters: dict[str, Any]) -> list[str]:
    """Options of `fit`, as W&B's agent writes them."""
    return [f"--{key}={value}" for key, value in parameters.items()]


def known(content: dict[str, Any], keys: Sequence[str], prefix: str = "") -> None:
    for key in content:
        if key not in keys:
            meant = nearest(str(key), keys)
            hint = f"did you mean {prefix}{meant}?" if meant else f"there are {', '.join(keys)}"
            raise ValueError(f"{prefix}{key} is no key of a sweep; {hint}")


def mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is missing" if value is None else f"{key} must hold keys and values, got {value!r}")
    return value


def choice(content: dict[str, Any], key: str, choices: Sequence[str], prefix: str = "") -> Any:
    if (value := content.get(key)) not in choices:
        raise ValueError(f"{prefix}{key} must be one of {', '.join(choices)}; got {value!r}")
    return value


def whole(content: dict[str, Any], key: str, default: int | None, least: int = 1) -> Any:
    value = content.get(key, default)
    if value is not None and (not isinstance(value, int) or value < least):
        raise ValueError(f"{key} must be a whole number from {least} on; got {value!r}")
    return value


def early_terminate(content: dict[str, Any]) -> dict[str, int] | None:
    if "early_terminate" not in content:
        return None
    given = mapping(content, "early_terminate")
    known(given, ("type", "min_iter", "eta"), "early_terminate.")
    choice(given, "type", ("hyperband",), "early_terminate.")
    return {"min_iter": whole(given, "min_iter", 1), "eta": whole(given, "eta", 3, least=2)}


def distribution(key: str, given: Any) -> BaseDistribution:
    """Optuna's distribution for a parameter as W&B writes it.

    Raises:
        ValueError: it has none, or the range is empty.
    """
    if not isinstance(given, dict) or "parameters" in given:
        raise ValueError(f"parameters.{key} needs values, value, or min and max; nested names are written with dots")
    known(given, ("value", "values", "distribution", "min", "max", "q"), f"parameters.{key}.")
    if "value" in given or "values" in given:
        values = [given["value"]] if "value" in given else given["values"]
        if not isinstance(values, list) or not values:
            raise ValueError(f"parameters.{key}.values must be a list that is not empty; got {values!r}")
        if None in values:
            raise ValueError(f"parameters.{key}.values: null cannot be given on a command line")
        return CategoricalDistribution([str(v) if isinstance(v, list | dict) else v for v in values])
    low: Any = given.get("min")
    high: Any = given.get("max")
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        hint = "; YAML takes 1e-4 for text: write 1.0e-4" if isinstance(low, str) or isinstance(high, str) else ""
        raise ValueError(f"parameters.{key} needs values, or numbers min and max; got min {low!r}, max {high!r}{hint}")
    integers = isinstance(low, int) and isinstance(high, int)
    kind = given.get("distribution", "int_uniform" if integers else "uniform")
    kinds = ("int_uniform", "uniform", "q_uniform", "log_uniform_values")
    choice({"distribution": kind}, "distribution", kinds, f"parameters.{key}.")
    if low >= high:
        raise ValueError(f"parameters.{key}: the range from {low} to {high} is empty")
    if kind == "int_uniform" and not integers:
        raise ValueError(f"parameters.{key}: int_uniform needs whole numbers, got min {low} and max {high}")
    if kind == "log_uniform_values" and low <= 0:
        raise ValueError(f"parameters.{key}: a logarithm needs min above 0, got {low}")
    if kind == "int_uniform":
        return IntDistribution(low, high)
    if kind == "q_uniform":
        q = given.get("q", 1)
        if not isinstance(q, int | float) or not 0 < q <= high - low:
            raise ValueError(f"parameters.{key}.q must be above 0 and at most max - min; got {q!r}")
        stepped: Any = IntDistribution if integers and isinstance(q, int) else FloatDistribution
        q_distribution: BaseDistribution = stepped(low, high, step=q)
        return q_distribution
    return FloatDistribution(float(low), float(high), log=kind == "log_uniform_values")


def steps(key: str, distribution: BaseDistribution) -> list[Any]:
    """All values of a parameter of a grid."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    raise ValueError(f"parameters.{key}: a grid needs values, or whole numbers min and max")
