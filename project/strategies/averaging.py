"""Averages of weights, which no process has whole."""

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging

from project.errors import UserError


def refuse_averaging(trainer: Trainer) -> None:
    """
    Raises:
        UserError: a callback averages weights.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, WeightAveraging):
            raise UserError(
                f"{type(callback).__name__} averages whole networks, and {type(trainer.strategy).__name__} leaves none "
                "whole in a process: leave one of them out"
            )
