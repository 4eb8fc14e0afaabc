"""The encoders a user would otherwise pick, as classifiers of one size, dropout and head.

Each is set up as its documentation advises; no weights are downloaded. All drop attention weights and embeddings, and
further: template, reference and BERT what each sublayer adds; ModernBERT what attention adds, and hidden units;
x-transformers hidden units; nn.TransformerEncoder, which knows a single rate, all of these.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from project.cpu import multiply_in_onednn
from project.nn import Encoder, SequenceClassifier

INSTALL = "pip install -c constraints.txt -e '.[bench]'"


@dataclass(frozen=True)
class Sizes:
    """Of every contender."""

    d_model: int = 256
    num_heads: int = 4
    num_layers: int = 4
    d_ff: int = 1024
    vocab_size: int = 8000
    num_classes: int = 26
    max_length: int = 512
    dropout: float = 0.1

    def flops(self, lengths: Tensor) -> float:
        """Floating-point operations that a training step needs for texts of these lengths, padding not counted.

        Twice the weights of all matrix products per token, and attention's two products, all three times: once
        forward and twice backward (Chowdhery et al., "PaLM", appendix B).
        """
        weights = self.num_layers * (4 * self.d_model**2 + 2 * self.d_model * self.d_ff)
        attention = self.num_layers * 2 * 2 * self.d_model * (lengths.double() ** 2).sum()
        return 3 * (2 * weights * float(lengths.sum()) + float(attention))


class Classifier(nn.Module):
    """A backbone from (B, T) tokens and a mask, True = real, to (B, T, D); then mean pooling and one linear map."""

    def __init__(self, backbone: nn.Module, sizes: Sizes) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Dropout(sizes.dropout), nn.Linear(sizes.d_model, sizes.num_classes))

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        x_BTD: Tensor = self.backbone(tokens_BT, padding_mask_BT)
        real_BT1 = padding_mask_BT.unsqueeze(-1)
        return self.head((x_BTD * real_BT1).sum(1) / real_BT1.sum(1).clamp(min=1))


class Embedding(nn.Module):
    """Scaled token embeddings plus the sinusoidal table (Vaswani et al., sections 3.4 and 3.5)."""

    table: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab_size, sizes.d_model)
        self.scale = math.sqrt(sizes.d_model)
        self.dropout = nn.Dropout(sizes.dropout)
        frequencies = torch.exp(torch.arange(0, sizes.d_model, 2) * (-math.log(10000.0) / sizes.d_model))
        angles = torch.arange(sizes.max_length)[:, None] * frequencies
        self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.dropout(self.tokens(tokens_BT) * self.scale + self.table[: tokens_BT.size(1)])


class ReferenceLayer(nn.Module):
    """The formula written out: separate projections, masked_fill, post-norm (Vaswani et al., sections 3 and 5.4)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        d_model = sizes.d_model
        self.num_heads = sizes.num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.up, self.down = nn.Linear(d_model, sizes.d_ff), nn.Linear(sizes.d_ff, d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BTD: Tensor, padding_mask_BT: Tensor) -> Tensor:
        batch, length, d_model = x_BTD.shape
        query, key, value = (
            linear(x_BTD).view(batch, length, self.num_heads, -1).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        scores = scores.masked_fill(~padding_mask_BT[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = self.dropout(scores.softmax(-1))
        context = (weights @ value).transpose(1, 2).reshape(batch, length, d_model)
        x_BTD = self.norms[0](x_BTD + self.dropout(self.out(context)))
        return self.norms[1](x_BTD + self.dropout(self.down(self.up(x_BTD).relu())))


class Reference(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(sizes)
        self.layers = nn.ModuleList(ReferenceLayer(sizes) for _ in range(sizes.num_layers))

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, padding_mask_BT)
        return x_BTD


class TorchEncoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(sizes)
        layer = nn.TransformerEncoderLayer(
            sizes.d_model, sizes.num_heads, sizes.d_ff, sizes.dropout, "gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(sizes.d_model)
        self.encoder = nn.TransformerEncoder(layer, sizes.num_layers, norm, enable_nested_tensor=False)

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        return self.encoder(self.embedding(tokens_BT), src_key_padding_mask=~padding_mask_BT)


class HubEncoder(nn.Module):
    """A model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        output: Tensor = self.model(input_ids=tokens_BT, attention_mask=padding_mask_BT.long())[0]
        return output


def bert(sizes: Sizes) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.d_model,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        intermediate_size=sizes.d_ff,
        max_position_embeddings=sizes.max_length,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
    )
    config._attn_implementation = "sdpa"
    return HubEncoder(BertModel(config, add_pooling_layer=False))


def modernbert(sizes: Sizes) -> nn.Module:
    """Its feed-forward layer is gated: three matrices of two thirds the width hold as many weights as two."""
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.d_model,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        intermediate_size=16 * round(sizes.d_ff * 2 / 3 / 16),
        max_position_embeddings=sizes.max_length,
        embedding_dropout=sizes.dropout,
        attention_dropout=sizes.dropout,
        mlp_dropout=sizes.dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    config._attn_implementation = "sdpa"
    return HubEncoder(ModernBertModel(config))


class XEncoder(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        output: Tensor = self.model(tokens_BT, mask=padding_mask_BT, return_embeddings=True)
        return output


def x_transformers(sizes: Sizes) -> nn.Module:
    from x_transformers import Encoder as XLayers
    from x_transformers import TransformerWrapper

    layers = XLayers(
        dim=sizes.d_model,
        depth=sizes.num_layers,
        heads=sizes.num_heads,
        attn_dim_head=sizes.d_model // sizes.num_heads,
        attn_flash=True,
        attn_dropout=sizes.dropout,
        ff_mult=sizes.d_ff / sizes.d_model,
        ff_dropout=sizes.dropout,
    )
    return XEncoder(
        TransformerWrapper(
            num_tokens=sizes.vocab_size,
            max_seq_len=sizes.max_length,
            attn_layers=layers,
            emb_dropout=sizes.dropout,
            logits_dim=1,  # its own head is not used
        )
    )


def ours(sizes: Sizes) -> nn.Module:
    encoder = Encoder(
        sizes.d_model, sizes.num_layers, sizes.num_heads, sizes.d_ff, sizes.dropout, max_length=sizes.max_length
    )
    return SequenceClassifier(
        encoder,
        sizes.vocab_size,
        sizes.num_classes,
        "mean",
        embedding_dropout=sizes.dropout,
        head_dropout=sizes.dropout,
    )


OURS = "project"
PEERS: dict[str, Callable[[Sizes], nn.Module]] = {
    "reference formula": Reference,
    "nn.TransformerEncoder": TorchEncoder,
    "BERT (transformers)": bert,
    "ModernBERT (transformers)": modernbert,
    "x-transformers": x_transformers,
}


def build(name: str, sizes: Sizes) -> nn.Module:
    """The classifier of that name. ImportError if its library is not installed."""
    torch.manual_seed(0)
    return ours(sizes) if name == OURS else Classifier(PEERS[name](sizes), sizes)


def available() -> list[str]:
    """Names of all contenders whose library is installed; says which are not."""
    names = [OURS]
    for name in PEERS:
        try:
            build(name, Sizes(d_model=16, num_heads=2, num_layers=1, d_ff=32, vocab_size=8, max_length=8))
        except ImportError as error:
            print(f"{name} is left out ({error}): {INSTALL}")
        else:
            names.append(name)
    return names


def onednn_precision() -> str:
    """The setting that the command line makes."""
    multiply_in_onednn()
    return torch.get_float32_matmul_precision()


class Trainee:
    """A contender with its optimizer: what takes a training step.

    Ours multiplies float32 as the command line lets it, with `onednn` the others too.
    """

    def __init__(self, name: str, sizes: Sizes, precision: str, onednn: bool = False) -> None:
        self.products = onednn_precision() if onednn or name == OURS else "highest"
        self.model = build(name, sizes).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.precision = precision

    def step(self, batch: dict[str, Any]) -> None:
        torch.set_float32_matmul_precision(self.products)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.model(batch["tokens"], batch["padding_mask"])
            loss = nn.functional.cross_entropy(logits.float(), batch["labels"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
