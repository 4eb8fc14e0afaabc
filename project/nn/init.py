"""The one place where weights get their first values."""

from torch import nn

from project.nn.attention import MultiHeadAttention
from project.nn.heads import ClassificationHead


def xavier_init(module: nn.Module) -> None:
    """Xavier-uniform weights (Glorot and Bengio, 2010), zero biases; embeddings are normal with variance 1 / size.

    A fused projection gets the bounds that its three maps would get separately. A classification head gets a
    tenth, so that the first loss is that of a guess, ln(C). Norms keep torch's ones and zeros.
    """
    heads = {part.linear for part in module.modules() if isinstance(part, ClassificationHead)}
    fused = {part.in_projection for part in module.modules() if isinstance(part, MultiHeadAttention)}
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=part.embedding_dim**-0.5)
        elif isinstance(part, nn.Linear):
            fan_out = part.out_features // 3 if part in fused else part.out_features
            bound = (6 / (part.in_features + fan_out)) ** 0.5
            bound = bound / 10 if part in heads else bound
            nn.init.uniform_(part.weight, -bound, bound)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
