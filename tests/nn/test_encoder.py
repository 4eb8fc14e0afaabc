"""The encoder against torch's own layer, and the symmetries it must have."""

import pytest
import torch
from torch import Tensor, nn

from project.nn import Encoder, EncoderLayer, FeedForward, MultiHeadAttention, xavier_init

B, T, D, H, F = 3, 6, 16, 4, 24
POSITIONS = ["sinusoidal", "learned", "rotary", "none"]


def padding_mask(*lengths: int) -> Tensor:
    return torch.arange(T) < torch.tensor(lengths)[:, None]


TORCH_NAMES = {
    "attention.in_projection.": "self_attn.in_proj_",
    "attention.out_projection": "self_attn.out_proj",
    "feed_forward.up": "linear1",
    "feed_forward.down": "linear2",
    "attention_norm": "norm1",
    "feed_forward_norm": "norm2",
}


def as_torch(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values of our layer's parameters as nn.TransformerEncoderLayer names and orders them."""
    renamed = {}
    for name, value in values.items():
        prefix = next(prefix for prefix in TORCH_NAMES if name.startswith(prefix))
        if "in_projection" in name:  # ours goes head by head, torch's has all queries before all keys and values
            value = value.unflatten(0, (H, 3, D // H)).transpose(0, 1).flatten(0, 2)
        renamed[TORCH_NAMES[prefix] + name.removeprefix(prefix)] = value
    return renamed


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layer_equals_torch_in_values_and_gradients(activation: str, norm_first: bool) -> None:
    ours = EncoderLayer(D, H, F, dropout=0.0, activation=activation, norm_first=norm_first)
    theirs = nn.TransformerEncoderLayer(D, H, F, 0.0, activation, batch_first=True, norm_first=norm_first)
    for parameter in ours.parameters():  # biases and norms too: zeros and ones hide mistakes
        nn.init.normal_(parameter, std=0.3)
    theirs.load_state_dict(as_torch(ours.state_dict()))
    x, mask = torch.randn(B, T, D), padding_mask(T, 2, 4)
    our_x, their_x = x.clone().requires_grad_(), x.clone().requires_grad_()

    out, expected = ours(our_x, mask)[mask], theirs(their_x, src_key_padding_mask=~mask)[mask]
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)

    upstream = torch.randn_like(out)
    out.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(our_x.grad, their_x.grad, rtol=1e-4, atol=1e-5)
    gradients = as_torch({name: p.grad for name, p in ours.named_parameters() if p.grad is not None})
    expected_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


def test_dropout_stands_on_both_ways_into_the_residual_stream() -> None:
    layer, x = EncoderLayer(D, H, F, norm_first=True), torch.randn(B, T, D)
    layer.dropout.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    assert torch.equal(layer(x), x)


def test_swiglu_is_its_formula() -> None:
    feed_forward = FeedForward(D, F, activation="swiglu").double()
    x = torch.randn(B, T, D, dtype=torch.double)
    up, gate, down = feed_forward.up, feed_forward.gate, feed_forward.down
    gated = x @ gate.weight.T + gate.bias
    hidden = gated * torch.sigmoid(gated) * (x @ up.weight.T + up.bias)
    torch.testing.assert_close(feed_forward(x), hidden @ down.weight.T + down.bias)


def test_encoder_is_positions_layers_and_a_last_norm() -> None:
    encoder = Encoder(D, num_layers=3, num_heads=H).eval()
    x, mask = torch.randn(B, T, D), padding_mask(T, 2, 4)
    expected = encoder.position(x)
    for layer in encoder.layers:
        expected = layer(expected, mask)
    assert torch.equal(encoder(x, mask), encoder.norm(expected))
    assert encoder.layers[0].feed_forward.up.out_features == 4 * D
    assert isinstance(Encoder(D, 1, H, norm_first=False).norm, nn.Identity)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_changes_nothing(position: str, norm_first: bool) -> None:
    encoder = Encoder(D, 2, H, position=position, norm_first=norm_first, activation="swiglu").eval()
    x = torch.randn(1, 4, D)
    alone = encoder(x, torch.ones(1, 4, dtype=torch.bool))
    batch = torch.randn(B, T, D)
    batch[1, :4] = x
    torch.testing.assert_close(encoder(batch, padding_mask(T, 4, 1))[1:2, :4], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(encoder(x), alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("position", POSITIONS)
def test_permuting_the_batch_permutes_the_output(position: str) -> None:
    encoder = Encoder(D, 2, H, position=position).eval()
    x, mask, order = torch.randn(B, T, D), padding_mask(T, 2, 4), torch.tensor([2, 0, 1])
    torch.testing.assert_close(encoder(x[order], mask[order]), encoder(x, mask)[order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("position", POSITIONS)
def test_only_none_is_blind_to_order(position: str) -> None:
    encoder = Encoder(D, 2, H, position=position).eval()
    x = torch.randn(1, T, D)
    blind = torch.allclose(encoder(x.flip(1)).flip(1), encoder(x), atol=1e-5)
    assert blind == (position == "none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_row_of_padding_is_finite(dtype: torch.dtype, position: str) -> None:
    encoder = Encoder(D, 2, H, position=position).to(dtype)
    out = encoder(torch.randn(2, T, D, dtype=dtype), padding_mask(0, T)[:2])
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("norm_first", [True, False])
def test_residual_stream_is_bfloat16_under_autocast_and_close_to_float32(norm_first: bool) -> None:
    encoder = Encoder(D, 2, H, dropout=0.0, norm_first=norm_first)
    x, mask, upstream = torch.randn(B, T, D), padding_mask(T, 2, 4), torch.randn(B, T, D)
    between: list[torch.dtype] = []
    encoder.layers[1].register_forward_pre_hook(lambda module, inputs: between.append(inputs[0].dtype))

    expected = encoder(x, mask)
    expected_gradients = torch.autograd.grad(expected, list(encoder.parameters()), upstream)
    with torch.autocast("cpu", torch.bfloat16):
        out = encoder(x, mask)
    gradients = torch.autograd.grad(out, list(encoder.parameters()), upstream.bfloat16())
    assert between == [torch.float32, torch.bfloat16]
    assert (out - expected).norm() < 0.02 * expected.norm()
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - expected_gradient).norm() < 0.05 * max(1.0, expected_gradient.norm().item())

    with torch.autocast("cpu", torch.float16):  # whose range is too small for a sum over many layers
        encoder(x, mask)
    assert between[-1] == torch.float32


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_activation_checkpointing_keeps_less_and_changes_no_gradient(precision: torch.dtype) -> None:
    x, mask = torch.randn(B, T, D), padding_mask(T, 2, 4)
    kept, gradients, states = [], [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(D, 3, H, dropout=0.3, activation_checkpointing=checkpointing)
        sizes: list[int] = []
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t),  # type: ignore[func-returns-value]
            torch.autocast("cpu", precision, enabled=precision != torch.float32),
        ):
            out = encoder(x, mask)
        kept.append(sum(sizes))
        gradients.append(torch.autograd.grad(out.float().square().sum(), list(encoder.parameters())))
        states.append(torch.get_rng_state())
    assert kept[1] < 0.2 * kept[0]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert torch.equal(*states)


def test_activation_checkpointing_leaves_no_trace_in_a_script_or_a_graph() -> None:
    encoder = Encoder(D, 2, H, dropout=0.0, activation_checkpointing=True)
    x, mask = torch.randn(B, T, D), padding_mask(T, 2, 4)
    torch.testing.assert_close(torch.jit.script(encoder)(x, mask), encoder(x, mask))
    encoder.eval()
    graph = torch.export.export(encoder, (x, mask))
    torch.testing.assert_close(graph.module()(x, mask), encoder(x, mask))


def test_wrong_choices_are_named() -> None:
    with pytest.raises(ValueError, match=r"activation must be one of gelu, relu, swiglu, got 'tanh'$"):
        Encoder(D, 1, H, activation="tanh")
    with pytest.raises(ValueError, match=r"position must be sinusoidal, learned, rotary or none, got 'absolute'$"):
        Encoder(D, 1, H, position="absolute")
    with pytest.raises(ValueError, match=r"d_model 16 cannot be divided into num_heads 3 heads"):
        Encoder(D, 1, 3)


def test_weights_start_as_xavier_says() -> None:
    parts = nn.ModuleDict(
        {"attention": MultiHeadAttention(64, 4), "up": nn.Linear(64, 256), "tokens": nn.Embedding(500, 64)}
    )
    xavier_init(parts)
    fans = {"attention.in_projection": 64 + 64, "attention.out_projection": 64 + 64, "up": 64 + 256}
    for name, fan in fans.items():
        linear, bound = parts.get_submodule(name), (6 / fan) ** 0.5
        assert linear.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert linear.bias.eq(0).all()
    assert parts["tokens"].weight.std().item() == pytest.approx(1 / 8, rel=0.05)
