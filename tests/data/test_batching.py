import numpy as np
import pytest
import torch

from project.data.batching import (
    SequentialTokenBudgetSampler,
    TokenBudgetLoader,
    TokenBudgetSampler,
    like_lengths,
    make_loader,
)
from project.data.store import TokenDataset
from project.errors import UserError

LENGTHS = np.random.default_rng(0).integers(1, 60, 700)
BUDGET = 256


def sampler(rank: int = 0, world: int = 1, epoch: int = 0, seed: int = 0, n: int = 700) -> TokenBudgetSampler:
    made = TokenBudgetSampler(LENGTHS[:n], BUDGET, seed, world, rank)
    made.set_epoch(epoch)
    return made


def dataset() -> TokenDataset:
    offsets = np.concatenate(([0], np.cumsum(LENGTHS)))
    return TokenDataset(np.arange(1, offsets[-1] + 1, dtype=np.int32), offsets, np.zeros(700, np.int32))


def test_like_lengths_round_up_by_less_than_an_eighth() -> None:
    lengths = np.arange(1, 1000)
    rounded = like_lengths(lengths)
    assert (rounded[:15] == lengths[:15]).all()
    assert (rounded >= lengths).all()
    assert (rounded < lengths * 1.125 + 1e-9).all()
    assert rounded.max() == 999


@pytest.mark.parametrize("kind", [TokenBudgetSampler, SequentialTokenBudgetSampler])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [8, 9, 50, 700])
def test_every_row_once_within_the_budget_and_equally_many_batches(
    kind: type[TokenBudgetSampler], world: int, n: int
) -> None:
    for epoch in range(4):
        ranks = []
        for rank in range(world):
            one = kind(LENGTHS[:n], BUDGET, 0, world, rank)
            one.set_epoch(epoch)
            ranks.append(list(one))
            assert len(one) == len(ranks[-1])
        assert len({len(batches) for batches in ranks}) == 1
        assert sorted(row for batches in ranks for rows in batches for row in rows) == list(range(n))
        for rows in (rows for batches in ranks for rows in batches):
            assert rows
            assert len(rows) * LENGTHS[rows].max() <= BUDGET


def test_little_padding_and_full_batches() -> None:
    batches = list(sampler())
    padded = sum(len(rows) * LENGTHS[rows].max() for rows in batches)
    assert LENGTHS.sum() / padded > 0.95
    assert padded / len(batches) > 0.85 * BUDGET


def test_the_order_follows_seed_and_epoch() -> None:
    first = list(sampler(epoch=3))
    assert list(sampler(epoch=3)) == first
    for other in (sampler(epoch=4), sampler(epoch=3, seed=1)):
        assert list(other) != first
        assert len({frozenset(rows) for rows in other} & {frozenset(rows) for rows in first}) < len(first) / 4
        assert len(other) == len(first)


def test_evaluation_is_the_same_every_epoch() -> None:
    one = SequentialTokenBudgetSampler(LENGTHS, BUDGET, seed=0)
    first = list(one)
    one.set_epoch(5)
    assert list(one) == first
    assert list(SequentialTokenBudgetSampler(LENGTHS, BUDGET, seed=9)) == first


@pytest.mark.parametrize("world", [2, 3, 4])
def test_processes_see_in_one_step_what_one_process_sees_in_as_many(world: int) -> None:
    alone = list(sampler())
    steps = zip(*(list(sampler(rank, world)) for rank in range(world)), strict=True)
    for i, step in enumerate(steps):
        expected = {row for rows in alone[i * world : (i + 1) * world] for row in rows}
        assert {row for rows in step for row in rows} == expected


def test_impossible_budgets_and_worlds() -> None:
    with pytest.raises(UserError, match="tokens_per_batch 32 cannot hold a text of 59 tokens"):
        TokenBudgetSampler(LENGTHS, 32)
    with pytest.raises(UserError, match="3 texts are too few for 4 processes"):
        TokenBudgetSampler(LENGTHS[:3], BUDGET, 0, 4, 0)


def ids(loader: TokenBudgetLoader) -> list[list[int]]:
    return [batch["ids"].tolist() for batch in loader]


def test_workers_do_not_change_the_order_and_are_told_the_epoch() -> None:
    alone, helped = make_loader(dataset(), sampler()), make_loader(dataset(), sampler(), num_workers=2)
    for epoch in (0, 1):
        iterator = iter(helped)  # Lightning makes the iterator first and sets the epoch then
        for loader in (alone, helped):
            loader.sampler.set_epoch(epoch)
        assert [batch["ids"].tolist() for batch in iterator] == ids(alone) == list(sampler(epoch=epoch))


def test_a_loader_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    ids(make_loader(dataset(), sampler()))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_position_counts_what_was_handed_out(workers: int) -> None:
    loader = make_loader(dataset(), sampler(), workers)
    loader.sampler.set_epoch(2)
    assert loader.state_dict()["position"] == 0
    iterator = iter(loader)
    seen = [next(iterator)["ids"].tolist() for _ in range(5)]
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (2, 5)
    whole = list(sampler(epoch=2))
    assert seen == whole[:5]

    resumed = make_loader(dataset(), sampler(), workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iterator = iter(resumed)
    resumed.sampler.set_epoch(2)
    assert [batch["ids"].tolist() for batch in iterator] == whole[5:]
    assert resumed.state_dict()["position"] == len(resumed) == len(whole)
    assert ids(resumed) == whole
    resumed.sampler.set_epoch(3)
    assert resumed.state_dict()["position"] == 0
    assert ids(resumed) == list(sampler(epoch=3))


def test_a_second_look_at_an_epoch_starts_anew() -> None:
    loader = make_loader(dataset(), sampler())
    next(iter(loader))  # as a sanity check does
    assert ids(loader) == list(sampler())
    assert ids(loader) == list(sampler())


def test_a_position_is_refused_where_the_batches_are_others() -> None:
    state = make_loader(dataset(), sampler()).state_dict() | {"position": 5}
    n = len(sampler())
    with pytest.raises(
        UserError, match=rf"after 5 of {n} batches of an epoch with data seed 0; here are {n} with seed 1"
    ):
        make_loader(dataset(), sampler(seed=1)).load_state_dict(state)
    with pytest.raises(UserError, match=rf"here are {(n + 1) // 2} with seed 0"):
        make_loader(dataset(), sampler(world=2)).load_state_dict(state)
    finished = make_loader(dataset(), sampler(seed=1))
    finished.load_state_dict(state | {"position": n})  # nothing is lost at the end of an epoch
    finished.sampler.set_epoch(1)
    assert ids(finished) == list(sampler(seed=1, epoch=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_stay_and_read_ahead_where_there_are_any(workers: int) -> None:
    loader = make_loader(dataset(), sampler(), workers)
    assert loader.persistent_workers == (workers > 0)
    assert loader.prefetch_factor == (4 if workers else None)
    assert not loader.pin_memory
