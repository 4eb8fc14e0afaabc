"""Checks before the first step: does the network compute what it should?"""

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from project.diagnose.batches import (
    batch_size,
    cut,
    find_labels,
    is_integer,
    replace,
    sequences,
    take,
    tensors,
    token_ids,
)
from project.diagnose.registry import check
from project.diagnose.result import Result
from project.diagnose.subject import Inside, Rate, Subject, without_noise

TOLERANCE = 1e-4  # of outputs in float32, in proportion to the largest
ROWS = 7  # of the batches on which outputs are compared


@check("initial-loss")
def initial_loss(subject: Subject) -> Result:
    """The first loss is that of a guess."""
    batch = subject.train_batches[0]
    losses = subject.fit([batch], Rate(0.0))
    loss = losses.values[0]
    expected = getattr(losses.model, "expected_initial_loss", None)
    reason = "as the task states"
    if expected is None:
        classes = subject.inside(batch, count_logits)
        expected, reason = (math.log(classes), f"ln({classes})") if classes else (None, "")
    values = {"loss": loss, "expected": expected}
    if not math.isfinite(loss):
        advice = "look for a division by zero, a log of zero, or weights that overflow; --trainer.detect_anomaly true"
        return Result("initial-loss", "failure", f"the first loss is {loss}", advice, values)
    if expected is None:
        seen = f"{loss:.3f}; the task has no expected_initial_loss to compare with"
        return Result("initial-loss", "pass", seen, values=values)
    seen = f"{loss:.3f}, expected {expected:.3f}, {reason}"
    if loss > 2 * expected + 0.5:
        advice = "initialise the last layer smaller: the network is sure of wrong answers before it has learned any"
        return Result("initial-loss", "failure", seen, advice, values)
    if abs(loss - expected) > max(0.5, 0.2 * expected):
        higher = "initialise the last layer smaller" if loss > expected else "is the answer among the inputs?"
        return Result("initial-loss", "warning", seen, higher, values)
    return Result("initial-loss", "pass", seen, values=values)


def count_logits(inside: Inside) -> int:
    """Classes that the last output tells apart, 2 of a single logit for labels 0 and 1; zero if they are no classes."""
    labels = tensors(inside.batch).get(find_labels(inside.batch) or "")
    if labels is None or labels.numel() == 0:
        return 0
    for _, output in reversed(inside.outputs(inside.batch)):
        if output.ndim > labels.ndim and output.size(-1) > 1 and is_integer(labels):
            if output.shape[-1 - labels.ndim : -1] == labels.shape and labels.max() < output.size(-1):
                return output.size(-1)
        elif output.numel() == labels.numel() and bool(((labels == 0) | (labels == 1)).all()):
            return 2
    return 0


class _Gradients(Callback):
    """Which parameters get a gradient, which are in an optimizer, and the norm of the whole gradient by step."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.moved: set[str] = set()
        self.broken: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self.optimized = {id(p) for o in trainer.optimizers for group in o.param_groups for p in group["params"]}
        self.names = {name: id(p) for name, p in pl_module.named_parameters() if p.requires_grad}
        self.frozen = [name for name, p in pl_module.named_parameters() if not p.requires_grad]
        squares = 0.0
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                norm = float(parameter.grad.norm())
                (self.moved if math.isfinite(norm) else self.broken).add(name) if norm else None
                squares += norm**2
        self.norms.append(math.sqrt(squares))


@check("gradients")
def gradients(subject: Subject) -> Result:
    """Every parameter gets a finite gradient that is not zero, and belongs to an optimizer."""
    seen = _Gradients()
    batches = [subject.small(batch) for batch in subject.train_batches[:8]]
    subject.fit(batches, seen, Rate(0.0))
    if not seen.norms:
        advice = "call optimizer.step() in training_step, or return the loss from it"
        return Result("gradients", "failure", f"no optimizer step in {len(batches)} batches", advice)
    unused = [name for name in seen.names if name not in seen.moved and name not in seen.broken]
    left_out = [name for name, key in seen.names.items() if key not in seen.optimized]
    values = {"unused": unused, "broken": sorted(seen.broken), "left_out": left_out, "frozen": seen.frozen}
    faults = [
        (sorted(seen.broken), "not finite", "look for a division by zero or a square root of zero there"),
        (left_out, "in no optimizer", "give configure_optimizers self.parameters()"),
        (unused, "without gradient", "use them in forward without detach() and no_grad(), or remove or freeze them"),
    ]
    for names, what, advice in faults:
        if names:
            return Result("gradients", "failure", f"{what}: {some(names)}", advice, values)
    if seen.frozen:
        advice = "right for fine-tuning; otherwise set requires_grad"
        return Result("gradients", "warning", f"frozen: {some(seen.frozen)}", advice, values)
    return Result("gradients", "pass", f"all {len(seen.names)} parameters get one", values=values)


def some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@check("zero-grad")
def zero_grad(subject: Subject) -> Result:
    """Gradients are those of one step: the same batch with the same weights gives the same norm."""
    seen = _Gradients()
    subject.fit([subject.small(subject.train_batches[0])] * 3, seen, Rate(0.0))
    steps = len(seen.norms) // 3  # with several optimizers there are several in a batch
    norms = seen.norms[steps - 1 :: steps] if steps else []
    values = {"norms": norms}
    if len(norms) == 3 and norms[1] > 1.8 * norms[0] and norms[2] > 1.3 * norms[1]:
        shown = ", ".join(f"{norm:.3g}" for norm in norms)
        return Result(
            "zero-grad",
            "failure",
            f"gradients add up from step to step: norms {shown} for the same batch and weights",
            "call optimizer.zero_grad() before manual_backward",
            values,
        )
    return Result("zero-grad", "pass", "gradients do not add up from step to step", values=values)


def relative(actual: Tensor, expected: Tensor) -> float:
    """Largest difference in proportion to the largest value; infinite where one is not a number and the other is."""
    if not torch.equal(actual.isnan(), expected.isnan()):
        return math.inf
    actual, expected = actual.nan_to_num().double(), expected.nan_to_num().double()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    difference = float((actual - expected).abs().max()) if expected.numel() else 0.0
    return difference / max(scale, 1e-12) if difference else 0.0


def evaluation_step(inside: Inside) -> str:
    inside.model.eval()
    return "validation_step" if inside.evaluates else "training_step"


Pairs = list[tuple[str, Tensor, Tensor]]


def pairs(inside: Inside, first: Any, second: Any, seeds: tuple[int, int] = (0, 0)) -> Pairs:
    """Outputs in evaluation for two batches, of the modules that were called in both."""
    step = evaluation_step(inside)
    outputs = [inside.outputs(batch, step, seed) for batch, seed in zip((first, second), seeds, strict=True)]
    if [name for name, _ in outputs[0]] != [name for name, _ in outputs[1]]:
        return []
    return [(name, a, b) for (name, a), (_, b) in zip(*outputs, strict=True)]


@check("eval-deterministic")
def eval_deterministic(subject: Subject) -> Result:
    """In evaluation, the same batch gives the same output."""
    batch = subject.small(subject.train_batches[0])
    found = subject.inside(batch, lambda inside: pairs(inside, inside.batch, inside.batch, seeds=(0, 1)))
    differing = [(name, relative(a, b)) for name, a, b in found if a.shape == b.shape and relative(a, b) > TOLERANCE]
    if differing:
        name, difference = differing[0]
        return Result(
            "eval-deterministic",
            "failure",
            f"in evaluation, {name} gives another output for the same input: by {difference:.1%} of its largest",
            "give functional dropout training=self.training, and draw no random numbers in evaluation",
            {"module": name, "difference": difference},
        )
    return Result("eval-deterministic", "pass", "the same batch gives the same outputs twice in evaluation")


@check("train-eval-difference")
def train_eval_difference(subject: Subject) -> Result:
    """With dropout at zero, training and evaluation compute the same."""
    batch = subject.small(subject.train_batches[0])

    def look(inside: Inside) -> tuple[Any, Any, Any]:
        norms = [part for part in inside.model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        for part in norms:
            part.eval()  # they differ by design
        first, again = (dict(inside.outputs(inside.batch, seed=seed)) for seed in (0, 1))
        inside.model.eval()
        return first, again, dict(inside.outputs(inside.batch))

    trained, again, evaluated = subject.inside(batch, look, without_noise(subject.model()))

    def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[tuple[str, float]]:
        both = [name for name in one if name in other and one[name].shape == other[name].shape and one[name].ndim]
        found = [(name, relative(one[name], other[name])) for name in both]
        return [(name, difference) for name, difference in found if difference > TOLERANCE]

    if random := differing(trained, again):
        name, difference = random[0]
        return Result(
            "train-eval-difference",
            "warning",
            f"with all dropout at zero, training is still random, first in {name}: by {difference:.1%}",
            "right if noise is meant there; functional dropout with a fixed probability is better an nn.Dropout",
            {"module": name, "difference": difference},
        )
    if different := differing(trained, evaluated):
        name, difference = different[0]
        return Result(
            "train-eval-difference",
            "failure",
            f"with all dropout at zero, {name} gives in evaluation another output: by {difference:.1%} of its largest",
            f"look for self.training, or for state that training changes, in {name}",
            {"module": name, "difference": difference},
        )
    return Result("train-eval-difference", "pass", "training and evaluation differ by dropout alone")


@check("batch-independence")
def batch_independence(subject: Subject) -> Result | None:
    """The output of an example does not depend on the others in its batch."""
    batch = first_rows(subject, ROWS)
    size = batch_size(batch)
    if size < 3:
        return None
    kept = torch.arange(0, size, 2)
    index = torch.arange(size)
    index[1::2] = 0  # every other example becomes a copy of the first

    def look(inside: Inside) -> Pairs:
        return pairs(inside, inside.batch, take(inside.batch, index))

    found = []
    for name, a, b in subject.inside(batch, look):
        at = next((dim for dim in range(min(a.ndim, 2)) if a.size(dim) == size), None)
        if at is not None and a.shape == b.shape:
            rows = kept.to(a.device)
            found.append((name, relative(b.index_select(at, rows), a.index_select(at, rows))))
    return independence(
        "batch-independence",
        found,
        "the other examples of its batch",
        ("look there for a view or transpose that mixes dimensions, a mean over dimension 0, or a wrong batch_first"),
    )


def first_rows(subject: Subject, rows: int) -> Any:
    """A few examples, not as many as they have tokens."""
    batch = subject.small(subject.train_batches[0])
    lengths = {tensor.size(1) for tensor in tensors(batch).values() if tensor.ndim > 1}
    size = min(rows, batch_size(batch))
    while size in lengths and size > 3:
        size -= 1
    return take(batch, range(size))


def independence(check_name: str, found: list[tuple[str, float]], of: str, advice: str) -> Result | None:
    """Whether the last output differs, and where that begins."""
    if not found:
        return None
    values = {"modules": {name: difference for name, difference in found}}
    name, difference = found[-1]
    if difference <= TOLERANCE:
        return Result(check_name, "pass", f"the output of {name} does not depend on {of}", values=values)
    first = next(name for name, difference in found if difference > TOLERANCE)
    seen = f"the output of an example depends on {of}: by {difference:.1%} of its largest, beginning in {first}"
    return Result(check_name, "failure", seen, advice, values)


@check("padding-independence")
def padding_independence(subject: Subject) -> Result | None:
    """The output of an example does not depend on how far it is padded."""
    if not subject.padding.source:
        return None
    most, chosen = 0, None
    for batch in subject.train_batches:
        lengths_B = subject.padding.lengths(batch)
        if lengths_B is None:
            continue
        width = cut_width(batch)
        row = int(lengths_B.argmin())
        if int(lengths_B[row]) > 0 and width - int(lengths_B[row]) > most:
            most, chosen = width - int(lengths_B[row]), (take(batch, [row, row]), int(lengths_B[row]))
    if chosen is None:
        seen = f"no batch of the first {len(subject.train_batches)} holds padding"
        return Result("padding-independence", "pass", seen)
    batch, length = chosen

    def look(inside: Inside) -> tuple[Pairs, Pairs]:
        again = pairs(inside, inside.batch, inside.batch, seeds=(0, 1))
        return again, pairs(inside, inside.batch, cut(inside.batch, length))

    again, both = subject.inside(batch, look)
    random = any(relative(a, b) > TOLERANCE for _, a, b in again)
    found = []
    for name, a, b in both:
        if a.ndim == b.ndim and not (random and a.ndim == 0):
            common = tuple(slice(0, min(sizes)) for sizes in zip(a.shape, b.shape, strict=True))
            found.append((name, relative(b[common], a[common])))
    result = independence(
        "padding-independence",
        found,
        f"its padding ({most} tokens)",
        ("mask padding where tokens meet (attention, pooling, loss); see the mask's polarity and the padding's id"),
    )
    return result


def cut_width(batch: Any) -> int:
    return max((t.size(1) for t in sequences(batch).values()), default=0)


@check("token-order")
def token_order(subject: Subject) -> Result | None:
    """The output depends on the order of tokens."""
    batch = first_rows(subject, ROWS)
    found = token_ids(batch)
    lengths_B = subject.padding.lengths(batch)
    if not found:
        return None
    path, ids_BT = next(iter(found.items()))
    shuffled_BT = ids_BT.clone()
    for i, row in enumerate(shuffled_BT):
        length = len(row) if lengths_B is None else int(lengths_B[i])
        shuffled_BT[i, :length] = row[:length].flip(0)
    if torch.equal(shuffled_BT, ids_BT):
        return None

    def look(inside: Inside) -> Pairs:
        return pairs(inside, inside.batch, replace(inside.batch, path, shuffled_BT.to(inside.model.device)))

    pooled = [
        (name, a, b) for name, a, b in subject.inside(batch, look) if a.shape[:1] == ids_BT.shape[:1] == b.shape[:1]
    ]
    if not pooled:
        return None
    name, a, b = pooled[-1]
    if a.shape[:2] == ids_BT.shape:  # an output for each token comes along with it
        lengths = [a.size(1)] * len(a) if lengths_B is None else lengths_B.tolist()
        a = torch.cat([row[:n].flip(0) for row, n in zip(a, lengths, strict=True)])
        b = torch.cat([row[:n] for row, n in zip(b, lengths, strict=True)])
    if a.shape == b.shape and relative(b, a) <= TOLERANCE:
        return Result(
            "token-order",
            "warning",
            f"the output of {name} is the same for tokens in reverse order",
            "if order matters, add positions to the tokens; for a bag of words all is well",
        )
    return Result("token-order", "pass", "tokens in another order give another output")
