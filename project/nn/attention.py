"""Multi-head attention, softmax(Q K^T / sqrt(d_k)) V, as in Vaswani et al., "Attention is all you need", section 3.2.

Notable:
- one matrix product projects queries, keys and values when they come from the same tokens;
- padding is masked by a finite bias, so that a row with no real token gives finite output in every precision;
- the formula runs as plain matrix products on a CPU, as torch's fused kernel elsewhere: each is the faster one there;
- positions, where they are rotary, turn queries and keys here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.nn.dropout import Dropout
from project.nn.position import RotaryPosition


class MultiHeadAttention(nn.Module):
    """Attention of T queries over S keys and values, in `num_heads` heads of size `d_model / num_heads`.

    Args:
        d_model: size of a token's vector, a multiple of `num_heads`.
        num_heads: number of heads.
        dropout: probability of dropping an attention weight in training.
        bias: whether the projections add a bias.
        rotary: turns queries and keys by their position, if given; its size is that of one head.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: RotaryPosition | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads != 0:
            raise ValueError(f"d_model {d_model} cannot be divided into num_heads {num_heads} heads of equal size")
        self.head_size = d_model // num_heads
        self.dropout = Dropout(dropout)
        self.in_projection = nn.Linear(d_model, 3 * d_model, bias=bias)  # head by head, for parallel shards
        self.out_projection = nn.Linear(d_model, d_model, bias=bias)
        self.rotary = rotary

    def forward(
        self,
        query_BTD: Tensor,
        key_BSD: Tensor | None = None,
        value_BSD: Tensor | None = None,
        padding_mask_BS: Tensor | None = None,
    ) -> Tensor:
        """Attend to keys and values, which default to the query (self-attention), or to the key for the value.

        Args:
            padding_mask_BS: True where a key is a real token; None where all are.

        Returns:
            (B, T, D)
        """
        query_BHTK, key_BHSK, value_BHSK = self.project(query_BTD, key_BSD, value_BSD)
        if query_BTD.device.type == "cpu":
            weights_BHTS = self.dropout(attention_weights(query_BHTK, key_BHSK, padding_mask_BS))
            context_BHTK = torch.matmul(weights_BHTS, value_BHSK)
        else:
            dropout = self.dropout.p if self.training else 0.0
            context_BHTK = fused_attention(query_BHTK, key_BHSK, value_BHSK, padding_mask_BS, dropout)
        return self.out_projection(context_BHTK.transpose(1, 2).flatten(2))

    @torch.jit.export
    def weights(
        self, query_BTD: Tensor, key_BSD: Tensor | None = None, padding_mask_BS: Tensor | None = None
    ) -> Tensor:
        """The attention weights of each head, (B, H, T, S), without dropout: what there is to plot."""
        query_BHTK, key_BHSK, _ = self.project(query_BTD, key_BSD, None)
        return attention_weights(query_BHTK, key_BHSK, padding_mask_BS)

    def project(
        self, query_BTD: Tensor, key_BSD: Tensor | None, value_BSD: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, H, S, K)."""
        query_BHTK, key_BHSK, value_BHSK = self.split(self.in_projection(query_BTD))
        if key_BSD is not None:  # the fused product makes all three of each input; unused parts are discarded
            _, key_BHSK, value_BHSK = self.split(self.in_projection(key_BSD))
        if value_BSD is not None:
            _, _, value_BHSK = self.split(self.in_projection(value_BSD))
        if self.rotary is not None:
            query_BHTK, key_BHSK = self.rotary(query_BHTK), self.rotary(key_BHSK)
        return query_BHTK, key_BHSK, value_BHSK

    def split(self, qkv_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, 3 D) to three times (B, H, T, K), by one copy instead of one in each of the products that follow."""
        qkv_BTHK = qkv_BTD.unflatten(-1, (-1, 3, self.head_size))
        query_BHTK, key_BHTK, value_BHTK = qkv_BTHK.permute(3, 0, 2, 1, 4).contiguous().unbind(0)
        return query_BHTK, key_BHTK, value_BHTK


def attention_weights(query_BHTK: Tensor, key_BHSK: Tensor, padding_mask_BS: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) over the real keys, (B, H, T, S)."""
    scores_BHTS = torch.matmul(query_BHTK * query_BHTK.size(-1) ** -0.5, key_BHSK.transpose(-2, -1))
    if padding_mask_BS is not None:
        scores_BHTS += padding_bias(padding_mask_BS, scores_BHTS.dtype)
    return scores_BHTS.softmax(-1)


def fused_attention(
    query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, padding_mask_BS: Tensor | None, dropout: float
) -> Tensor:
    """The same formula by torch's kernel for the device, (B, H, T, K). Its backward pass is slow on a CPU."""
    bias = None if padding_mask_BS is None else padding_bias(padding_mask_BS, query_BHTK.dtype)
    return F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSK, bias, dropout)


def padding_bias(padding_mask_BS: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to scores, (B, 1, 1, S): 0 for real tokens, -30000 for padding, which softmax makes exactly zero.

    The bias is finite, and so is a row of padding alone; it and the score it is added to fit in half precision.
    """
    bias_BS = torch.zeros(padding_mask_BS.shape, dtype=dtype, device=padding_mask_BS.device)
    return bias_BS.masked_fill(padding_mask_BS.logical_not(), -30000.0)[:, None, None, :]
