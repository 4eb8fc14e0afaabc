"""Where the plan cuts: each process' slice is a smaller layer of its own, and the slices add up to the whole."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel

from project.nn import EncoderLayer, RotaryPosition
from project.nn.sharding import check_sizes, plan


def slice_of(layer: EncoderLayer, rank: int, size: int) -> EncoderLayer:
    """What the plan leaves to one of `size` processes, as a layer; a bias behind a sum stays with the first."""
    for name, style in plan(layer).items():
        linear = layer.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        assert linear.bias is not None
        if isinstance(style, ColwiseParallel):
            linear.weight = nn.Parameter(linear.weight.chunk(size)[rank])
            linear.bias = nn.Parameter(linear.bias.chunk(size)[rank])
        else:
            linear.weight = nn.Parameter(linear.weight.chunk(size, dim=1)[rank])
            linear.bias = nn.Parameter(linear.bias if rank == 0 else torch.zeros_like(linear.bias))
    return layer


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("size", [2, 4])
def test_slices_add_up(activation: Literal["gelu", "swiglu"], size: int) -> None:
    def build() -> EncoderLayer:
        torch.manual_seed(0)
        return EncoderLayer(16, 4, 24, dropout=0.0, activation=activation, rotary=RotaryPosition(4, 5)).double()

    x, padding_mask = torch.randn(3, 5, 16, dtype=torch.float64), torch.ones(3, 5).tril(2).bool()

    def halves(layer: EncoderLayer) -> tuple[Tensor, Tensor]:
        return layer.attention(x, padding_mask_BS=padding_mask), layer.feed_forward(x)

    parts = [halves(slice_of(build(), rank, size)) for rank in range(size)]
    for whole, slices in zip(halves(build()), zip(*parts, strict=True), strict=True):
        assert not torch.allclose(whole, slices[0], atol=1e-3)
        torch.testing.assert_close(sum(slices), whole)


def test_sizes_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size 3 must divide the encoder's num_heads 4"):
        check_sizes([EncoderLayer(16, 4, 24)], 3)
    with pytest.raises(ValueError, match="tensor_parallel_size 4 must divide the encoder's d_ff 30"):
        check_sizes([EncoderLayer(16, 4, 30)], 4)
    with pytest.raises(ValueError, match=r"tensor_parallel_size 2 needs an encoder of project.nn.EncoderLayer"):
        check_sizes([], 2)
