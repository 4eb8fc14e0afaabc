"""Attention against the formula of the paper and against torch's own module, values and gradients."""

import math

import pytest
import torch
from torch import Tensor, nn

from project.nn import MultiHeadAttention, RotaryPosition
from project.nn.attention import attention_weights, fused_attention

B, T, S, D, H = 3, 5, 7, 16, 4


def padding_mask(*lengths: int, width: int) -> Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def one_by_one(fused: Tensor) -> Tensor:
    """Rows of the fused projection in torch's order, all queries before all keys before all values."""
    return fused.unflatten(0, (H, 3, D // H)).transpose(0, 1).flatten(0, 2)


def torch_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """nn.MultiheadAttention with the weights of ours."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": one_by_one(ours.in_projection.weight),
            "in_proj_bias": one_by_one(ours.in_projection.bias),
            "out_proj.weight": ours.out_projection.weight,
            "out_proj.bias": ours.out_projection.bias,
        }
    )
    return theirs


def make_attention(**kwargs: object) -> MultiHeadAttention:
    attention = MultiHeadAttention(D, H, **kwargs)
    nn.init.normal_(attention.in_projection.bias)  # zero biases would hide a forgotten one
    nn.init.normal_(attention.out_projection.bias)
    return attention


@pytest.mark.parametrize("kind", ["self", "cross", "separate value"])
def test_equals_the_formula_head_by_head(kind: str) -> None:
    attention = make_attention().double()
    query = torch.randn(B, T, D, dtype=torch.double)
    key = query if kind == "self" else torch.randn(B, S, D, dtype=torch.double)
    value = torch.randn(B, S, D, dtype=torch.double) if kind == "separate value" else key
    mask = padding_mask(key.size(1), 2, 4, width=key.size(1))

    weight_q, weight_k, weight_v = one_by_one(attention.in_projection.weight).chunk(3)
    bias_q, bias_k, bias_v = one_by_one(attention.in_projection.bias).chunk(3)
    expected = torch.zeros(B, T, D, dtype=torch.double)
    for b in range(B):
        length = int(mask[b].sum())
        heads = []
        for rows in torch.arange(D).chunk(H):
            q = query[b] @ weight_q[rows].T + bias_q[rows]
            k = key[b, :length] @ weight_k[rows].T + bias_k[rows]
            v = value[b, :length] @ weight_v[rows].T + bias_v[rows]
            heads.append(torch.softmax(q @ k.T / math.sqrt(D // H), dim=-1) @ v)
        expected[b] = torch.cat(heads, dim=-1) @ attention.out_projection.weight.T + attention.out_projection.bias

    arguments = {"self": (), "cross": (key,), "separate value": (key, value)}[kind]
    torch.testing.assert_close(attention(query, *arguments, padding_mask_BS=mask), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cross", [False, True])
def test_equals_torch_in_values_and_gradients(cross: bool) -> None:
    ours = make_attention()
    theirs = torch_twin(ours)
    query = torch.randn(B, T, D, requires_grad=True)
    key = torch.randn(B, S, D, requires_grad=True) if cross else query
    mask = padding_mask(key.size(1), 2, 4, width=key.size(1))

    out = ours(query, key if cross else None, padding_mask_BS=mask)
    expected, expected_weights = theirs(query, key, key, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    weights = ours.weights(query, key if cross else None, padding_mask_BS=mask)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-6)

    upstream = torch.randn(B, T, D)
    query_grad, key_grad, *gradients = torch.autograd.grad(out, [query, key, *ours.parameters()], upstream)
    expected_gradients = torch.autograd.grad(expected, [query, key, *theirs.parameters()], upstream)
    gradients[:2] = [one_by_one(gradient) for gradient in gradients[:2]]
    torch.testing.assert_close([query_grad, key_grad, *gradients], list(expected_gradients), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_kernel_equals_the_plain_products(dtype: torch.dtype) -> None:
    """Values and gradients of the two ways to compute the formula; a row of padding alone need only be finite."""
    qkv = [torch.randn(B, H, width, D // H, dtype=dtype).requires_grad_() for width in (T, S, S)]
    mask, upstream = padding_mask(S, 2, 0, width=S), torch.randn(B, H, T, D // H, dtype=dtype)
    tolerance = {"rtol": 0.0, "atol": 1e-5 if dtype == torch.float32 else 0.05}
    for padding_mask_bs in (mask, None):
        rows = slice(0, 2 if padding_mask_bs is not None else B)
        plain = attention_weights(qkv[0], qkv[1], padding_mask_bs) @ qkv[2]
        fused = fused_attention(*qkv, padding_mask_bs, dropout=0.0)
        torch.testing.assert_close(fused[rows], plain[rows], **tolerance)
        gradients = [torch.autograd.grad(out, qkv, upstream) for out in (fused, plain)]
        torch.testing.assert_close(*([g[rows] for g in each] for each in gradients), **tolerance)
        assert fused.isfinite().all()
        assert all(g.isfinite().all() for g in gradients[0])


def test_other_devices_take_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that computes shapes alone stands for all that are not a CPU."""
    dropouts: list[float] = []

    def record(query: Tensor, key: Tensor, value: Tensor, padding_mask_bs: Tensor | None, dropout: float) -> Tensor:
        dropouts.append(dropout)
        return fused_attention(query, key, value, padding_mask_bs, dropout)

    monkeypatch.setattr("project.nn.attention.fused_attention", record)
    attention, x = make_attention(dropout=0.5).to("meta"), torch.randn(B, T, D, device="meta")
    assert attention(x).shape == x.shape
    attention.eval()(x, padding_mask_BS=padding_mask(T, 2, 0, width=T).to("meta"))
    assert dropouts == [0.5, 0.0]


def test_padding_has_no_weight() -> None:
    attention = make_attention()
    weights = attention.weights(torch.randn(B, T, D), padding_mask_BS=padding_mask(5, 2, 1, width=T))
    assert weights[1, :, :, 2:].eq(0).all()
    assert weights[2, :, :, 0].eq(1).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_is_finite(dtype: torch.dtype) -> None:
    attention = make_attention().to(dtype)
    x = torch.randn(2, T, D, dtype=dtype, requires_grad=True)
    out = attention(100 * x, padding_mask_BS=padding_mask(0, T, width=T))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert out.isfinite().all()
    assert gradient.isfinite().all()


def test_dropout_drops_weights_in_training_only() -> None:
    attention = make_attention(dropout=0.5)
    x = torch.randn(B, T, D)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_rotary_turns_queries_and_keys_by_the_same_table() -> None:
    """Attention that adds rotary positions is unchanged when all tokens move by the same distance."""
    attention = make_attention(rotary=RotaryPosition(D // H, 32))
    x = torch.randn(B, T, D)
    shifted = torch.cat([torch.randn(B, 9, D), x], dim=1)
    hidden = torch.cat([torch.zeros(B, 9), torch.ones(B, T)], dim=1).bool()
    torch.testing.assert_close(attention(shifted, padding_mask_BS=hidden)[:, 9:], attention(x), rtol=0, atol=1e-5)
    assert not torch.allclose(attention(x.flip(1)).flip(1), attention(x), atol=1e-3)


def test_heads_must_divide_d_model() -> None:
    with pytest.raises(ValueError, match=r"^d_model 10 cannot be divided into num_heads 4 heads of equal size$"):
        MultiHeadAttention(10, 4)
