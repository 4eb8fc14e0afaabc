"""Dropout that is cheap on a CPU and leaves no trace outside training: an exported graph has no node of it."""

import torch
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
        if not self.training or self.p == 0.0:
            return x
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return F.dropout(x, self.p)
        else:
            if torch.compiler.is_compiling() or x.device.type != "cpu":
                return F.dropout(x, self.p)
            return x * keep_mask(x, self.p)


def keep_mask(x: Tensor, p: float) -> Tensor:
    """What to multiply x with: 0 where it is dropped, otherwise 1 / (1 - p).

    torch draws a double for each number, one after the other. Here eight numbers share one draw of 64 bits: each gets
    a byte, and stays if that is large enough. So p is rounded to a multiple of 1/256; the mean is exact all the same.
    """
    dropped = min(max(round(256 * p), 1), 255)  # how many of the 256 bytes
    random = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None).view(torch.int8)
    keep = random[: x.numel()].ge_(dropped - 128)  # in place: no detour over bool, which is slow to convert
    return keep.view(x.shape).to(x.dtype).mul_(256 / (256 - dropped))
