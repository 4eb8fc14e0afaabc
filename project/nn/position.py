"""Where a token stands: three ways to tell an encoder, each built for sequences of at most `max_length` tokens.

- SinusoidalPosition and LearnedPosition add a vector to each token, once, before the first layer.
- RotaryPosition turns queries and keys in every layer, so that their product depends on the distance alone.
"""

import torch
from torch import Tensor, nn


def check_length(length: int, max_length: int) -> None:
    """Raise ValueError for a sequence longer than the tables. torch.export turns this into a bound on the dimension."""
    if length > max_length:
        raise ValueError(f"sequence of {length} tokens is longer than max_length {max_length}")


def angles(size: int, max_length: int, base: float = 10000.0) -> Tensor:
    """Position times frequency, (max_length, size / 2), in float32; frequencies fall from 1 to nearly 1 / base."""
    if size % 2 != 0:
        raise ValueError(f"sinusoidal and rotary positions need an even size, got {size}")
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.outer(torch.arange(max_length, dtype=torch.float64), frequencies).float()


class SinusoidalPosition(nn.Module):
    """Adds sin and cos of the position at d_model / 2 frequencies, alternating (Vaswani et al., section 3.5)."""

    table: Tensor

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        angles_TK = angles(d_model, max_length)
        table_TD = torch.stack([angles_TK.sin(), angles_TK.cos()], dim=-1).flatten(-2)
        self.register_buffer("table", table_TD, persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_length(x_BTD.size(1), self.max_length)
        return x_BTD + self.table[: x_BTD.size(1)].to(x_BTD.dtype)


class LearnedPosition(nn.Module):
    """Adds one trained vector per position, as BERT does."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(max_length, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_length(x_BTD.size(1), self.max_length)
        return x_BTD + self.embedding.weight[: x_BTD.size(1)].to(x_BTD.dtype)


class RotaryPosition(nn.Module):
    """Turns each pair (k, k + K/2) of a head's vector by an angle that grows with position (Su et al., RoFormer)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, max_length: int, base: float = 10000.0) -> None:
        super().__init__()
        self.max_length = max_length
        angles_TK = angles(head_size, max_length, base).repeat(1, 2)
        self.register_buffer("cos", angles_TK.cos(), persistent=False)
        self.register_buffer("sin", angles_TK.sin(), persistent=False)

    def forward(self, x_BHTK: Tensor) -> Tensor:
        length = x_BHTK.size(2)
        check_length(length, self.max_length)
        cos_TK, sin_TK = self.cos[:length].to(x_BHTK.dtype), self.sin[:length].to(x_BHTK.dtype)
        first, second = x_BHTK.chunk(2, dim=-1)
        return x_BHTK * cos_TK + torch.cat([-second, first], dim=-1) * sin_TK
