"""Batches of like lengths under a token budget: little padding, shuffled anew each epoch, the same for a seed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

Int64 = npt.NDArray[np.int64]


def batch_sizes(descending_lengths: Int64, tokens_per_batch: int, multiple_of: int = 1) -> list[int]:
    """How many consecutive rows make a batch, so that rows x longest stays within the budget (one row at least).

    The number of batches is brought to a multiple by halving the batches of most rows.
    """
    sizes, start = [], 0
    while start < len(descending_lengths):
        size = max(1, tokens_per_batch // int(descending_lengths[start]))
        sizes.append(min(size, len(descending_lengths) - start))
        start += sizes[-1]
    while len(sizes) % multiple_of and max(sizes) > 1:
        i = int(np.argmax(sizes))
        sizes[i : i + 1] = [sizes[i] - sizes[i] // 2, sizes[i] // 2]
    return sizes


def batch_indices(lengths: Int64, tokens_per_batch: int) -> list[Int64]:
    """All rows in batches of like lengths, longest first."""
    order = np.argsort(-lengths, kind="stable")
    return np.split(order, np.cumsum(batch_sizes(lengths[order], tokens_per_batch))[:-1])


class TokenBudgetSampler(DistributedSampler[list[int]]):
    """Yields lists of rows. Being a DistributedSampler, Lightning tells it the epoch and does not replace it.

    Training: every row once an epoch over all processes, as many batches on each. Rows of equal length are shuffled,
    then the batches are; their number is the same in every epoch. Evaluation: fixed batches, dealt out in turn.

    Args:
        lengths: tokens of each row.
        tokens_per_batch: upper bound of rows x longest row.
        shuffle: for training.
        seed: of the shuffle.
    """

    def __init__(self, lengths: Int64, tokens_per_batch: int, shuffle: bool, seed: int) -> None:
        spread = dist.is_available() and dist.is_initialized()
        self.num_replicas = dist.get_world_size() if spread else 1
        self.rank = dist.get_rank() if spread else 0
        self.lengths, self.shuffle, self.seed = lengths, shuffle, seed
        self.sizes = batch_sizes(-np.sort(-lengths), tokens_per_batch, self.num_replicas if shuffle else 1)
        self.epoch = 0
        self.start = 0  # batches of this epoch already seen, after a resume

    def __len__(self) -> int:
        """Batches of this process in a whole epoch."""
        return len(range(self.rank, len(self.sizes), self.num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        ties = generator.random(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        batches = np.split(np.lexsort((ties, -self.lengths)), np.cumsum(self.sizes)[:-1])
        turn = generator.permutation(len(batches)) if self.shuffle else np.arange(len(batches))
        start, self.start = self.start, 0
        for i in turn[self.rank :: self.num_replicas][start:]:
            yield batches[i].tolist()


class TokenBudgetLoader(DataLoader[dict[str, Any]]):
    """A DataLoader over a `TokenBudgetSampler` that knows its place in the epoch, for Lightning to save and restore."""

    position = 0  # batches handed out in this epoch, however many were prefetched

    def __iter__(self) -> Iterator[Any]:
        assert isinstance(self.sampler, TokenBudgetSampler)
        self.position = self.sampler.start
        for batch in super().__iter__():
            self.position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert isinstance(self.sampler, TokenBudgetSampler)
        self.sampler.start = state["position"]
