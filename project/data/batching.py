"""Batches of like lengths under a token budget: little padding, shuffled anew each epoch, the same for a seed.

Notable:
- where the order of lengths is cut into batches is fixed once; which of the rows of like length stand where is drawn
  anew each epoch. So the number of batches is known, and the same in every epoch.
- the batches depend on seed and epoch alone, not on the number of processes, which take turns: two processes see in one
  step what one process sees in two.
- every row is seen once an epoch and every process has equally many batches: those of the last round are split in two
  until that holds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler

from project.errors import UserError

Int64 = npt.NDArray[np.int64]


def like_lengths(lengths: Int64) -> Int64:
    """Lengths rounded up by less than an eighth, none beyond the longest: rows equal in this are of like length."""
    step = 2 ** np.maximum(np.log2(lengths).astype(np.int64) - 3, 0)
    rounded: Int64 = np.minimum(-(-lengths // step) * step, lengths.max())
    return rounded


def cuts(ascending: Int64, tokens_per_batch: int) -> Int64:
    """Where to cut rows of these lengths so that each batch holds as many as rows x longest row allows."""
    ends, start = [], 0
    while start < len(ascending):
        window = ascending[start : start + tokens_per_batch // int(ascending[start])]
        start += int(np.searchsorted(window * np.arange(1, len(window) + 1), tokens_per_batch, side="right"))
        ends.append(start)
    return np.array(ends[:-1], dtype=np.int64)


class TokenBudgetSampler(DistributedSampler[list[int]]):
    """Yields lists of rows. Being a DistributedSampler, Lightning tells it the epoch and does not replace it.

    Args:
        lengths: tokens of each row, (N,).
        tokens_per_batch: upper bound of rows x longest row.
        seed: of the shuffle.
        num_replicas: processes that share the rows.
        rank: of this process among them.

    Raises:
        UserError: a row exceeds the budget, or there are fewer rows than processes.
    """

    def __init__(
        self, lengths: Int64, tokens_per_batch: int, seed: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> None:
        super().__init__(range(len(lengths)), num_replicas, rank, seed=seed)  # type: ignore[arg-type]
        if lengths.max() > tokens_per_batch:
            raise UserError(f"tokens_per_batch {tokens_per_batch} cannot hold a text of {lengths.max()} tokens")
        if len(lengths) < num_replicas:
            raise UserError(f"{len(lengths)} texts are too few for {num_replicas} processes; use fewer devices")
        self.start = 0  # batches of this epoch already seen, after a resume
        self.lengths = like_lengths(lengths)
        self.cuts = cuts(np.sort(self.lengths), tokens_per_batch)

    def __len__(self) -> int:
        """Batches of each process in a whole epoch."""
        return -(-(len(self.cuts) + 1) // self.num_replicas)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.start = 0
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        mine = self.share(self.batches())[self.rank :: self.num_replicas]
        return (rows.tolist() for rows in mine[self.start :])

    def batches(self) -> list[Int64]:
        """All batches of this epoch, over all processes."""
        generator = np.random.default_rng((self.seed, self.epoch))
        order = generator.permutation(len(self.lengths))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        batches = np.split(order, self.cuts)
        return [batches[i] for i in generator.permutation(len(batches))]

    def share(self, batches: list[Int64]) -> list[Int64]:
        """Halve batches until each process gets as many: of the last round, or anywhere if those have one row each."""
        while len(batches) % self.num_replicas:
            last = len(batches) - len(batches) % self.num_replicas
            sizes = [len(rows) for rows in batches]
            i = last + int(np.argmax(sizes[last:])) if max(sizes[last:]) > 1 else int(np.argmax(sizes))
            batches[i : i + 1] = np.array_split(batches[i], 2)
        return batches


class SequentialTokenBudgetSampler(TokenBudgetSampler, SequentialSampler):  # type: ignore[misc]
    """The same batches in every epoch, short ones first: for evaluation, prediction and overfitting on purpose.

    Being a SequentialSampler too, Lightning sees that there is no shuffle to turn off.
    """

    def batches(self) -> list[Int64]:
        return np.split(np.argsort(self.lengths, kind="stable"), self.cuts)


def processes(trainer: Any) -> dict[str, int]:
    """Number of data-parallel processes and the rank among them, as the trainer's strategy or torch knows them."""
    if trainer is not None and (arguments := trainer.distributed_sampler_kwargs):
        return {"num_replicas": arguments["num_replicas"], "rank": arguments["rank"]}
    if dist.is_available() and dist.is_initialized():
        return {"num_replicas": dist.get_world_size(), "rank": dist.get_rank()}
    return {"num_replicas": 1, "rank": 0}


class TokenBudgetLoader(DataLoader[dict[str, Tensor]]):
    """A DataLoader over a `TokenBudgetSampler` that knows its place in the epoch, for Lightning to save and restore.

    The place counts batches handed out, however many workers have built ahead; it is the same on all processes.
    """

    sampler: TokenBudgetSampler
    place = (0, 0)  # epoch, and batches of it handed out

    def __iter__(self) -> Iterator[dict[str, Tensor]]:  # type: ignore[override]
        # A generator starts at the first `next`, and so do workers: after Lightning has called `set_epoch`.
        epoch, position = self.sampler.epoch, self.sampler.start
        batches = super().__iter__()
        self.sampler.start = 0
        for batch in batches:
            position += 1
            self.place = (epoch, position)
            yield batch

    def state_dict(self) -> dict[str, int]:
        epoch, position = self.place
        return {
            "epoch": self.sampler.epoch,
            "position": position if epoch == self.sampler.epoch else 0,
            "batches": len(self),
            "seed": self.sampler.seed,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batches handed out.

        Raises:
            UserError: that is in the middle of an epoch whose batches would be others now.
        """
        within = 0 < state["position"] < state["batches"]
        if within and (state["batches"], state["seed"]) != (len(self), self.sampler.seed):
            raise UserError(
                f"the checkpoint was made after {state['position']} of {state['batches']} batches of an epoch with "
                f"data seed {state['seed']}; here are {len(self)} with seed {self.sampler.seed}. Resume with the same "
                "data, seed, tokens_per_batch and number of processes, or from the end of an epoch"
            )
        self.sampler.set_epoch(state["epoch"])
        self.sampler.start = state["position"]
        self.place = (state["epoch"], state["position"])


def make_loader(
    dataset: Dataset[dict[str, Tensor]], sampler: TokenBudgetSampler, num_workers: int = 0, pin_memory: bool = False
) -> TokenBudgetLoader:
    """Batches as the sampler says. Draws from a generator of its own, so that making one leaves the global state be.

    Raises:
        UserError: num_workers is negative.
    """
    if num_workers < 0:
        raise UserError(f"num_workers {num_workers} must not be negative")
    several = num_workers > 0
    return TokenBudgetLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=several,
        prefetch_factor=4 if several else None,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(sampler.seed),
    )
