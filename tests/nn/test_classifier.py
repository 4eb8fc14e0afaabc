"""Pooling, the whole classifier, and the ways it leaves eager Python: script, export, compile."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from project.nn import Encoder, Pooling, SequenceClassifier

V, C, D, H, T = 50, 5, 16, 4, 7


def padding_mask(*lengths: int) -> Tensor:
    return torch.arange(T) < torch.tensor(lengths)[:, None]


def make_classifier(**kwargs: object) -> SequenceClassifier:
    return SequenceClassifier(Encoder(D, 2, H, max_length=32, **kwargs), V, C)


def example() -> tuple[Tensor, Tensor]:
    """Three sequences, the last one all padding."""
    return torch.randint(V, (3, T)), padding_mask(T, 3, 0)


@pytest.mark.parametrize("pooling", ["mean", "max", "mean_max", "cls"])
def test_pooling_sees_real_tokens_alone(pooling: str) -> None:
    x, mask = torch.randn(3, T, D), padding_mask(T, 3, 0)
    out = Pooling(D, pooling)(x, mask)
    for b, length in enumerate((T, 3)):
        real = x[b, :length]
        mean, largest = real.mean(0), real.max(0).values
        expected = {"mean": mean, "max": largest, "mean_max": torch.cat([mean, largest]), "cls": real[0]}[pooling]
        torch.testing.assert_close(out[b], expected)
    assert out[2].eq(0).all()
    assert out.size(1) == Pooling(D, pooling).out_size


def test_unknown_pooling_is_named() -> None:
    with pytest.raises(ValueError, match="pooling must be mean, max, mean_max or cls, got 'sum'"):
        Pooling(D, "sum")


@pytest.mark.parametrize("pooling", ["mean", "max", "mean_max", "cls"])
def test_a_text_alone_and_padded_gives_the_same_logits(pooling: str) -> None:
    model = SequenceClassifier(Encoder(D, 2, H), V, C, pooling=pooling).eval()
    tokens, mask = example()
    alone = model(tokens[1:2, :3], mask[1:2, :3])
    torch.testing.assert_close(model(tokens, mask)[1:2], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_is_finite(dtype: torch.dtype) -> None:
    model = make_classifier().to(dtype)
    logits = model(*example())
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_padding_tokens_get_no_gradient() -> None:
    model = make_classifier()
    tokens, mask = torch.randint(1, V, (3, T)), padding_mask(T, 3, 0)
    model(tokens.masked_fill(~mask, 0), mask).sum().backward()
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad[0].eq(0).all()
    assert model.embedding.weight.grad[tokens[mask]].ne(0).any(-1).all()


def test_dropout_stands_after_the_embedding_and_before_the_head() -> None:
    model, seen = make_classifier(), []
    model.dropout.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    model.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.head.dropout.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    nn.init.normal_(model.head.linear.bias)
    logits = model(*example())
    assert seen[0].eq(0).all()
    torch.testing.assert_close(logits, model.head.linear.bias.expand(3, C))


def test_embeddings_enter_at_unit_variance() -> None:
    model, seen = SequenceClassifier(Encoder(64, 1, 4), 1000, C).eval(), []
    model.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    tokens = torch.arange(1000).view(20, 50)
    model(tokens, torch.ones(20, 50, dtype=torch.bool))
    assert torch.equal(seen[0], model.embedding(tokens) * 8)
    assert seen[0].std().item() == pytest.approx(1, rel=0.05)


def test_a_given_encoder_keeps_its_weights() -> None:
    encoder = Encoder(D, 1, H)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    SequenceClassifier(encoder, V, C)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
def test_scripts(position: str, tmp_path: Path) -> None:
    model = make_classifier(position=position, activation="swiglu").eval()
    torch.jit.script(model).save(str(tmp_path / "model.pt"))
    scripted = torch.jit.load(str(tmp_path / "model.pt"))
    for inputs in (example(), (torch.randint(V, (1, 1)), torch.ones(1, 1, dtype=torch.bool))):
        torch.testing.assert_close(scripted(*inputs), model(*inputs))
    with pytest.raises(torch.jit.Error, match="sequence of 33 tokens is longer than max_length 32"):
        scripted(torch.zeros(1, 33, dtype=torch.int64), torch.ones(1, 33, dtype=torch.bool))
    scripted.train()
    assert scripted(*example()).isfinite().all()


def test_scripts_with_int8_weights() -> None:
    """Weights are reached through their modules alone, so that modules of another kind can take their place."""
    model = make_classifier(activation="swiglu").eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    inputs = example()
    logits = quantized(*inputs)
    assert (logits - model(*inputs)).norm() < 0.1 * logits.norm()
    torch.testing.assert_close(torch.jit.script(quantized)(*inputs), logits)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_exports_with_a_dynamic_batch_and_sequence(position: str, norm_first: bool) -> None:
    model = make_classifier(position=position, norm_first=norm_first).eval()
    dims = {0: Dim("batch", min=1, max=64), 1: Dim("sequence", min=1, max=model.encoder.max_length)}
    program = export(model, example(), dynamic_shapes=(dims, dims))
    assert not [node.target for node in program.graph.nodes if "dropout" in str(node.target)]
    for inputs in (
        example(),
        (torch.randint(V, (1, 1)), torch.ones(1, 1, dtype=torch.bool)),
        (torch.randint(V, (2, 32)), torch.rand(2, 32) > 0.5),
    ):
        torch.testing.assert_close(program.module()(*inputs), model(*inputs))
    with pytest.raises(Exception, match="<= 32"):
        program.module()(torch.zeros(1, 33, dtype=torch.int64), torch.ones(1, 33, dtype=torch.bool))


def test_compiles_in_place_and_keeps_its_names() -> None:
    model = make_classifier().eval()
    tokens, mask = example()
    expected, names = model(tokens, mask), list(model.state_dict())
    model.compile(backend="eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(model(tokens, mask), expected)
    assert list(model.state_dict()) == names


def test_compiled_training_under_autocast_equals_eager() -> None:
    model = SequenceClassifier(Encoder(D, 2, H, dropout=0.0), V, C, embedding_dropout=0.0, head_dropout=0.0)
    inputs = example()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(*inputs)
        logits.float().logsumexp(-1).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    eager = gradients()
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(), eager, rtol=0.05, atol=0.05)


def test_learns_which_token_is_there() -> None:
    """The whole chain gives gradients that lead somewhere: a toy task is solved in a few steps."""
    model = SequenceClassifier(Encoder(32, 1, 4), V, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        tokens = torch.randint(2, V, (32, T))
        labels = torch.randint(2, (32,))
        tokens[:, 3] = labels
        loss = nn.functional.cross_entropy(model(tokens, torch.ones(32, T, dtype=torch.bool)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler")
@pytest.mark.parametrize("pooling", ["max", "mean_max"])
def test_compiled_under_bf16_the_gradients_are_finite_and_near_eagers(pooling: str) -> None:
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(0)
        network = SequenceClassifier(Encoder(32, 1, 2, dropout=0.0, max_length=16), 50, 3, pooling, 0.0, 0.0)
        if compiled:
            network.compile()
        tokens, mask = torch.randint(50, (4, 9)), torch.ones(4, 9, dtype=torch.bool).tril(3)
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(tokens, mask)
        logits.float().logsumexp(-1).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert gradients[1].isfinite().all()
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()
