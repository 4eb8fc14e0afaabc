"""All our tasks pass the suite that a fork inherits; and a task with a fault does not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from project.nn import Encoder
from project.tasks import MaskedLanguageModeling, SequenceClassification, Task
from project.testing import Batch, TaskSuite

V, N = 40, 5


def encoder(**options: Any) -> Encoder:
    return Encoder(d_model=16, num_layers=2, num_heads=2, dropout=0.0, max_length=12, **options)


def texts(size: int, length: int) -> Batch:
    lengths = torch.randint(1, length + 1, (size,)).index_fill(0, torch.zeros(1).long(), length)
    mask = torch.arange(length) < lengths[:, None]
    tokens = torch.randint(4, V, (size, length)) * mask
    return {
        "tokens": tokens,
        "padding_mask": mask,
        "labels": torch.randint(0, 3, (size,)),
        "ids": torch.randint(0, 10**6, (size,)),
    }


class TestSequenceClassification(TaskSuite):
    def make_task(self, **options: Any) -> Task:
        return SequenceClassification(
            encoder(), ["a", "b", "c"], V, embedding_dropout=0.0, head_dropout=0.0, label_smoothing=0.1, **options
        )

    def make_batch(self, size: int, length: int) -> Batch:
        return texts(size, length)


class TestClassificationOfVectors(TaskSuite):
    def make_task(self, **options: Any) -> Task:
        return SequenceClassification(
            encoder(position="learned"),
            ["a", "b", "c"],
            num_features=N,
            embedding_dropout=0.0,
            head_dropout=0.0,
            **options,
        )

    def make_batch(self, size: int, length: int) -> Batch:
        batch = texts(size, length)
        return batch | {"tokens": torch.randn(size, length, N) * batch["padding_mask"][..., None]}

    def test_the_gradient_reaches_every_parameter(self) -> None:
        task, (batch,) = self.task(), self.batches((16, 12))  # each of the twelve positions is trained
        self.loss(task, batch).backward()
        assert all(p.grad is not None and p.grad.any() for p in task.parameters())


class TestMaskedLanguageModeling(TaskSuite):
    def make_task(self, **options: Any) -> Task:
        return MaskedLanguageModeling(encoder(), V, embedding_dropout=0.0, **options)

    def make_batch(self, size: int, length: int) -> Batch:
        return texts(size, length)


class Faulty(nn.Module):
    """An encoder whose fault is chosen by name."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.d_model, self.max_length, self.fault = 16, 12, fault
        self.linear, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x_BTD: Tensor, padding_mask_BT: Tensor) -> Tensor:
        y_BTD = self.linear(x_BTD) + (0.0 if self.fault == "unused" else 1.0) * self.unused(x_BTD)
        if self.fault == "padding":
            y_BTD = y_BTD + y_BTD.mean(1, keepdim=True)
        if self.fault == "batch":
            y_BTD = y_BTD + y_BTD.mean(0, keepdim=True)
        if self.fault == "random":
            y_BTD = y_BTD + torch.randn_like(y_BTD)
        return y_BTD


class Unweighted(SequenceClassification):
    def weighted_loss(self, loss_sum: Tensor, weight: Tensor | int) -> Tensor:
        return loss_sum / weight


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("padding", "test_padding_changes_nothing"),
        ("batch", "test_examples_do_not_see_each_other"),
        ("unused", "test_the_gradient_reaches_every_parameter"),
        ("random", "test_no_step_is_random_in_evaluation"),
        ("unweighted", "test_accumulated_batches_equal_one_large_batch"),
        ("unweighted", "test_two_processes_equal_one"),
    ],
)
def test_a_fault_is_found(fault: str, check: str) -> None:
    class Suite(TestSequenceClassification):
        def make_task(self, **options: Any) -> Task:
            kind = Unweighted if fault == "unweighted" else SequenceClassification
            return kind(Faulty(fault), ["a", "b", "c"], V, embedding_dropout=0.0, head_dropout=0.0, **options)

    with pytest.raises(AssertionError):
        getattr(Suite(), check)()
