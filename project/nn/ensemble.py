"""Several networks as one: their mean logits."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Networks of one kind, initialised independently (Lakshminarayanan et al. 2017, "Deep Ensembles").

    Args:
        members: each maps token ids (B, T) and a padding mask (B, T) to logits (B, C).
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, tokens_BT: Tensor, padding_mask_BT: Tensor) -> Tensor:
        """Mean logits (B, C); in training those of each member, (M, B, C), for a loss of its own."""
        logits: list[Tensor] = []
        for member in self.members:
            logits.append(member(tokens_BT, padding_mask_BT))
        logits_MBC = torch.stack(logits)
        return logits_MBC if self.training else logits_MBC.mean(0)


def members_of(network: nn.Module) -> list[nn.Module]:
    """The networks of an ensemble; of any other network itself."""
    return list(network.members) if isinstance(network, Ensemble) else [network]
