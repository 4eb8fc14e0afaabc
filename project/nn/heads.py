"""From token vectors to an answer about the whole sequence."""

from typing import Literal

import torch
from torch import Tensor, nn

from project.nn.dropout import Dropout


class Pooling(nn.Module):
    """One vector per sequence, (B, T, D) to (B, out_size), from its real tokens; zeros where there is none.

    Args:
        d_model: D.
        pooling: "mean" or "max" over the tokens, "mean_max" both side by side (2 D), "cls" the first token.
    """

    def __init__(self, d_model: int, pooling: Literal["mean", "max", "mean_max", "cls"] = "mean_max") -> None:
        super().__init__()
        if pooling not in ("mean", "max", "mean_max", "cls"):
            raise ValueError(f"pooling must be mean, max, mean_max or cls, got {pooling!r}")
        self.pooling = pooling
        self.out_size = 2 * d_model if pooling == "mean_max" else d_model

    def forward(self, x_BTD: Tensor, padding_mask_BT: Tensor) -> Tensor:
        real_BT1 = padding_mask_BT.unsqueeze(-1)
        if self.pooling == "cls":
            return x_BTD[:, 0] * real_BT1[:, 0]
        if self.pooling == "mean":
            return masked_mean(x_BTD, real_BT1)
        if self.pooling == "max":
            return masked_max(x_BTD, real_BT1)
        return torch.cat([masked_mean(x_BTD, real_BT1), masked_max(x_BTD, real_BT1)], dim=-1)


def masked_mean(x_BTD: Tensor, real_BT1: Tensor) -> Tensor:
    return (x_BTD * real_BT1).sum(1) / real_BT1.sum(1).clamp(min=1)


def masked_max(x_BTD: Tensor, real_BT1: Tensor) -> Tensor:
    # Not amax: its gradient divides by the number of equal maxima, which compiled bfloat16 code counts as zero.
    max_BD = x_BTD.masked_fill(real_BT1.logical_not(), float("-inf")).max(1).values
    return max_BD.masked_fill(real_BT1.any(1).logical_not(), 0.0)


class ClassificationHead(nn.Module):
    """Dropout and one linear map, (B, in_size) to logits (B, C)."""

    def __init__(self, in_size: int, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(in_size, num_classes)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.linear(self.dropout(x_BD))
