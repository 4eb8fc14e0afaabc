"""dashboard: a W&B workspace and a report, with a panel for each metric that the runs of a folder have logged.

With an account they are saved there; without one the definition that would be sent is written to a file.
"""

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from project.errors import UserError, first_line
from project.options import Options

STEP = "trainer/global_step"
FIRST = ["val", "test", "train", "learning rate"]  # the order of sections; others follow by name


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: no runs are there, the library is missing, or W&B refuses what is sent.
    """
    parser = Options("dashboard", __doc__)
    parser.add_argument("folder", type=Path, help="of runs, such as runs/classify; its name is that of W&B's project")
    parser.add_argument("--entity", default="", help="user or team at W&B; default the account's own")
    parser.add_argument("--output", type=Path, help="default dashboard.json in the folder")
    options = parser.parse_args(arguments[1:])
    sections = logged(options.folder)
    name = options.folder.absolute().name
    try:
        workspace, report = build(sections, name, options.entity)
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install -e '.[dashboard]'") from error
    if online():
        try:
            print(workspace.save().url, report.save().url, sep="\n")
        except Exception as error:  # the library raises what it meets, network and all
            raise UserError(f"W&B did not take it: {first_line(error)}") from error
        return
    output = options.output or options.folder / "dashboard.json"
    output.write_text(json.dumps({"workspace": sent(workspace), "report": sent(report)}, indent=2) + "\n")
    panels = sum(map(len, sections.values()))
    print(f"no account at W&B: {panels} panels in {output}; after `wandb login` the same command saves them there")


def logged(folder: Path) -> dict[str, list[str]]:
    """Names of metrics by section, of all runs in a folder.

    Raises:
        UserError: no run there has logged anything.
    """
    names: set[str] = set()
    for file in folder.glob("*/metrics.csv"):
        with file.open(newline="") as lines:
            names.update(next(csv.reader(lines), []))
    if not names:
        raise UserError(f"{folder.absolute()} holds no run with a metrics.csv; give the folder of a name: runs/<name>")
    sections: dict[str, list[str]] = {}
    for name in sorted(names - {"epoch", "step"}):
        section = "learning rate" if name.startswith("lr-") else name.partition("/")[0]
        sections.setdefault(section, []).append(name)
    order = [*(section for section in FIRST if section in sections), *sorted(sections.keys() - set(FIRST))]
    return {section: sections[section] for section in order}


def build(sections: dict[str, list[str]], project: str, entity: str) -> tuple[Any, Any]:
    """The workspace and the report."""
    import wandb
    import wandb_workspaces.reports.v2.interface as reports
    import wandb_workspaces.workspaces as workspaces

    if not entity and online():
        entity = wandb.Api().default_entity or ""

    def panels(names: list[str]) -> list[Any]:
        return [reports.LinePlot(title=name, x=STEP, y=[name]) for name in names]

    workspace = workspaces.Workspace(
        entity=entity,
        project=project,
        name=project,
        sections=[workspaces.Section(name=name, panels=panels(of), is_open=True) for name, of in sections.items()],
        settings=workspaces.WorkspaceSettings(x_axis=STEP),
    )
    grids = [
        block
        for name, of in sections.items()
        for block in (reports.H2(name), reports.PanelGrid(runsets=[reports.Runset()], panels=panels(of)))
    ]
    blocks: list[Any] = [reports.P(f"All runs of {project}."), *grids]
    return workspace, reports.Report(project=project, entity=entity, title=project, blocks=blocks)


def sent(definition: Any) -> Any:
    """What the library sends of a workspace or a report."""
    return json.loads(definition._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def online() -> bool:
    """Whether there is an account to save to."""
    from project.loggers import stored_key

    return os.environ.get("WANDB_MODE") not in ("offline", "disabled") and stored_key()
