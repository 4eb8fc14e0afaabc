"""Dropout that leaves no trace outside training: an exported graph has no node of it."""

import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """In training, zeroes each number with probability `p` and scales the others so that the mean stays."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout must be a probability below 1, got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p) if self.training and self.p > 0.0 else x
