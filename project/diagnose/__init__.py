"""Why does my model not learn? Checks that run on any LightningModule and LightningDataModule.

data.py       split-overlap, label-balance, padding-share, unknown-tokens, decoded-batch, same-batch-twice,
              loader-speed, workers
start.py      initial-loss, gradients, zero-grad, batch-independence, padding-independence, token-order,
              eval-deterministic, train-eval-difference
learning.py   overfit, shuffled-labels
numbers.py    activations, gradient-ratio, update-ratio, precision, clipping
rates.py      schedule, learning-rate, memory, batch-size

    results = diagnose(model, datamodule)
    assert not [result for result in results if result.status == "failure"]

A check is a function from a `Subject` to a `Result`, or to None where it does not apply; see `registry.py`.
"""

import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

# isort: off
from project.diagnose import data, start, learning, numbers, rates  # noqa: F401  # in the order in which they run

# isort: on
from project.diagnose.registry import CHECKS
from project.diagnose.result import Result
from project.diagnose.subject import Subject, undisturbed
from project.errors import UserError

__all__ = ["CHECKS", "Result", "diagnose"]

FOREIGN = (str(Path(__file__).parent), sysconfig.get_path("stdlib"))  # no line there is the user's


def diagnose(
    model: LightningModule,
    datamodule: LightningDataModule,
    *,
    only: Sequence[str] | None = None,
    trainer_options: Mapping[str, Any] | None = None,
    memory_limit: float | None = None,
    report: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run the checks, each on copies: model, data and random state are left as they were.

    Args:
        only: names of the checks to run; default all.
        trainer_options: those of the Trainer that a training step depends on, such as precision, gradient_clip_val
            and accelerator; and max_epochs or max_steps, for the schedule.
        memory_limit: bytes that training may take; default what is free.
        report: called with each result as it comes.

    Returns:
        A result for each check that applies. A check that crashes is a failure with the cause; those that meet it
        after are not run.

    Raises:
        UserError: `only` names a check that does not exist.
    """
    chosen = list(CHECKS) if only is None else list(only)
    for name in chosen:
        if name not in CHECKS:
            nearest = get_close_matches(name, CHECKS, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(CHECKS)}"
            raise UserError(f"there is no check {name!r}; {hint}")
    subject = Subject(model, datamodule, trainer_options, memory_limit)
    results = []
    crashes: dict[str, str] = {}  # place: the check that met it first
    for name in chosen:
        with undisturbed():
            result = run(name, subject, crashes)
        if result is not None:
            results.append(result)
            if report is not None:
                report(result)
    return results


def run(name: str, subject: Subject, crashes: dict[str, str]) -> Result | None:
    """The result of one check; if it crashes, that is a failure, of the first check that does so at its place."""
    try:
        return CHECKS[name](subject)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(FOREIGN)]
        frame = (own or frames)[-1]
        kind, place = type(error).__name__, f"{Path(frame.filename).name}:{frame.lineno}"
        first = crashes.setdefault(f"{kind} {place}", name)
        if first != name:
            return Result(name, "not run", f"crashed as {first} did")
        seen = f"crashed with {kind}: {' '.join(str(error).split())[:200]} ({place})"
        return Result(name, "failure", seen, "mend this first: training would end in the same way")
