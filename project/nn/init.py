"""The one place where weights get their first values."""

from torch import nn

from project.nn.attention import MultiHeadAttention
from project.nn.feed_forward import FeedForward, SwiGLU


def xavier_init(module: nn.Module) -> None:
    """Xavier-uniform weights (Glorot and Bengio, 2010), zero biases; embeddings are normal with variance 1 / size.

    A fused projection is initialised as the separate maps that it stands for. Norms keep torch's ones and zeros.
    """
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
        elif isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for part in module.modules():
        if isinstance(part, MultiHeadAttention):
            for weight_DD in part.in_projection.weight.data.chunk(3):
                nn.init.xavier_uniform_(weight_DD)
        elif isinstance(part, FeedForward) and isinstance(part.activation, SwiGLU):
            for weight_FD in part.up.weight.data.chunk(2):
                nn.init.xavier_uniform_(weight_FD)
