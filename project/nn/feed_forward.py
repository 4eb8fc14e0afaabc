"""The token-wise half of an encoder layer: two linear maps with an activation between them."""

from torch import Tensor, nn


class FeedForward(nn.Module):
    """(..., D) to (..., F), activation, and back to (..., D).

    "swiglu" multiplies silu of one map to F with another map to F (Shazeer, "GLU variants improve Transformer"): half
    as many weights again for the same F.

    Args:
        d_model: D.
        d_ff: F.
        activation: "gelu", "relu" or "swiglu".
    """

    def __init__(self, d_model: int, d_ff: int, activation: str = "gelu") -> None:
        super().__init__()
        activations: dict[str, nn.Module] = {"gelu": nn.GELU(), "relu": nn.ReLU(), "swiglu": nn.SiLU()}
        if activation not in activations:
            raise ValueError(f"activation must be one of {', '.join(activations)}, got {activation!r}")
        self.activation = activations[activation]
        self.up = nn.Linear(d_model, d_ff)
        self.gate = nn.Linear(d_model, d_ff) if activation == "swiglu" else None
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))
        return self.down(self.activation(self.up(x_BTD)))
