"""Scores as scikit-learn counts them, over batches of any size."""

import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from torch import nn
from torch.utils.data import DataLoader

from project.tasks.classification import hide_tokens
from tests.tasks.test_base import join, make_batch, make_task

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def test_scores_are_those_of_scikit_learn_however_the_examples_are_batched() -> None:
    task = make_task()
    batches = [make_batch(size, 9, seed) for seed, size in enumerate([1, 17, 5, 40])]
    trainer = Trainer(accelerator="cpu", devices=1, **QUIET)  # type: ignore[arg-type]
    (scores,) = trainer.test(task, DataLoader(batches, batch_size=None), verbose=False)  # type: ignore[arg-type]
    whole = join(batches)
    with torch.no_grad():
        logits = task(whole["tokens"], whole["padding_mask"])
    actual, predicted = whole["labels"].numpy(), logits.argmax(-1).numpy()
    assert scores["test/accuracy"] == pytest.approx(accuracy_score(actual, predicted))
    assert scores["test/macro_f1"] == pytest.approx(f1_score(actual, predicted, average="macro"))
    assert scores["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, whole["labels"]).item(), rel=1e-5)
    assert (task.confusion_matrix.numpy() == confusion_matrix(actual, predicted)).all()


def test_predictions_are_probabilities_with_the_ids_of_their_rows() -> None:
    task = make_task().eval()
    batch = make_batch(6, 7, 0)
    output = task.predict_step(batch, 0)
    torch.testing.assert_close(output["probabilities"].sum(-1), torch.ones(6))
    assert output["ids"].tolist() == batch["ids"].tolist()


def test_class_weights_scale_the_loss_of_their_class() -> None:
    batch = make_batch(30, 7, 0)
    losses = {}
    for weights in (None, [1.0, 1.0, 1.0], [2.0, 0.0, 0.0]):
        task = make_task(class_weights=weights)
        task.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
        losses[str(weights)] = float(task.training_step(batch, 0).detach())
        logits = task(batch["tokens"], batch["padding_mask"]).detach()
    of_first = batch["labels"] == 0
    expected = 2 * nn.functional.cross_entropy(logits[of_first], batch["labels"][of_first], reduction="sum") / 30
    assert losses["None"] == losses["[1.0, 1.0, 1.0]"]
    assert losses["[2.0, 0.0, 0.0]"] == pytest.approx(float(expected), rel=1e-5)


def test_class_weights_under_half_precision() -> None:
    """As bf16-true makes the task; the loss is computed in float32 all the same."""
    task = make_task(class_weights=[2.0, 0.5, 0.5]).bfloat16()
    task.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    batch = make_batch(6, 7, 0)
    logits = task(batch["tokens"], batch["padding_mask"]).float()
    expected = nn.functional.cross_entropy(logits, batch["labels"], torch.tensor([2.0, 0.5, 0.5]), reduction="sum") / 6
    torch.testing.assert_close(task.training_step(batch, 0), expected)


def test_hidden_tokens_are_real_ones_in_the_share_asked_for_and_no_row_loses_all() -> None:
    torch.manual_seed(0)
    mask = torch.arange(50) < torch.randint(1, 51, (400, 1))
    left = hide_tokens(mask, 0.3)
    assert (left <= mask).all() and left.any(1).all()
    long = mask.sum(1) > 10
    assert (left[long].sum() / mask[long].sum()).item() == pytest.approx(0.7, abs=0.02)
    assert hide_tokens(mask, 0.0) is mask


def test_class_weights_by_a_power_of_the_counts_have_a_mean_of_one() -> None:
    weights = make_task(class_weights=0.5, class_counts=[100, 25, 4]).class_weights
    assert weights is not None
    assert (weights[1] / weights[0]).item() == pytest.approx(2.0) and (weights[2] / weights[0]).item() == pytest.approx(
        5.0
    )
    assert (weights * torch.tensor([100, 25, 4])).sum().item() == pytest.approx(129)
    with pytest.raises(ValueError, match="counts of the classes"):
        make_task(class_weights=0.5)


def test_members_train_on_their_own_losses_and_score_as_one() -> None:
    task, batch = make_task(members=3), make_batch(6, 7, 0)
    task.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    each = task.train()(batch["tokens"], batch["padding_mask"])
    expected = sum(nn.functional.cross_entropy(logits, batch["labels"]) for logits in each) / 3
    torch.testing.assert_close(task.training_step(batch, 0), expected)
    mean = task.eval()(batch["tokens"], batch["padding_mask"])
    torch.testing.assert_close(task.predict_step(batch, 0)["probabilities"], mean.softmax(-1))
