"""Tokens in, class logits out: what is trained, exported and served."""

from typing import Literal

from torch import Tensor, nn

from project.nn.contract import d_model_of
from project.nn.dropout import Dropout
from project.nn.heads import ClassificationHead, Pooling
from project.nn.init import xavier_init


class SequenceClassifier(nn.Module):
    """Embedding, encoder, pooling and head.

    Args:
        encoder: maps (B, T, d_model) and a padding mask (B, T) to (B, T, d_model); has an attribute `d_model`.
        vocab_size: V, number of token ids; None where tokens are vectors.
        num_classes: C.
        pooling: how token vectors become one vector, see `Pooling`.
        embedding_dropout: dropout on token embeddings.
        head_dropout: dropout before the last linear map.
        num_features: N, size of each token where tokens are vectors: a linear map takes the embedding's place.

    Raises:
        ValueError: neither or both of vocab_size and num_features are given, or the encoder gives another shape.
    """

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None,
        num_classes: int,
        pooling: Literal["mean", "max", "mean_max", "cls"] = "mean_max",
        embedding_dropout: float = 0.1,
        head_dropout: float = 0.1,
        num_features: int | None = None,
    ) -> None:
        super().__init__()
        d_model = d_model_of(encoder)
        if (vocab_size is None) == (num_features is None):
            raise ValueError(f"give one of vocab_size and num_features, got {vocab_size} and {num_features}")
        self.embedding: nn.Module
        if vocab_size is not None:
            self.embedding = nn.Embedding(vocab_size, d_model)
            self.embedding_scale = d_model**0.5  # brings embeddings to unit variance (Vaswani et al., section 3.4)
        elif num_features is not None:
            self.embedding = nn.Linear(num_features, d_model)
            self.embedding_scale = 1.0
        self.dropout = Dropout(embedding_dropout)
        self.encoder = encoder
        self.pooling = Pooling(d_model, pooling)
        self.head = ClassificationHead(self.pooling.out_size, num_classes, head_dropout)
        for part in (self.embedding, self.head):  # not the encoder: it may come with trained weights
            xavier_init(part)

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        """Logits (B, C) of token ids (B, T), int64, or vectors (B, T, N); `padding_mask_BT` is True for real tokens."""
        x_BTD = self.dropout(self.embedding(tokens_BT) * self.embedding_scale)
        x_BTD = self.encoder(x_BTD, padding_mask_BT)
        return self.head(self.pooling(x_BTD, padding_mask_BT))
