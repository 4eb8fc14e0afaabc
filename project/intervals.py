"""Confidence intervals of scores on a test split, from its confusion matrix alone."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Z = 1.959964  # of 95 %, two-sided


def accuracy(confusion: Counts) -> Floats:
    """Share of examples on the diagonal of (..., C, C)."""
    right = np.trace(confusion, axis1=-2, axis2=-1)
    share: Floats = right / confusion.sum((-2, -1))
    return share


def macro_f1(confusion: Counts) -> Floats:
    """Mean F1 over the classes that occur or are predicted, of (..., C, C)."""
    both = np.diagonal(confusion, axis1=-2, axis2=-1)
    either = confusion.sum(-1) + confusion.sum(-2)
    f1 = np.divide(2.0 * both, either, out=np.zeros(both.shape), where=either > 0)
    mean: Floats = f1.sum(-1) / (either > 0).sum(-1)
    return mean


def wilson(right: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927): stays between 0 and 1, and holds for shares near them."""
    share, z2 = right / total, Z * Z / total
    middle, half = share + z2 / 2, Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total))
    return (middle - half) / (1 + z2), (middle + half) / (1 + z2)


def bootstrap(
    confusion: Counts, statistic: Callable[[Counts], Floats], draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval over test sets drawn with replacement (Efron, 1979).

    To draw examples is to draw cells of the matrix: no example is needed for it.
    """
    cells = confusion.reshape(-1)
    drawn = np.random.default_rng(seed).multinomial(cells.sum(), cells / cells.sum(), size=draws)
    low, high = np.quantile(statistic(drawn.reshape(draws, *confusion.shape)), [0.025, 0.975])
    return float(low), float(high)
