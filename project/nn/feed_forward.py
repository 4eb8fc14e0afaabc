"""The token-wise half of an encoder layer: two linear maps with an activation between them."""

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """silu(gate) * value, where gate and value are the halves of the last dimension (Shazeer, "GLU variants")."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class FeedForward(nn.Module):
    """(..., D) to (..., F), activation, and back to (..., D).

    Args:
        d_model: D.
        d_ff: F.
        activation: "gelu", "relu" or "swiglu"; the last has half as many weights again for the same d_ff.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str = "gelu") -> None:
        super().__init__()
        activations: dict[str, nn.Module] = {"gelu": nn.GELU(), "relu": nn.ReLU(), "swiglu": SwiGLU()}
        if activation not in activations:
            raise ValueError(f"activation must be one of {', '.join(activations)}, got {activation!r}")
        self.up = nn.Linear(d_model, 2 * d_ff if activation == "swiglu" else d_ff)
        self.activation = activations[activation]
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x_BTD)))
