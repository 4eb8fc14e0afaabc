import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Models are made with the same weights in every run of the tests."""
    torch.manual_seed(0)
