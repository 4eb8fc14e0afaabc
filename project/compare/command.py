"""compare: what differs between runs, their scores over seeds, and their curves on one page."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from project.compare.differences import code, data, warnings
from project.compare.figure import panels, save_png
from project.compare.find import find
from project.compare.groups import Group, group
from project.compare.page import counted, lead, page
from project.compare.summary import describe, summary
from project.errors import UserError
from project.options import Options

MOST_ROWS = 20  # of the table in the terminal


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: no such run, a broken one, or nowhere to write.
    """
    parser = Options("compare", __doc__)
    parser.add_argument(
        "what",
        nargs="*",
        metavar="RUN|FOLDER|SETTING=VALUE",
        help="runs, folders of runs, and filters that all must pass",
    )
    parser.add_argument("--runs_dir", default="runs", type=Path, help="where filters alone look; default runs")
    parser.add_argument(
        "--metrics", nargs="+", default=[], metavar="NAME", help="curves to draw, such as 'val/*' train/loss"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="the page, FILE.html, with FILE.png beside it; default compare.html in the runs' folder",
    )
    options = parser.parse_args(arguments[1:])
    if options.output is not None and options.output.suffix != ".html":
        raise UserError(f"--output {options.output} must end in .html")
    records, broken = find(options.what, options.runs_dir)
    groups = group(records)
    drawn, left = panels(groups, options.metrics)
    if options.metrics and not drawn:
        there = sorted({name for record in records for name in record.curves})
        names = " ".join(options.metrics)
        raise UserError(f"no curve of {names}: not logged, or once only; there are {', '.join(there) or 'none'}")
    output = options.output or common_folder([record.run.folder for record in records]) / "compare.html"

    for reason in broken:
        print(f"left out: {reason}", file=sys.stderr)
    print(terminal(groups))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page(groups, drawn, left, broken, output), encoding="utf-8")
        if drawn:
            save_png(output.with_suffix(".png"), drawn, [g.label for g in groups], describe(groups))
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}; see --output") from error
    print(f"page: {output}" + (f", picture: {output.with_suffix('.png')}" if drawn else ""))


def common_folder(folders: Sequence[Path]) -> Path:
    """The folder that all runs stand in."""
    return Path(os.path.relpath(os.path.commonpath([folder.absolute().parent for folder in folders])))


def terminal(groups: Sequence[Group]) -> str:
    """Counts, the table of scores, and what else differs."""
    from project.export.table import format_table

    columns = summary(groups)
    rows = [list(row) for row in zip(*(column.cells for column in columns), strict=True)]
    lines = [counted(groups), "", format_table([column.name for column in columns], rows[:MOST_ROWS])]
    if len(rows) > MOST_ROWS:
        lines.append(f"... and {len(rows) - MOST_ROWS} more, on the page")
    lines += ["", lead(groups), *warnings(groups)]
    for kind, differing in (("data", data(groups)), ("code", code(groups))):
        lines += [f"  {kind}: {name}: {'; '.join(dict.fromkeys(values))}"[:160] for name, values in differing[:6]]
        lines += [f"  {kind}: {len(differing) - 6} more, on the page"] if len(differing) > 6 else []
    return "\n".join(lines)
