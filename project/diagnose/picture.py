"""check.png: the curves behind the lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from project.diagnose.result import Result

COLORS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182", "#8d6a9f")  # told apart by the colour-blind too
SHOWN_LAYERS = 14


def draw(results: Sequence[Result], file: Path) -> None:
    """Draw what the checks that ran have measured; no file if there is nothing to draw."""
    values = {result.check: result.values for result in results if result.values}
    panels = [(title, plot, values[name]) for name, (title, plot) in PANELS.items() if name in values]
    if not panels:
        return
    rows, columns = -(-len(panels) // 4), min(4, len(panels))
    figure = Figure(figsize=(4.8 * columns, 4.2 * rows), layout="constrained")
    for i, (title, plot, numbers) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        plot(axes, numbers)
    figure.savefig(file, dpi=110)


def _overfit(axes: Axes, values: dict[str, Any]) -> None:
    for (rate, losses), color in zip(values["curves"].items(), COLORS, strict=False):
        axes.plot(range(1, len(losses) + 1), losses, color=color, label=f"rate {rate}")
    axes.axhline(values["enough"], color="grey", linestyle=":", label="learned by heart")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    axes.legend(frameon=False)


def _shuffled(axes: Axes, values: dict[str, Any]) -> None:
    for (key, label), color in zip((("right", "right labels"), ("shuffled", "shuffled")), COLORS, strict=False):
        if losses := values.get(key):
            axes.plot(range(1, len(losses) + 1), losses, color=color, label=label)
    if "chance" in values:
        axes.axhline(values["chance"], color=COLORS[1], linestyle=":", label="shuffled, other examples")
    axes.axhline(values["after"], color=COLORS[0], linestyle=":", label="right, other examples")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False)


def _range(axes: Axes, values: dict[str, Any]) -> None:
    rates, losses = values["rates"], values["losses"]
    axes.plot(rates, losses, color=COLORS[0])
    axes.axvline(values["suggestion"], color=COLORS[3], linestyle="--", label=f"a start: {values['suggestion']:.1g}")
    axes.axvline(values["configured"], color=COLORS[1], linestyle=":", label=f"configured: {values['configured']:.2g}")
    low, high = min(losses), losses[0]
    axes.set(
        xscale="log", xlabel="learning rate", ylabel="loss", ylim=(low - 0.1 * abs(low), high + 0.6 * (high - low))
    )
    axes.legend(frameon=False)


def _schedule(axes: Axes, values: dict[str, Any]) -> None:
    rates = values["rates"]
    axes.plot([i * values["steps"] / len(rates) for i in range(len(rates))], rates, color=COLORS[0])
    axes.set(xlabel="step of the training planned", ylabel="learning rate", ylim=(0, None))


def _activations(axes: Axes, values: dict[str, Any]) -> None:
    _bars(axes, {name: numbers["std"] for name, numbers in values["layers"].items()}, "standard deviation")


def _gradients(axes: Axes, values: dict[str, Any]) -> None:
    _bars(axes, values["rms"], "root mean square")


def _bars(axes: Axes, numbers: dict[str, float], label: str) -> None:
    """Layers from the first, at the top, to the last; of many, some that are evenly spaced."""
    names = list(numbers)
    step = max(1, -(-len(names) // SHOWN_LAYERS))
    names = [*names[:-1:step], names[-1]]
    short = [".".join(name.split(".")[-4:]) for name in names]
    places = range(len(names))
    axes.barh(places, [numbers[name] for name in names], color=COLORS[0])
    axes.set_yticks(places, short, fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel=label)


def _memory(axes: Axes, values: dict[str, Any]) -> None:
    left = 0.0
    for (name, size), color in zip(values["bytes"].items(), COLORS, strict=True):
        axes.barh(0, size / 1e6, left=left, color=color, label=f"{name} {size / 1e6:,.1f} MB")
        left += size / 1e6
    axes.set(xlabel="MB", yticks=[], ylim=(-0.6, 2.2))
    axes.legend(frameon=False, loc="upper left")


def _classes(axes: Axes, values: dict[str, Any]) -> None:
    counts = sorted(values["classes"].values(), reverse=True)
    axes.bar(range(len(counts)), counts, color=COLORS[0])
    axes.set(xlabel="class, by frequency", ylabel="training examples")


PANELS = {
    "overfit": ("A small batch, learned by heart", _overfit),
    "shuffled-labels": ("Right and shuffled labels", _shuffled),
    "learning-rate": ("Learning-rate range test", _range),
    "schedule": ("Schedule", _schedule),
    "activations": ("Outputs by layer", _activations),
    "gradient-ratio": ("Gradients by layer", _gradients),
    "memory": ("Memory of a step", _memory),
    "label-balance": ("Labels", _classes),
}
