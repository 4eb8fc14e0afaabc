"""Curves in small panels, one a metric: the mean over a group's runs, and a band of one standard deviation.

Groups are told apart by colour and by a letter at each line's end. Of more than there are
colours the best have one, the rest are grey.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from html import escape
from pathlib import Path

import numpy as np

from project.compare.groups import Curve, Group, main_metric
from project.compare.sections import rank

# On white and on near-black, at least 3:1 against the ground, and apart for the colour-blind (after Okabe and Ito).
COLOURS = [
    ("#0072b2", "#56a8e0"),
    ("#d55e00", "#f08a45"),
    ("#00805e", "#2fc49b"),
    ("#a8478a", "#d98abf"),
    ("#9a7000", "#e3b23c"),
    ("#3f3f3f", "#d5d5d5"),
    ("#5b4fc0", "#a49cf0"),
    ("#b3263d", "#f2788b"),
]
POINTS, GREY_POINTS = 400, 60  # of a line
MOST_PANELS = 12
EARLY = 0.2  # share of the steps that may lie outside a panel
WIDTH, HEIGHT = 340.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 18.0, 8.0, 22.0


@dataclass(frozen=True)
class Panel:
    """The curves of one metric, with the number of their group."""

    metric: str
    curves: list[tuple[int, Curve]]

    @property
    def x_range(self) -> tuple[float, float]:
        ends = [curve.steps[[0, -1]] for _, curve in self.curves]
        low, high = float(np.min(ends)), float(np.max(ends))
        return (0.0 if low < 0.2 * high else low), high if high > low else low + 1

    @property
    def y_range(self) -> tuple[float, float]:
        """Of the coloured curves; of losses and scores without the first steps, in which they move most."""
        x0, x1 = self.x_range
        early = EARLY if self.metric.startswith(("train/", "val/")) else 0.0
        coloured = [c for i, c in self.curves if i < len(COLOURS)] or [c for _, c in self.curves]
        edges = [edge[c.steps >= x0 + early * (x1 - x0)] for c in coloured for edge in (*band(c), c.mean)]
        values = np.concatenate([edge[np.isfinite(edge)] for edge in edges])
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        margin = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
        return low - margin, high + margin


def band(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """One standard deviation below and above the mean; NaN where there is none."""
    return curve.mean - curve.std, curve.mean + curve.std


def panels(groups: Sequence[Group], patterns: Sequence[str] = ()) -> tuple[list[Panel], list[str]]:
    """What to draw, and the names of metrics that there is no room for.

    Args:
        groups: the best first.
        patterns: of metrics, such as ``val/*``; default: the first `MOST_PANELS` of all.
    """
    names = {name for g in groups for name, curve in g.curves.items() if len(curve.steps) > 1}
    monitor = next((r.monitor[0] for g in groups for r in g.records if r.monitor[0]), main_metric(groups)[0])
    drawn: list[Panel] = []
    left: list[str] = []
    for name in sorted(names, key=lambda name: (name != monitor, rank(name))):
        panel = Panel(name, [(i, g.curves[name].thinned(POINTS if i < len(COLOURS) else GREY_POINTS))
                             for i, g in enumerate(groups) if name in g.curves])  # fmt: skip
        if patterns and not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        if any(same(panel, other) for other in drawn):  # such as the rates of two groups of parameters
            continue
        if patterns or len(drawn) < MOST_PANELS:
            drawn.append(panel)
        else:
            left.append(name)
    return drawn, left


def same(a: Panel, b: Panel) -> bool:
    return len(a.curves) == len(b.curves) and all(
        i == j and np.array_equal(c.steps, d.steps) and np.array_equal(c.mean, d.mean, equal_nan=True)
        for (i, c), (j, d) in zip(a.curves, b.curves, strict=True)
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within the range: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float, step: float) -> str:
    """A tick's label, with as many decimals as its step has."""
    if value and (abs(value) >= 1e6 or step < 1e-5):
        return f"{value:g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def svg(panel: Panel, labels: Sequence[str], name: str) -> str:
    """One panel, with a name of its own; its colours are variables of the page, ``--c0`` and on."""
    (x0, x1), (y0, y1) = panel.x_range, panel.y_range

    def x(value: float) -> float:
        return LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (y1 - value) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" tabindex="0" '
        f'aria-label="{escape(panel.metric)} over optimizer steps">'
    ]
    area = f'<rect x="{LEFT:g}" y="0" width="{WIDTH:g}" height="{HEIGHT - BOTTOM:g}"/>'
    parts.append(f'<clipPath id="{name}">{area}</clipPath>')
    y_ticks, x_ticks = ticks(y0, y1, 5), ticks(x0, x1, 5)
    for tick in y_ticks:
        label = number(tick, y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else 1.0)
        parts.append(f'<path class="grid" d="M{LEFT:g} {y(tick):.1f}H{WIDTH - RIGHT:g}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6:g}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{label}</text>')
    parts.append(f'<path class="axis" d="M{LEFT:g} {HEIGHT - BOTTOM:g}H{WIDTH - RIGHT:g}"/>')
    for tick in x_ticks:
        label = number(tick, x_ticks[1] - x_ticks[0] if len(x_ticks) > 1 else 1.0)
        parts.append(f'<path class="axis" d="M{x(tick):.1f} {HEIGHT - BOTTOM:g}v3"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - 7:g}" text-anchor="middle">{label}</text>')
    parts.append(f'<g clip-path="url(#{name})">')
    for i, curve in reversed(panel.curves):  # the best on top
        colour = f"c{i}" if i < len(COLOURS) else "rest"
        points = [(x(s), y(m)) if math.isfinite(m) else None for s, m in zip(curve.steps, curve.mean, strict=True)]
        low, high = band(curve)
        inside = np.isfinite(low)
        if inside.sum() > 1 and i < len(COLOURS):
            upper = [f"{x(s):.1f} {y(h):.1f}" for s, h in zip(curve.steps[inside], high[inside], strict=True)]
            lower = [f"{x(s):.1f} {y(b):.1f}" for s, b in zip(curve.steps[inside], low[inside], strict=True)]
            parts.append(f'<path class="band {colour}" d="M{"L".join(upper + lower[::-1])}Z"/>')
        parts.append(f'<path class="line {colour}" d="{polyline(points)}"/>')
    parts.append("</g>")
    ends = {i: y(float(c.mean[np.isfinite(c.mean)][-1])) for i, c in panel.curves
            if i < len(COLOURS) and np.isfinite(c.mean).any()}  # fmt: skip
    lasts = {i: x(float(c.steps[-1])) for i, c in panel.curves}
    for i, height in spread(ends).items():
        parts.append(f'<text class="end c{i}" x="{lasts[i] + 4:.1f}" y="{height + 3.5:.1f}">{labels[i]}</text>')
    return "".join([*parts, '<g class="cursor"></g></svg>'])


def polyline(points: Sequence[tuple[float, float] | None]) -> str:
    """A path that leaves out what is not finite."""
    path, pen = "", "M"
    for point in points:
        path += "" if point is None else f"{pen}{point[0]:.1f} {point[1]:.1f}"
        pen = "M" if point is None else "L"
    return path


def spread(heights: dict[int, float], gap: float = 11.0) -> dict[int, float]:
    """Labels moved apart, from the top, and back up where the last would leave the panel."""
    placed: dict[int, float] = {}
    keys = sorted(heights, key=lambda key: heights[key])
    last = -math.inf
    for key in keys:
        last = placed[key] = max(heights[key], last + gap)
    room = HEIGHT - BOTTOM
    for key in reversed(keys):
        placed[key] = min(placed[key], room)
        room = placed[key] - gap
    return placed


def save_png(file: Path, drawn: Sequence[Panel], labels: Sequence[str], descriptions: Sequence[str]) -> None:
    """The same panels as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    coloured = min(len(labels), len(COLOURS))
    with plt.rc_context(
        {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#999999"}
    ):
        figure, axes = plt.subplots(
            rows,
            columns,
            squeeze=False,
            figsize=(3.4 * columns, 2.2 * rows + 0.18 * coloured + 0.3),
            layout="constrained",
        )
        for panel, axis in zip(drawn, axes.flat, strict=False):
            axis.set_title(panel.metric, fontsize=9, loc="left")
            axis.grid(axis="y", color="#e6e6e6", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.tick_params(color="#999999", labelcolor="#444444")
            for i, curve in reversed(panel.curves):
                if i >= len(COLOURS):
                    axis.plot(curve.steps, curve.mean, color="#bbbbbb", linewidth=0.6)
                    continue
                colour = COLOURS[i][0]
                axis.plot(curve.steps, curve.mean, color=colour, linewidth=1.4)
                axis.fill_between(curve.steps, *band(curve), color=colour, alpha=0.16, linewidth=0)
            axis.set_ylim(*panel.y_range)
        for axis in axes.flat[len(drawn) :]:
            axis.set_axis_off()
        for axis in axes.flat[max(0, len(drawn) - columns) : len(drawn)]:
            axis.set_xlabel("optimizer steps", color="#444444")
        names = [f"{label}  {text}".strip() for label, text in zip(labels, descriptions, strict=True)][:coloured]
        handles = [Line2D([], [], color=COLOURS[i][0], linewidth=1.6) for i in range(coloured)]
        figure.legend(handles, names, loc="outside lower left", frameon=False, fontsize=8)
        figure.savefig(file, dpi=200)
        plt.close(figure)
