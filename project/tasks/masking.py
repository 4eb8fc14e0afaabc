"""Which tokens are masked: a function of seed, epoch, row and position, and of nothing else.

A generator would have to be carried through workers, processes and resumes; a hash of a counter has no state
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). So the same epoch of the same seed has the same
masks, however its rows were batched, padded, shared out or interrupted.
"""

import torch
from torch import Tensor

# Constants of SplitMix64 (Steele et al., 2014), as signed integers.
GAMMA, FIRST, SECOND = (x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def scramble(x: Tensor) -> Tensor:
    """SplitMix64's output function: 64 bits in, 64 bits out, each of which depends on all; one to one."""
    x = x + GAMMA
    x = (x ^ shift(x, 30)) * FIRST
    x = (x ^ shift(x, 27)) * SECOND
    return x ^ shift(x, 31)


def shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own repeats the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def draws(seed: int, epoch: int, ids_B: Tensor, length: int) -> Tensor:
    """Random int64, (B, length): one for each position of each row."""
    x = scramble(torch.tensor(seed, device=ids_B.device))
    x = scramble(x ^ epoch)
    x_B1 = scramble(x ^ ids_B)[:, None]
    return scramble(x_B1 ^ torch.arange(length, device=ids_B.device))


def mask_tokens(
    tokens_BT: Tensor,
    padding_mask_BT: Tensor,
    random_BT: Tensor,
    vocab_size: int,
    share: float = 0.15,
    mask_id: int = 3,
    num_special: int = 4,
) -> tuple[Tensor, Tensor]:
    """Choose a fixed share of each row's tokens, one at least; of those mask 80 %, replace 10 %, leave 10 % (BERT).

    Args:
        tokens_BT: token ids.
        padding_mask_BT: True for real tokens.
        random_BT: what `draws` gives.
        vocab_size: V.
        share: of a row's tokens that are chosen.
        mask_id: id of the mask token.
        num_special: ids below are never chosen, and never drawn as a replacement.

    Returns:
        Token ids for the model, and where a prediction is asked for, True.
    """
    candidates_BT = padding_mask_BT & (tokens_BT >= num_special)
    count_B = candidates_BT.sum(1)
    wanted_B = (count_B * share).round().clamp(min=1).minimum(count_B)
    order_BT = random_BT.masked_fill(~candidates_BT, 2**63 - 1).argsort(1).argsort(1)
    chosen_BT = order_BT < wanted_B[:, None]

    again_BT = scramble(random_BT)
    kind_BT = shift(again_BT, 40) / 2**24  # uniform between 0 and 1; the other 40 bits draw the replacement
    replacement_BT = num_special + (again_BT & (2**40 - 1)) % (vocab_size - num_special)
    masked_BT = torch.where(chosen_BT & (kind_BT < 0.8), mask_id, tokens_BT)
    return torch.where(chosen_BT & (kind_BT >= 0.9), replacement_BT, masked_BT), chosen_BT
