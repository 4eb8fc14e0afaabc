"""Masks that depend on seed, epoch, row and position alone, and a loss of masked tokens alone."""

import math

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from project.nn import Encoder, MaskedLanguageModel
from project.tasks import MaskedLanguageModeling
from project.tasks.masked_lm import Perplexity
from project.tasks.masking import draws, mask_tokens, scramble

V = 40


def make_batch(lengths: list[int], seed: int = 0, first_id: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(4, V, mask.shape, generator=generator) * mask
    return {"tokens": tokens, "padding_mask": mask, "ids": first_id + torch.arange(len(lengths))}


def make_task(**options: object) -> MaskedLanguageModeling:
    torch.manual_seed(0)
    encoder = Encoder(d_model=16, num_layers=1, num_heads=2, dropout=0.0, max_length=32)
    return MaskedLanguageModeling(encoder, vocab_size=V, embedding_dropout=0.0, **options)  # type: ignore[arg-type]


def test_the_hash_is_splitmix64() -> None:
    # The first outputs of the reference implementation for the seed 1234567.
    gamma = 0x9E3779B97F4A7C15
    states = [(1234567 + i * gamma) % 2**64 for i in range(3)]
    x = torch.tensor([state - 2**64 if state >= 2**63 else state for state in states])
    assert [value % 2**64 for value in scramble(x).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_draws_are_uniform_and_without_pattern() -> None:
    bits = (draws(0, 0, torch.arange(2000), 16)[..., None] >> torch.arange(64)) & 1
    means = bits.double().mean((0, 1))
    assert (means - 0.5).abs().max() < 0.015  # five standard deviations
    rows = draws(0, 0, torch.arange(2000), 16)
    assert rows.unique().numel() == rows.numel()
    for other in (draws(1, 0, torch.arange(2000), 16), draws(0, 1, torch.arange(2000), 16)):
        agree = 1 - ((((rows ^ other)[..., None] >> torch.arange(64)) & 1).double().mean()).item()
        assert agree == pytest.approx(0.5, abs=0.003)


def test_a_rows_masks_do_not_depend_on_its_batch() -> None:
    batch = make_batch([9, 20, 4, 13], first_id=100)
    task = make_task()
    tokens, chosen = task.mask(batch, epoch=3)
    for i, length in enumerate([9, 20, 4, 13]):
        alone = {k: v[i : i + 1, :length] if v.ndim == 2 else v[i : i + 1] for k, v in batch.items()}
        tokens_alone, chosen_alone = task.mask(alone, epoch=3)
        assert torch.equal(tokens[i, :length], tokens_alone[0]) and torch.equal(chosen[i, :length], chosen_alone[0])
        assert not chosen[i, length:].any() and not tokens[i, length:].any()


def test_epochs_and_seeds_differ() -> None:
    batch = make_batch([20] * 50)
    first = make_task().mask(batch, 0)[1]
    assert torch.equal(first, make_task().mask(batch, 0)[1])
    for other in (make_task().mask(batch, 1)[1], make_task(mask_seed=1).mask(batch, 0)[1]):
        assert (first & other).sum() / first.sum() == pytest.approx(0.15, abs=0.08)


def test_a_fixed_share_of_each_row_is_chosen_evenly_and_never_a_special_token() -> None:
    lengths = [1, 3, 10, 20, 100] * 400
    mask = torch.arange(100) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(4, V, mask.shape) * mask
    tokens[:, 0] = torch.where(torch.tensor(lengths) > 1, 2, tokens[:, 0])  # [CLS]
    _, chosen = mask_tokens(tokens, mask, draws(0, 0, torch.arange(2000), 100), V)
    assert chosen.sum(1)[:5].tolist() == [1, 1, 1, 3, 15]
    assert torch.equal(chosen.sum(1), chosen.sum(1)[:5].repeat(400))
    assert not (chosen & (tokens < 4)).any()
    by_position = chosen[4::5].double().mean(0)
    assert by_position[0] == 0 and by_position[1:].std() < 2 * math.sqrt(0.15 * 0.85 / 400)


def test_of_the_chosen_eight_in_ten_are_masked_one_replaced_one_left() -> None:
    tokens = torch.full((3000, 40), 7)
    masked, chosen = mask_tokens(tokens, tokens > 0, draws(0, 0, torch.arange(3000), 40), V)
    assert torch.equal(masked[~chosen], tokens[~chosen])
    values = masked[chosen]
    assert (values == 3).double().mean() == pytest.approx(0.8, abs=0.015)
    replaced = values[(values != 3) & (values != 7)]
    assert len(replaced) / len(values) == pytest.approx(0.1 * (V - 5) / (V - 4), abs=0.01)
    assert set(replaced.tolist()) == set(range(4, V)) - {7}


def test_a_text_of_special_tokens_alone_has_no_loss() -> None:
    task = make_task()
    batch = {
        "tokens": torch.tensor([[2, 1]]),
        "padding_mask": torch.ones(1, 2, dtype=torch.bool),
        "ids": torch.zeros(1).long(),
    }
    assert not task.mask(batch, 0)[1].any()
    loss = task.training_step(batch, 0)
    loss.backward()
    assert loss.item() == 0


def test_logits_of_chosen_tokens_are_those_among_all() -> None:
    network = make_task().network.eval()
    batch = make_batch([9, 20, 4])
    chosen = torch.rand(batch["tokens"].shape) < 0.3
    everywhere = network(batch["tokens"], batch["padding_mask"])
    assert everywhere.shape == (3, 20, V)
    torch.testing.assert_close(network(batch["tokens"], batch["padding_mask"], chosen), everywhere[chosen])


def test_the_output_layer_is_the_embedding() -> None:
    network = MaskedLanguageModel(Encoder(16, 1, 2), V).eval()
    assert sum(p.shape == (V, 16) for p in network.parameters()) == 1
    tokens, mask = torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.bool)
    before = network(tokens, mask)
    with torch.no_grad():
        network.embedding.weight[30] *= 2  # not among the inputs
    after = network(tokens, mask)
    others = torch.arange(V) != 30
    torch.testing.assert_close(after[..., others], before[..., others])
    torch.testing.assert_close(after[..., 30], 2 * before[..., 30])


def test_the_loss_is_that_of_masked_tokens_and_starts_near_a_guess() -> None:
    task = make_task()
    batch = make_batch([20] * 30)
    tokens, chosen = task.mask(batch, 0)
    logits = task(tokens, batch["padding_mask"])
    expected = F.cross_entropy(logits[chosen], batch["tokens"][chosen])
    loss = task.training_step(batch, 0)
    torch.testing.assert_close(loss, expected)
    assert loss.item() == pytest.approx(math.log(V), abs=0.8)


def test_perplexity_is_over_all_tokens_not_a_mean_of_batches() -> None:
    perplexity, losses = Perplexity(), [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0])]
    for batch in losses:
        perplexity.update(batch)
    assert perplexity.compute().item() == pytest.approx(math.exp(11 / 4))
    one, other = Perplexity(), Perplexity()  # as two processes hold them
    one.update(losses[0])
    other.update(losses[1])
    one.merge_state(other)
    assert one.compute().item() == pytest.approx(math.exp(11 / 4))


def test_it_learns_from_the_context() -> None:
    """Each text repeats one token, so that a hidden one is known from the others."""
    tokens = torch.randint(4, V, (256, 1), generator=torch.Generator().manual_seed(0)).expand(-1, 12)
    rows = {"tokens": tokens, "padding_mask": torch.ones_like(tokens, dtype=torch.bool), "ids": torch.arange(256)}
    batches = [{k: v[i : i + 32] for k, v in rows.items()} for i in range(0, 256, 32)]
    task = make_task(optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2))
    trainer = Trainer(
        max_epochs=12,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(batches, batch_size=None)  # type: ignore[arg-type,var-annotated]
    trainer.fit(task, loader)
    (scores,) = trainer.validate(task, loader, verbose=False)
    assert scores["val/perplexity"] < 2  # a guess has 36
    assert scores["val/perplexity"] == pytest.approx(math.exp(scores["val/loss"]), rel=1e-5)


def test_sizes_that_cannot_be_are_named() -> None:
    with pytest.raises(ValueError, match="mask_share must lie between 0 and 1, got 1"):
        make_task(mask_share=1.0)
    with pytest.raises(ValueError, match="mask_id 50 and num_special 4 must be below vocab_size 40"):
        make_task(mask_id=50)
