"""Checks of learning itself: what can be memorised is, and what the labels say carries over to other examples."""

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from project.diagnose.batches import batch_size, find_labels, is_integer, replace, take, tensors
from project.diagnose.registry import check
from project.diagnose.result import Result
from project.diagnose.start import count_logits
from project.diagnose.subject import Losses, Rate, Subject, configured_rate
from project.diagnose.survey import class_labels, hash_rows

ROWS = 16  # to memorise
STEPS = 100
LONGER = 4  # times the steps of the short training, where it has not shown that labels are learned


class _Until(Callback):
    """Stop once the loss is low enough."""

    def __init__(self, losses: float) -> None:
        self.enough = losses

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        trainer.should_stop = loss is not None and float(loss) < self.enough


@check("overfit")
def overfit(subject: Subject) -> Result:
    """A small batch is learned by heart, as a network with enough parameters can."""
    batch = memorable(subject)
    rows = batch_size(batch)
    first = subject.fit([batch], Rate(0.0)).values[0]
    enough = max(0.05, 0.1 * first)
    configured = subject.inside(batch, configured_rate)
    curves: dict[float, list[float]] = {}
    for rate in (None, 10 * configured, 0.1 * configured, 1e-3):  # first each parameter's own
        if rate is not None and any(other / 2 <= rate <= 2 * other for other in curves):
            continue
        losses = subject.fit([batch] * STEPS, Rate(1.0, STEPS // 10, rate), _Until(enough)).values
        curves[configured if rate is None else rate] = losses
        if min(losses) <= enough:
            break
    values = {"curves": {f"{rate:.2g}": losses for rate, losses in curves.items()}, "rows": rows, "enough": enough}
    losses, *others = curves.values()
    ended = f"{losses[0]:.3f} to {min(losses):.3f} in {len(losses)} steps"
    if min(losses) <= enough:
        return Result("overfit", "pass", f"{rows} examples learned by heart: loss {ended}", values=values)
    *_, last = tried = list(curves)
    if others and min(others[-1]) <= enough:
        seen = f"{rows} examples are not learned by heart at rate {configured:.2g} (loss {ended}), but at {last:.2g}"
        return Result("overfit", "failure", seen, f"set the learning rate to about {last:.2g}", values)
    seen = f"{rows} examples cannot be learned by heart: loss {ended} at rate {configured:.2g}, nor at "
    seen += ", ".join(f"{rate:.2g}" for rate in tried[1:])
    advice = (
        "look for a softmax before the loss, a wrong loss, missing gradients, zero_grad, or inputs without the answer"
    )
    return Result("overfit", "failure", seen, advice, values)


def memorable(subject: Subject) -> Any:
    """A few different examples of the first batch."""
    batch = subject.small(subject.train_batches[0])
    hashes = hash_rows(batch, subject.padding.lengths(batch)).tolist()
    rows = sorted({key: i for i, key in reversed(list(enumerate(hashes)))}.values())
    return take(batch, rows[:ROWS])


@check("shuffled-labels")
def shuffled_labels(subject: Subject) -> Result | None:
    """The loss on other examples falls when the labels are right, and stays at chance when they are shuffled."""
    right = subject.trace
    path = find_labels(subject.train_batches[0])
    steps = len(right.losses)
    values: dict[str, Any] = {"right": right.losses, "before": right.before, "after": right.after}
    falls = right.after < 0.97 * right.before
    if path is None or not uses(subject, path):
        classes = subject.surveyed["train"].labels
        if path is not None and classes and subject.inside(subject.steps[0], count_logits) == max(classes) + 1:
            seen = f"the loss does not depend on the labels, though there is a logit for each of their {len(classes)}"
            return Result("shuffled-labels", "failure", seen, "compare the logits with the batch's labels", values)
        seen = f"no labels to shuffle; the loss on other examples went from {right.before:.3f} to {right.after:.3f}"
        if falls:
            return Result("shuffled-labels", "pass", f"{seen} in {steps} steps", values=values)
        return Result("shuffled-labels", "failure", f"{seen} in {steps} steps", NOTHING_LEARNED, values)

    train = [shuffle(batch, path, subject.chunks) for batch in subject.steps]
    held_out = [shuffle(batch, path, subject.chunks) for batch in subject.held_out]
    wrong: Losses = subject.fit(train, Rate(1.0, len(train) // 10))
    chance = subject.loss(wrong.model, held_out)
    values |= {"shuffled": wrong.values, "chance": chance}
    after = right.after
    if not after < 0.97 * chance:  # some tasks take off late
        after = subject.loss(
            subject.fit(subject.steps * LONGER, Rate(1.0), model=subject.trained).model, subject.held_out
        )
        steps += len(subject.steps) * LONGER
        values["after"] = after
    seen = f"after {steps} steps the loss on other examples is {after:.3f}, with shuffled labels {chance:.3f}"
    floor = entropy(subject.chunks)
    if floor is not None and chance < 0.7 * floor:
        return Result(
            "shuffled-labels",
            "failure",
            f"{seen}: less than labels without meaning allow ({floor:.3f})",
            "the model sees the answer: keep the labels out of its inputs",
            values,
        )
    if after < 0.97 * chance:
        return Result("shuffled-labels", "pass", seen, values=values)
    return Result("shuffled-labels", "failure", seen, NOTHING_LEARNED, values)


NOTHING_LEARNED = (
    "see that each input has its own label (sorted, shuffled or merged apart?) and reaches the network; "
    "a hard task may need more steps: compare with a linear model"
)


def uses(subject: Subject, path: str) -> bool:
    """Whether the loss depends on these labels."""
    batch = subject.steps[0]
    labels = tensors(batch)[path]
    other = replace(batch, path, labels[:1].expand_as(labels).clone())
    if torch.equal(tensors(other)[path], labels):
        return True
    first, second = (subject.fit([b], Rate(0.0)).values[0] for b in (batch, other))
    return first != second or not math.isfinite(first)


def shuffle(batch: Any, path: str, batches: list[Any]) -> Any:
    """The batch with labels drawn from those of all batches; of labels for each token, in another order."""
    labels = tensors(batch)[path]
    if labels.ndim > 1 and is_integer(labels):
        drawn, valid = labels.clone(), labels >= 0  # -100 marks what the loss ignores
        drawn[valid] = labels[valid][torch.randperm(int(valid.sum()))]
    else:
        pool = torch.cat([tensors(b)[path] for b in batches])
        drawn = pool[torch.randint(len(pool), (len(labels),))]
    return replace(batch, path, drawn)


def entropy(batches: list[Any]) -> float | None:
    """Of the classes, in nats: the loss of knowing how frequent they are and nothing else."""
    found = [class_labels(batch) for batch in batches]
    known: list[Tensor] = [labels for labels in found if labels is not None]
    if not known:
        return None
    shares = torch.cat(known).unique(return_counts=True)[1].double()
    shares = shares / shares.sum()
    result = float(-(shares * shares.log()).sum())
    return result if math.isfinite(result) and result > 0 else None
