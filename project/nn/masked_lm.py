"""Say which token stands under a mask: the embedding, the encoder, and the embedding once more as output layer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.nn.contract import d_model_of
from project.nn.dropout import Dropout
from project.nn.init import xavier_init


class MaskedLanguageModel(nn.Module):
    """Embedding, encoder, one hidden layer as in BERT, and logits by the product with each token's embedding.

    Tied weights are those of Press and Wolf, "Using the output embedding to improve language models" (2017).

    Args:
        encoder: maps (B, T, d_model) and a padding mask (B, T) to (B, T, d_model); has an attribute `d_model`.
        vocab_size: V, number of token ids.
        embedding_dropout: dropout on token embeddings.

    Raises:
        ValueError: the encoder gives another shape.
    """

    def __init__(self, encoder: nn.Module, vocab_size: int, embedding_dropout: float = 0.1) -> None:
        super().__init__()
        d_model = d_model_of(encoder)
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.embedding_scale = d_model**0.5  # brings embeddings to unit variance (Vaswani et al., section 3.4)
        self.dropout = Dropout(embedding_dropout)
        self.encoder = encoder
        self.hidden = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.LayerNorm(d_model))
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        for part in (self.embedding, self.hidden):
            xavier_init(part)

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor, chosen_BT: Tensor | None = None) -> Tensor:
        """Logits of every token, (B, T, V), or of the N chosen ones alone, (N, V), in the order of rows.

        Args:
            tokens_BT: token ids, int64.
            padding_mask_BT: True for real tokens.
            chosen_BT: True where logits are asked for. The others cost V multiplications by D each, so ask for few.
        """
        x_BTD = self.dropout(self.embedding(tokens_BT) * self.embedding_scale)
        x_BTD = self.encoder(x_BTD, padding_mask_BT)
        x = x_BTD if chosen_BT is None else x_BTD[chosen_BT]
        return F.linear(self.hidden(x), self.embedding.weight, self.output_bias)
