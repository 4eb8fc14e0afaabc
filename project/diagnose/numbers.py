"""Checks of the numbers inside: activations, gradients and updates by layer, precision, clipping."""

import math
from statistics import median
from typing import Any

from torch import nn

from project.diagnose.registry import check
from project.diagnose.result import Result
from project.diagnose.start import some
from project.diagnose.subject import Rate, Subject


@check("activations")
def activations(subject: Subject) -> Result:
    """No layer's output explodes, vanishes, dies or saturates."""
    layers = subject.trace.layers
    values = {"layers": layers}
    broken = [name for name, numbers in layers.items() if not math.isfinite(numbers["std"])]
    if broken:
        advice = "look for what overflows or divides by zero in the first of them"
        return Result("activations", "failure", f"not finite: {some(broken)}", advice, values)
    for what, advice in (
        ("dead", "smaller learning rate, He initialisation, biases that are not negative, or GELU instead of ReLU"),
        ("saturated", "initialise smaller, or normalise before the activation: saturated units pass no gradient"),
    ):
        share = {name: numbers[what] for name, numbers in layers.items() if numbers.get(what, 0.0) > 0.5}
        if share:
            shown = some([f"{name} {value:.0%}" for name, value in share.items()])
            return Result("activations", "failure", f"{what} units: {shown}", advice, values)
    spread = {name: numbers["std"] for name, numbers in layers.items() if numbers["std"] > 0}
    if not spread:
        return Result("activations", "failure", "every layer's output is constant", "look at the inputs", values)
    stds = list(spread.values())
    largest, smallest = max(spread, key=spread.__getitem__), min(spread, key=spread.__getitem__)
    seen = f"std from {spread[smallest]:.2g} ({smallest}) to {spread[largest]:.2g} ({largest})"
    ratio = stds[-1] / stds[0]
    if ratio > 1e4 or spread[largest] > 1e4:
        advice = "initialise with variance 1 / fan-in (xavier_init), and normalise between layers"
        return Result("activations", "failure", f"activations explode: {seen}", advice, values)
    if ratio < 1e-4:
        advice = "initialise with variance 1 / fan-in (xavier_init), add residual connections or norms"
        return Result("activations", "failure", f"activations vanish: {seen}", advice, values)
    return Result("activations", "pass", seen, values=values)


def by_layer(rows: list[dict[str, float]], what: str) -> dict[str, float]:
    """Median over steps of what a monitor wrote for each layer."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(f"{what}/"):
                found.setdefault(key.removeprefix(f"{what}/"), []).append(value)
    return {layer: median(numbers) for layer, numbers in found.items()}


@check("gradient-ratio")
def gradient_ratio(subject: Subject) -> Result | None:
    """Gradients neither vanish nor explode on their way from the last layer to the first."""
    norms = by_layer(subject.trace.rows, "gradient_norm")
    norms.pop("all", None)
    layers = dict(subject.trained.named_modules())
    order = [  # of the forward pass; of an embedding's rows, few are in a batch
        name
        for name in subject.trace.layers
        if norms.get(name)
        and not isinstance(layers[name], nn.Embedding | nn.EmbeddingBag)
        and any(p.ndim > 1 for p in layers[name].parameters(recurse=False))
    ]
    if len(order) < 2:
        return None
    sizes = {name: sum(p.numel() for p in layers[name].parameters(recurse=False)) for name in order}
    rms = {name: norms[name] / sizes[name] ** 0.5 for name in order}
    first, last = order[0], order[-1]
    ratio = rms[first] / rms[last]
    values = {"rms": rms, "ratio": ratio}
    seen = f"gradient of {first} is {ratio:.2g} times that of {last} (root mean square)"
    if not math.isfinite(ratio) or ratio > 1e4:
        advice = "gradients explode: initialise smaller, normalise between layers, clip (trainer.gradient_clip_val 1.0)"
        return Result("gradient-ratio", "failure", seen, advice, values)
    if ratio < 1e-5:
        advice = "gradients vanish: residual connections, norms, and activations that do not saturate keep them alive"
        return Result("gradient-ratio", "failure", seen, advice, values)
    return Result("gradient-ratio", "pass", seen, values=values)


@check("update-ratio")
def update_ratio(subject: Subject) -> Result:
    """A step moves weights by about a thousandth of their size."""
    ratios = by_layer(subject.trace.rows, "update_ratio")
    values = {"ratios": ratios}
    moving = {layer: ratio for layer, ratio in ratios.items() if ratio > 0 and math.isfinite(ratio)}
    if not moving:
        advice = "set a learning rate above zero, and give the optimizer the model's own parameters"
        return Result("update-ratio", "failure", "no weight moves", advice, values)
    middle = median(moving.values())
    seen = f"a step moves weights by {middle:.1g} of their size (median of {len(ratios)} layers)"
    still = [layer for layer in ratios if layer not in moving and ratios[layer] == 0]
    if still:
        advice = "give the optimizer these parameters too, at a rate above zero"
        return Result("update-ratio", "failure", f"{seen}; not at all: {some(still)}", advice, values)
    if middle > 0.3:
        return Result("update-ratio", "failure", seen, "lower the learning rate: weights are overwritten", values)
    if middle < 1e-6:
        return Result("update-ratio", "warning", seen, "raise the learning rate, see learning-rate", values)
    return Result("update-ratio", "pass", seen, values=values)


@check("precision")
def precision(subject: Subject) -> Result:
    """Mixed precision gives the losses of float32."""
    configured = str(subject.options.get("precision") or "32-true")
    mixed = configured if "16" in configured else "bf16-mixed"
    # After some steps: at first all logits are near zero, and in the end the loss may be.
    training, batches = subject.fit(subject.steps[:20], Rate(1.0)), subject.held_out
    model = training.model
    losses = {p: subject.fit(batches, Rate(0.0), model=model, precision=p).values for p in ("32-true", mixed)}
    scale = max(sum(map(abs, losses["32-true"])) / len(batches), 0.1 * abs(training.values[0]))
    difference = max(abs(a - b) for a, b in zip(losses[mixed], losses["32-true"], strict=True)) / scale
    values = {"losses": losses, "difference": difference}
    seen = f"losses in {mixed} and 32-true differ by {difference:.2%}"
    if math.isfinite(difference) and difference < 0.02:
        return Result("precision", "pass", seen, values=values)
    if mixed != configured:
        seen += "; training runs in float32"
        advice = "before training in half precision, keep sums, norms and the loss in float32 (.float())"
        return Result("precision", "warning", seen, advice, values)
    advice = "train with --trainer.precision 32-true, or keep sums, norms and the loss in float32 (.float())"
    return Result("precision", "failure", seen, advice, values)


@check("clipping")
def clipping(subject: Subject) -> Result:
    """Gradients are clipped now and then, not always."""
    limit = subject.options.get("gradient_clip_val")
    norms = [row["gradient_norm/all"] for row in subject.trace.rows if "gradient_norm/all" in row]
    values: dict[str, Any] = {"norms": norms, "limit": limit}
    middle = median(norms)
    seen = f"gradient norm {middle:.2g} in the median, {max(norms):.2g} at most, of {len(norms)} steps"
    if not limit:
        usual = max(middle, norms[0])  # what has been learned leaves small gradients
        if max(norms) > 20 * usual:
            advice = f"set trainer.gradient_clip_val to about {2 * usual:.1g}"
            return Result("clipping", "warning", f"{seen}; not clipped", advice, values)
        return Result("clipping", "pass", f"{seen}; not clipped", values=values)
    active = sum(norm > limit for norm in norms) / len(norms)
    seen += f"; clipping at {limit:g} is active in {active:.0%} of them"
    values["active"] = active
    if middle > 20 * limit:
        advice = f"raise trainer.gradient_clip_val to about {2 * middle:.1g}: it scales every step, and hides the rate"
        return Result("clipping", "warning", seen, advice, values)
    return Result("clipping", "pass", seen + said(active), values=values)


def said(active: float) -> str:
    return " (rarely)" if active < 0.05 else " (always)" if active > 0.95 else ""
