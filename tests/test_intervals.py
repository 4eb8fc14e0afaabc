"""Intervals against other implementations, and against what they promise."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_f1_score

from project.intervals import accuracy, bootstrap, macro_f1, wilson

CONFUSION = np.array([[50, 3, 0, 0], [4, 30, 2, 0], [1, 2, 8, 0], [0, 0, 0, 0]])


def test_scores_are_those_of_torchmetrics() -> None:
    pairs = [(i, j) for (i, j), n in np.ndenumerate(CONFUSION) for _ in range(n)]
    actual, predicted = torch.tensor(pairs).T
    expected = multiclass_f1_score(predicted, actual, 4, average="macro").item()
    assert macro_f1(CONFUSION) == pytest.approx(expected, abs=1e-6)
    assert accuracy(CONFUSION) == pytest.approx(88 / 100)


def test_wilson() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe (1998), table I
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_a_bootstrap_of_the_accuracy_is_nearly_its_wilson_interval() -> None:
    confusion = CONFUSION * 50
    assert bootstrap(confusion, accuracy) == pytest.approx(wilson(4400, 5000), abs=2e-3)
    low, high = bootstrap(CONFUSION, macro_f1)
    assert low < macro_f1(CONFUSION) < high
