"""Dropout by its statistics: what it must do to each number, not how it draws them."""

import pytest
import torch

from project.nn import Dropout
from project.nn.dropout import keep_mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_drops_a_share_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    x = torch.ones(500, 400, dtype=dtype, requires_grad=True)
    out = Dropout(p)(x)
    dropped = out == 0
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert dropped.float().mean().item() == pytest.approx(p, abs=4 * deviation + 0.002)
    assert out[~dropped].unique().numel() == 1
    assert out.float().mean().item() == pytest.approx(1, abs=4 * deviation / (1 - p) + 0.002)
    out.backward(torch.full_like(x, 2))
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * out.detach())


def test_drops_independently_along_both_dimensions() -> None:
    dropped = (Dropout(0.3)(torch.ones(512, 512)) == 0).float() - 0.3
    for shift in ((0, 1), (1, 0), (1, 1), (0, 7), (3, 0)):
        correlation = (dropped * dropped.roll(shift, (0, 1))).mean() / 0.21
        assert correlation.abs().item() < 4 / 512
    assert dropped.mean(0).std().item() == pytest.approx((0.21 / 512) ** 0.5, rel=0.2)
    assert dropped.mean(1).std().item() == pytest.approx((0.21 / 512) ** 0.5, rel=0.2)


def test_follows_the_seed() -> None:
    dropout, x = Dropout(0.5), torch.ones(100)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert torch.equal(dropout(x), second)
    assert not torch.equal(first, second)


def test_equals_multiplying_with_the_mask_it_draws() -> None:
    x = torch.randn(31, 7, requires_grad=True)
    torch.manual_seed(1)
    out = Dropout(0.3)(x)
    torch.manual_seed(1)
    mask = keep_mask(x, 0.3)
    assert mask.unique().tolist() == pytest.approx([0, 256 / 179])  # 77 of 256 bytes are dropped
    assert torch.equal(out, x * mask)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, mask)


def test_every_byte_counts() -> None:
    """The share that is dropped is exactly that of 77 values out of 256, at the lowest and the highest p too."""
    x = torch.ones(2**20)
    for p, dropped in ((0.3, 77), (0.001, 1), (0.999, 255)):
        share = (keep_mask(x, p) == 0).float().mean().item()
        expected = dropped / 256
        assert share == pytest.approx(expected, abs=4 * (expected * (1 - expected) / x.numel()) ** 0.5)


def test_is_nothing_in_evaluation() -> None:
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_an_impossible_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"must be a probability below 1, got {p}"):
        Dropout(p)
