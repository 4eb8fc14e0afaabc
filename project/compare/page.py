"""The comparison as one HTML file that needs nothing else: tables, panels, and values where the pointer is."""

import json
import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from project.compare.differences import Rows, code, configuration, data, telling, warnings
from project.compare.figure import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Panel, svg
from project.compare.groups import Group
from project.compare.summary import Column, describe, metrics, summary
from project.errors import some

FRAME = Path(__file__).with_name("page.html")
OPEN_RUNS, OPEN_GROUPS = 12, 20  # of more, a table is folded


def page(
    groups: Sequence[Group], drawn: Sequence[Panel], left: Sequence[str], broken: Sequence[str], file: Path
) -> str:
    """The page's text.

    Args:
        groups: the best first.
        drawn: the panels.
        left: metrics that there was no room for.
        broken: why runs were left out, a line each.
        file: where the page will stand, which links to runs start from.
    """
    records = [record for g in groups for record in g.records]
    columns = summary(groups)
    parts = {
        "title": escape(title(groups)),
        "lead": escape(lead(groups)),
        "notices": "\n".join(
            f'<p class="notice">{escape(text)}</p>'
            for text in [*warnings(groups), *(f"Left out: {reason}" for reason in broken)]
        ),
        "scores_caption": escape(scores_caption(groups)),
        "scores": scores_table(columns),
        "figure": figure(groups, drawn, left),
        "differences": differences(groups),
        "runs": runs_table(groups, file, folded=len(records) > OPEN_RUNS),
        "latex": escape(latex(columns)),
        "curves": embed(groups, drawn),
        "light": " ".join(f"--c{i}: {light};" for i, (light, _) in enumerate(COLOURS)),
        "dark": " ".join(f"--c{i}: {dark};" for i, (_, dark) in enumerate(COLOURS)),
        "classes": "\n".join(f".c{i} {{ --c: var(--c{i}); }}" for i in range(len(COLOURS))),
    }
    return Template(FRAME.read_text(encoding="utf-8")).substitute(parts)


def title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(record.run.name for g in groups for record in g.records))
    return f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}: {counted(groups)}"


def counted(groups: Sequence[Group]) -> str:
    runs = sum(len(g.records) for g in groups)
    return f"{runs} run{'s' * (runs != 1)} of {len(groups)} experiment{'s' * (len(groups) != 1)}"


def lead(groups: Sequence[Group]) -> str:
    """What differs, in one sentence."""
    names = [name for name, _ in telling(groups)]
    if len(names) > 5:
        names[4:] = [f"{len(names) - 4} more settings"]
    kinds = {"data": bool(data(groups)), "code": bool(code(groups))}
    if not any(record.data for g in groups for record in g.records):
        del kinds["data"]  # nobody knows
    differ = names + [kind for kind, differs in kinds.items() if differs]
    same = ["configuration"] * (not names) + [kind for kind, differs in kinds.items() if not differs]
    parts = []
    if differ:
        parts.append(f"The runs differ in {joined(differ)}")
    if same:
        parts.append(f"the same in all: {joined(same)}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "."


def joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def scores_caption(groups: Sequence[Group]) -> str:
    text = "Final scores of the best checkpoint"
    if any(len(g.records) > 1 for g in groups):
        text += ": mean ± sample standard deviation over n runs that are equal in everything but their seeds"
    return text + ("; the best mean of each metric in bold." if len(groups) > 1 else ".")


def key(group: int) -> str:
    """A mark in a group's colour."""
    colour = f"c{group}" if group < len(COLOURS) else "rest"
    return f'<span class="key {colour}" style="background: var(--c)"></span>'


def scores_table(columns: Sequence[Column]) -> str:
    """The best, and all of them folded if there are many."""
    total = len(columns[0].cells)
    if total <= OPEN_GROUPS:
        return scores_rows(columns, total)
    everything = f"<details><summary>All {total} experiments</summary>{scores_rows(columns, total)}</details>"
    return scores_rows(columns, OPEN_GROUPS) + everything


def scores_rows(columns: Sequence[Column], most: int) -> str:
    head = "".join(f"<th{' class=score' * c.score}>{escape(c.name)}</th>" for c in columns)
    rows = []
    for i in range(most):
        cells = [f"<td>{key(i)}{escape(columns[0].cells[i])}</td>"]
        for column in columns[1:]:
            classes = " ".join(["score"] * column.score + ["best"] * (column.best == i))
            opening = f'<td class="{classes}">' if classes else "<td>"
            cells.append(f"{opening}{escape(column.cells[i])}</td>")
        rows.append(f'<tr data-group="{i}">{"".join(cells)}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def figure(groups: Sequence[Group], drawn: Sequence[Panel], left: Sequence[str]) -> str:
    if not drawn:
        return ""
    labels, texts = [g.label for g in groups], describe(groups)
    shown = min(len(groups), len(COLOURS))
    legend = [f'<li data-group="{i}">{key(i)}{escape(f"{labels[i]}  {texts[i]}".strip())}</li>' for i in range(shown)]
    if len(groups) > shown:
        legend.append(f"<li>{key(len(COLOURS))}the other {len(groups) - shown}</li>")
    caption = "Curves over optimizer steps, the first of which may lie outside"
    if any(len(g.records) > 1 for g in groups):
        caption += ": mean over the runs of a group, and a band of one standard deviation"
    if left:
        caption += f"; not drawn: {some(left, 6)} (see --metrics)"
    panels = "".join(
        f"<figure><figcaption>{escape(panel.metric)}</figcaption>{svg(panel, labels, f'panel-{i}')}</figure>"
        for i, panel in enumerate(drawn)
    )
    return (
        f'<section><p class="caption"><b>Figure 1.</b> {escape(caption)}.</p>'
        f'<ul class="legend">{"".join(legend)}</ul><div class="panels">{panels}</div></section>'
    )


def differences(groups: Sequence[Group]) -> str:
    """All that differs; of many groups the values that there are."""
    few = len(groups) <= len(COLOURS)
    head = "".join(f"<th>{key(i)}{g.label}</th>" for i, g in enumerate(groups)) if few else "<th>values</th>"
    body = []
    for kind, find in (("configuration", configuration), ("data", data), ("code", code)):
        rows: Rows = find(groups)
        span = len(groups) + 1 if few else 2
        if not rows:
            continue
        body.append(f'<tr class="part"><td colspan="{span}">{kind}</td></tr>')
        for name, values in rows:
            cells = values if few else [some(list(dict.fromkeys(values)), 12)]
            body.append(
                f"<tr><td><code>{escape(name)}</code></td>"
                + "".join(f"<td class=wrap>{escape(cell)}</td>" for cell in cells)
                + "</tr>"
            )
    if not body:
        return ""
    return (
        '<section><p class="caption"><b>Table 2.</b> What differs between the runs; seeds, names and paths aside. '
        'Values joined by “|” differ within a group.</p><div class="scroll"><table>'
        f"<thead><tr><th>setting</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div></section>"
    )


def runs_table(groups: Sequence[Group], file: Path, folded: bool) -> str:
    names = metrics(groups)
    heads = ["", "run", "seed", "steps", *names, "commit", "uncommitted"]
    rows = []
    for i, g in enumerate(groups):
        for record, seed in zip(g.records, g.seeds, strict=True):
            link = Path(os.path.relpath(record.run.folder.absolute(), file.absolute().parent)).as_posix()
            cells = [
                f"{key(i)}{g.label}",
                f'<a href="{escape(link)}">{escape(f"{record.run.name}/{record.run.id}")}</a>',
                escape(seed),
                f"{record.training['steps']:,}" if "steps" in record.training else "–",
                *(f"{record.scores[name]:.4g}" if name in record.scores else "–" for name in names),
                escape(str(record.code.get("git_commit") or "none")[:8]),
                str(len(record.code.get("git_changes") or [])),
            ]
            rows.append(f'<tr data-group="{i}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    table = (
        f'<div class="scroll"><table><thead><tr>{"".join(f"<th>{escape(head)}</th>" for head in heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    if folded:
        return f"<details><summary>All {len(rows)} runs</summary>{table}</details>"
    return f'<section><p class="caption"><b>Table 3.</b> The runs.</p>{table}</section>'


def latex(columns: Sequence[Column]) -> str:
    """The table of scores for a paper, with the package booktabs."""

    def cell(text: str, best: bool) -> str:
        for plain, command in (("\\", r"\textbackslash{}"), ("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("#", r"\#")):
            text = text.replace(plain, command)
        text = text.replace("±", r"$\pm$").replace("–", "--").replace("…", r"\ldots{}")
        return rf"\textbf{{{text}}}" if best else text

    lines = [" & ".join(cell(c.name, False) for c in columns) + r" \\", r"\midrule"]
    for i in range(len(columns[0].cells)):
        lines.append(" & ".join(cell(c.cells[i], c.best == i) for c in columns) + r" \\")
    kinds = "".join("r" if c.score else "l" for c in columns)
    return "\n".join([rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"])


def embed(groups: Sequence[Group], drawn: Sequence[Panel]) -> str:
    """The coloured curves as JSON, for the values under the pointer."""

    def numbers(values: Any) -> list[float | None]:
        return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]

    content = {
        "frame": [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM],
        "labels": [g.label for g in groups],
        "panels": [
            {
                "x": panel.x_range,
                "y": panel.y_range,
                "groups": [
                    {
                        "group": i,
                        "steps": curve.steps.tolist(),
                        "mean": numbers(curve.mean),
                        "std": numbers(curve.std),
                        "n": curve.n.tolist(),
                    }
                    for i, curve in panel.curves
                    if i < len(COLOURS)
                ],
            }
            for panel in drawn
        ],
    }
    return json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
