"""The schedule, the parameter groups, and gradients that do not depend on how a batch was split."""

import math
from itertools import pairwise

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from project.errors import UserError
from project.nn import Encoder
from project.tasks import SequenceClassification
from project.tasks.base import parameter_groups, warmup_cosine

LABELS = ["a", "b", "c"]


def make_task(**options: object) -> SequenceClassification:
    torch.manual_seed(0)
    encoder = Encoder(d_model=16, num_layers=1, num_heads=2, dropout=0.0, max_length=12)
    return SequenceClassification(
        encoder, labels=LABELS, vocab_size=20, embedding_dropout=0.0, head_dropout=0.0, **options
    )


def make_batch(size: int, length: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (size,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    tokens = torch.randint(4, 20, (size, length), generator=generator) * mask
    return {
        "tokens": tokens,
        "padding_mask": mask,
        "labels": torch.randint(0, 3, (size,), generator=generator),
        "ids": torch.arange(size),
    }


def join(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    length = max(b["tokens"].shape[1] for b in batches)
    pad = {
        k: [nn.functional.pad(b[k], (0, length - b[k].shape[1])) for b in batches] for k in ("tokens", "padding_mask")
    }
    return {k: torch.cat(pad.get(k, [b[k] for b in batches])) for k in batches[0]}


def fit(batches: list[dict[str, Tensor]], **options: object) -> tuple[SequenceClassification, Trainer]:
    task = make_task(optimizer=lambda params: torch.optim.SGD(params, lr=0.5), warmup_ratio=0.0)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_epochs=1, accelerator="cpu", devices=1, **quiet, **options)  # type: ignore[arg-type]
    trainer.fit(task, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    return task, trainer


def test_an_accumulation_window_equals_one_large_batch_the_last_short_one_too() -> None:
    small = [
        make_batch(size, length, seed) for seed, (size, length) in enumerate([(1, 4), (7, 9), (3, 5), (5, 6), (2, 8)])
    ]
    accumulated, trainer = fit(small, accumulate_grad_batches=3, gradient_clip_val=0.3)
    whole, at_once = fit([join(small[:3]), join(small[3:])], gradient_clip_val=0.3)
    torch.testing.assert_close(trainer.callback_metrics, at_once.callback_metrics, rtol=0, atol=1e-6)
    assert trainer.global_step == 2
    for (name, actual), expected in zip(accumulated.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6, msg=name)


def test_a_fused_optimizer_is_clipped_as_any_other_in_mixed_precision() -> None:
    weights = {}
    for fused in (False, True):
        task = make_task(optimizer=lambda params, fused=fused: torch.optim.SGD(params, lr=0.5, fused=fused))
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(
            max_epochs=1, accelerator="cpu", devices=1, precision="bf16-mixed", gradient_clip_val=0.01, **quiet
        )  # type: ignore[arg-type]
        before = nn.utils.parameters_to_vector(task.parameters()).detach()
        trainer.fit(task, DataLoader([make_batch(8, 6, 0)], batch_size=None))  # type: ignore[arg-type]
        weights[fused] = nn.utils.parameters_to_vector(task.parameters()).detach()
        assert (weights[fused] - before).norm().item() == pytest.approx(0.5 * 0.01, rel=0.02)
    torch.testing.assert_close(weights[True], weights[False], rtol=0, atol=1e-6)


def test_the_loss_of_a_single_micro_batch_is_its_mean() -> None:
    task = make_task()
    batch = make_batch(6, 7, 0)
    logits = task(batch["tokens"], batch["padding_mask"])
    expected = nn.functional.cross_entropy(logits, batch["labels"])
    losses = nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
    torch.testing.assert_close(task.weighted_loss(losses.sum(), 6), expected)


def test_the_schedule_warms_up_and_ends_at_zero_with_the_last_step() -> None:
    factors = [warmup_cosine(step, 10, 100) for step in range(101)]
    assert factors[0] == 0.1 and factors[9] == 1.0 and factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0, abs=1e-12) and factors[99] > 0
    assert all(a >= b for a, b in pairwise(factors[10:]))


def test_the_schedule_counts_optimizer_steps_and_ends_with_training() -> None:
    _, trainer = fit([make_batch(2, 5, seed) for seed in range(7)], accumulate_grad_batches=2)
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    assert trainer.global_step == 4
    assert scheduler.last_epoch == 4
    assert scheduler.get_last_lr()[0] == pytest.approx(0.0, abs=1e-12)


def test_an_endless_run_is_refused() -> None:
    task = make_task()
    trainer = Trainer(max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(UserError, match=r"trainer\.max_epochs or trainer\.max_steps"):
        trainer.fit(task, DataLoader([make_batch(2, 5, 0)], batch_size=None))  # type: ignore[arg-type]


def test_norms_biases_and_embeddings_do_not_decay() -> None:
    task = make_task()
    decay, no_decay = parameter_groups(task)
    names = {id(p): n for n, p in task.named_parameters()}
    assert "weight_decay" not in decay and no_decay["weight_decay"] == 0.0
    decayed = {names[id(p)] for p in decay["params"]}
    kept = {names[id(p)] for p in no_decay["params"]}
    assert decayed | kept == set(names.values()) and not decayed & kept
    assert all(n.endswith("weight") and "norm" not in n and "embedding" not in n for n in decayed)
    assert (
        any("embedding" in n for n in kept) and any("norm" in n for n in kept) and any(n.endswith("bias") for n in kept)
    )


def test_frozen_parameters_are_left_out_and_tied_ones_count_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Embedding(5, 3))
    module[1].weight = module[0].weight
    module[2].requires_grad_(False)
    groups = parameter_groups(module)
    assert [len(g["params"]) for g in groups] == [1, 2]


def test_initial_loss_is_that_of_a_guess() -> None:
    task = make_task()
    batch = make_batch(200, 8, 3)
    loss = nn.functional.cross_entropy(task(batch["tokens"], batch["padding_mask"]), batch["labels"])
    assert loss.item() == pytest.approx(math.log(len(LABELS)), abs=0.1)


def test_class_weights_must_fit_the_labels() -> None:
    with pytest.raises(ValueError, match="2 entries for 3 labels"):
        make_task(class_weights=[1.0, 2.0])
