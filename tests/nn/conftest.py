from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test starts from the same random state and leaves the global one as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
