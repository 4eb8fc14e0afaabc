"""The table of memory: every setting trains."""

import pytest

from benchmarks.training_memory import SETTINGS, train


@pytest.mark.parametrize(("_", "precision", "micro_batches", "checkpointing"), SETTINGS)
def test_two_steps(_: int, precision: str, micro_batches: int, checkpointing: bool) -> None:
    mib, seconds = train(64, 1, 512, precision, micro_batches, checkpointing)
    assert mib >= 0 and seconds > 0
