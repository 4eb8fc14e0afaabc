"""The encoder: a stack of layers, each attention and a feed-forward network with residual connections around both.

Notable:
- pre-norm by default, x + f(norm(x)): trains without a delicate warm-up; one more norm closes the stack;
- post-norm, norm(x + f(x)), is the order of the reference (Vaswani et al., section 3.1).
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from project.nn.attention import MultiHeadAttention
from project.nn.dropout import Dropout
from project.nn.feed_forward import FeedForward
from project.nn.init import xavier_init
from project.nn.position import LearnedPosition, RotaryPosition, SinusoidalPosition, check_length


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, with dropout on what each adds to the residual stream."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        activation: Literal["gelu", "relu", "swiglu"] = "gelu",
        norm_first: bool = True,
        rotary: RotaryPosition | None = None,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(d_model, num_heads, dropout, rotary=rotary)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor, padding_mask_BT: Tensor | None = None) -> Tensor:
        if self.norm_first:
            x_BTD = x_BTD + self._attend(self.attention_norm(x_BTD), padding_mask_BT)
            return x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
        x_BTD = self.attention_norm(x_BTD + self._attend(x_BTD, padding_mask_BT))
        return self.feed_forward_norm(x_BTD + self.dropout(self.feed_forward(x_BTD)))

    def _attend(self, x_BTD: Tensor, padding_mask_BT: Tensor | None) -> Tensor:
        return self.dropout(self.attention(x_BTD, padding_mask_BS=padding_mask_BT))


class Encoder(nn.Module):
    """Positions, `num_layers` layers and, with pre-norm, a last norm.

    Args:
        d_model: size of a token's vector, a multiple of `num_heads`.
        num_layers: number of layers.
        num_heads: number of attention heads in a layer.
        d_ff: hidden size of the feed-forward network; 4 * d_model if not given.
        dropout: probability, in training, on attention weights and on whatever joins the residual stream, as in BERT.
        activation: of the feed-forward network.
        norm_first: norms before attention and feed-forward (pre-norm) instead of after (the reference's post-norm).
        position: how tokens know their place; "none" makes a bag of tokens.
        max_length: most tokens in a sequence.
        activation_checkpointing: in training, keep of each layer its input alone, and run it again in the backward
            pass: the same gradients for a third more time and a fraction of the memory.
    """

    def __init__(
        self,
        d_model: int = 256,
        num_layers: int = 4,
        num_heads: int = 4,
        d_ff: int | None = None,
        dropout: float = 0.1,
        activation: Literal["gelu", "relu", "swiglu"] = "gelu",
        norm_first: bool = True,
        position: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal",
        max_length: int = 512,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        d_ff = 4 * d_model if d_ff is None else d_ff
        if min(d_model, num_layers, num_heads, d_ff, max_length) < 1:
            raise ValueError(
                f"sizes must be 1 at least, got d_model {d_model}, num_layers {num_layers}, num_heads {num_heads}, "
                f"d_ff {d_ff}, max_length {max_length}"
            )
        self.d_model = d_model
        self.activation_checkpointing = activation_checkpointing
        self.max_length = max_length
        rotary: RotaryPosition | None = None
        self.position: nn.Module = nn.Identity()
        if position == "sinusoidal":
            self.position = SinusoidalPosition(d_model, max_length)
        elif position == "learned":
            self.position = LearnedPosition(d_model, max_length)
        elif position == "rotary":
            rotary = RotaryPosition(d_model // num_heads, max_length)  # one table, shared by all layers
        elif position != "none":
            raise ValueError(f"position must be sinusoidal, learned, rotary or none, got {position!r}")
        self.layers = nn.ModuleList(
            EncoderLayer(d_model, num_heads, d_ff, dropout, activation, norm_first, rotary) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        xavier_init(self)

    def forward(self, x_BTD: Tensor, padding_mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) to (B, T, D); `padding_mask_BT` is True for real tokens. ValueError if T exceeds max_length."""
        check_length(x_BTD.size(1), self.max_length)
        x_BTD = self.position(to_residual_precision(x_BTD))
        for layer in self.layers:
            if torch.jit.is_scripting() or not (self.activation_checkpointing and self.training):  # type: ignore[attr-defined]
                x_BTD = layer(x_BTD, padding_mask_BT)
            else:
                x_BTD = checkpoint(layer, x_BTD, padding_mask_BT, use_reentrant=False)
        return self.norm(x_BTD)


def to_residual_precision(x: Tensor) -> Tensor:
    """bfloat16 under bfloat16 autocast, which would otherwise convert the residual stream before every product.

    In float16 the stream could overflow: there it stays as it is.
    """
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return x
    else:
        device = x.device.type
        in_bfloat16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
        return x.bfloat16() if in_bfloat16 else x
