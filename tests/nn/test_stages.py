"""Stages in turn compute what the network did, to the bit, and a cut can be undone."""

import copy

import pytest
import torch
from torch import Tensor

from project.nn import Encoder, SequenceClassifier
from project.nn.stages import cut


@pytest.fixture
def network() -> SequenceClassifier:
    torch.manual_seed(0)
    return SequenceClassifier(Encoder(8, 5, 2, max_length=6), vocab_size=20, num_classes=3).eval()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randint(20, (4, 6), generator=torch.Generator().manual_seed(1)), torch.ones(4, 6).tril(2).bool()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stages_make_the_whole(network: SequenceClassifier, batch: tuple[Tensor, Tensor], count: int) -> None:
    x, padding_mask = batch
    expected = network(x, padding_mask)
    stages = [copy.deepcopy(network) for _ in range(count)]
    for i, stage in enumerate(stages):
        cut(stage, i, count)
        x = stage(x, padding_mask)
    assert torch.equal(x, expected)
    names = [name for stage in stages for name in stage.state_dict()]
    assert sorted(names) == sorted(network.state_dict())  # each weight in one stage, under its name
    sizes = [sum("attention.in_projection.weight" in name for name in stage.state_dict()) for stage in stages]
    assert max(sizes) - min(sizes) <= 1


def test_undone(network: SequenceClassifier, batch: tuple[Tensor, Tensor]) -> None:
    expected, weights = network(*batch), list(network.parameters())
    undo = cut(network, 1, 2)
    network.train()
    undo()
    assert all(module.training for module in network.modules())
    assert all(a is b for a, b in zip(weights, network.parameters(), strict=True))
    assert torch.equal(network.eval()(*batch), expected)


def test_more_stages_than_layers(network: SequenceClassifier) -> None:
    with pytest.raises(ValueError, match="an encoder of 5 layers cannot be cut into 6 stages; use fewer devices"):
        cut(network, 0, 6)
