"""Positions against their formulas."""

import math

import pytest
import torch

from project.nn import Encoder, LearnedPosition, RotaryPosition, SinusoidalPosition


def test_sinusoidal_is_the_formula() -> None:
    d_model, length = 8, 50
    added = SinusoidalPosition(d_model, 64)(torch.zeros(1, length, d_model))[0]
    for pos in (0, 1, 7, 49):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            assert added[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert added[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_learned_adds_the_vector_of_the_position() -> None:
    position = LearnedPosition(4, 10)
    x = torch.randn(2, 6, 4)
    out = position(x)
    assert torch.equal(out, x + position.embedding.weight[:6])
    out.sum().backward()
    assert position.embedding.weight.grad is not None
    assert torch.equal(position.embedding.weight.grad.sum(1), torch.tensor([8.0] * 6 + [0.0] * 4))


def test_rotary_depends_on_the_distance_alone() -> None:
    rotary = RotaryPosition(16, 200)
    query, key = torch.randn(2, 16, dtype=torch.double)
    turned_q = rotary(query.expand(1, 1, 200, 16))[0, 0]
    turned_k = rotary(key.expand(1, 1, 200, 16))[0, 0]
    scores = turned_q @ turned_k.T
    for distance in (-150, -3, 0, 1, 64):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert scores.diagonal(1)[0] != pytest.approx(scores.diagonal(2)[0].item(), abs=1e-3)
    torch.testing.assert_close(turned_q.norm(dim=-1), query.norm().expand(200))
    torch.testing.assert_close(turned_q[0], query)


def test_rotary_turns_pairs_by_position_times_frequency() -> None:
    turned = RotaryPosition(4, 10)(torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 1, 10, 4))[0, 0, 3]
    expected = [math.cos(3), math.cos(3 / 100), math.sin(3), math.sin(3 / 100)]
    torch.testing.assert_close(turned, torch.tensor(expected))


@pytest.mark.parametrize(
    "module", [SinusoidalPosition(4, 6), LearnedPosition(4, 6), Encoder(4, 1, 2, position="none", max_length=6)]
)
def test_a_sequence_beyond_the_maximum_is_refused(module: torch.nn.Module) -> None:
    module(torch.zeros(1, 6, 4))
    with pytest.raises(ValueError, match=r"^sequence of 7 tokens is longer than max_length 6$"):
        module(torch.zeros(1, 7, 4))


def test_rotary_beyond_the_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^sequence of 7 tokens is longer than max_length 6$"):
        RotaryPosition(4, 6)(torch.zeros(1, 2, 7, 4))


def test_an_odd_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"need an even size, got 5$"):
        SinusoidalPosition(5, 6)


def test_tables_follow_precision_but_not_the_checkpoint() -> None:
    position = SinusoidalPosition(4, 6)
    assert position(torch.zeros(1, 2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert not position.state_dict()
