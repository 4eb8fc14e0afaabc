"""Why does my model not learn? Checks that run on any LightningModule and LightningDataModule.

data.py       split-overlap, label-balance, padding-share, unknown-tokens, decoded-batch, same-batch-twice,
              loader-speed, workers
start.py      initial-loss, gradients, zero-grad, batch-independence, padding-independence, token-order,
              eval-deterministic, train-eval-difference
learning.py   overfit, shuffled-labels
numbers.py    activations, gradient-ratio, update-ratio, precision, clipping
rates.py      learning-rate, batch-size, memory

    results = diagnose(model, datamodule)
    assert not [result for result in results if result.status == "failure"]

A check is a function from a `Subject` to a `Result`, or to None where it does not apply; see `registry.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from project.diagnose.registry import CHECKS
from project.diagnose.result import Result

__all__ = ["CHECKS", "Result", "diagnose"]


def diagnose(
    model: LightningModule,
    datamodule: LightningDataModule,
    *,
    only: Sequence[str] | None = None,
    trainer_options: Mapping[str, Any] | None = None,
    report: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run the checks, each on copies: model, data and random state are left as they were.

    Args:
        only: names of the checks to run; default all.
        trainer_options: those of the Trainer that a training step depends on, such as precision, gradient_clip_val
            and accelerator.
        report: called with each result as it comes.

    Returns:
        A result for each check that applies. A check that crashes is a failure with the cause.

    Raises:
        UserError: `only` names a check that does not exist.
    """
    raise NotImplementedError
