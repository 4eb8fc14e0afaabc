"""dashboard: a W&B workspace and a report, with a panel for each metric that the runs of a folder have logged.

With an account they are saved there; without one the definition that would be sent is written to a file.
"""

import csv
import json
import os
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from project.compare.sections import X_AXES, rank, section
from project.compare.settings import flatten
from project.errors import UserError, first_line
from project.options import Options
from project.runs import Run

STEP = "trainer/global_step"
PROJECT = re.compile(r"trainer\.logger\.(.+\.)?project")  # that setting of a logger


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: no runs are there, the library is missing, W&B refuses what is sent, or the file cannot be written.
    """
    parser = Options("dashboard", __doc__)
    parser.add_argument("folder", type=Path, help="of runs, such as runs/classify")
    parser.add_argument("--entity", default="", help="user or team at W&B; default the account's own")
    parser.add_argument("--project", help="at W&B; default that of the runs, which is the folder's name if none is set")
    parser.add_argument(
        "--output",
        type=Path,
        help="write to this file instead; default, without an account, dashboard.json in the folder",
    )
    options = parser.parse_args(arguments[1:])
    sections = logged(options.folder)
    project = options.project or project_of(options.folder)
    try:
        import wandb_workspaces  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install -e '.[dashboard]'") from error
    if options.output is None and online():
        try:
            workspace, report = build(sections, project, options.entity or default_entity())
            report.save()  # first: it makes the project where there is none
            print(workspace.save().url, report.url, sep="\n")
        except Exception as error:  # the library raises what it meets, network and all
            raise UserError(f"W&B did not take it: {first_line(error) or type(error).__name__}") from error
        return
    workspace, report = build(sections, project, options.entity)
    output = options.output or options.folder / "dashboard.json"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({"workspace": sent(workspace), "report": sent(report)}, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}; see --output") from error
    panels = sum(map(len, sections.values()))
    print(f"{panels} panels in {output}; after `wandb login` the same command, without --output, saves them at W&B")


def logged(folder: Path) -> dict[str, list[str]]:
    """Names of metrics by section, of all runs in a folder.

    Raises:
        UserError: no run there has logged anything.
    """
    names: set[str] = set()
    for file in folder.glob("*/metrics.csv"):
        with file.open(newline="", encoding="utf-8") as lines:
            names.update(next(csv.reader(lines), []))
    if not names:
        raise UserError(f"{folder.absolute()} holds no run with a metrics.csv; give the folder of a name: runs/<name>")
    return {name: list(metrics) for name, metrics in groupby(sorted(names - X_AXES, key=rank), section)}


def project_of(folder: Path) -> str:
    """The project at W&B in which the runs of a folder are.

    Raises:
        UserError: they are in several.
    """
    runs = [flatten(Run(file.parent).config) for file in folder.glob("*/config.yaml")]
    ours = folder.absolute().name  # where none is set
    set_in_runs = (settings[name] for settings in runs for name in settings if PROJECT.fullmatch(name))
    projects = sorted({project or ours for project in set_in_runs}) or [ours]
    if len(projects) > 1:
        raise UserError(f"the runs in {folder} are in several projects at W&B, {', '.join(projects)}: see --project")
    return projects[0]


def build(sections: dict[str, list[str]], project: str, entity: str) -> tuple[Any, Any]:
    """The workspace and the report.

    The workspace's panels have no x-axis of their own, so that one setting there, such as ``examples``, is that of all.
    """
    import wandb_workspaces.reports.v2.interface as reports
    import wandb_workspaces.workspaces as workspaces

    def panels(names: list[str], x: str | None) -> list[Any]:
        return [reports.LinePlot(title=name, x=x, y=[name]) for name in names]

    workspace = workspaces.Workspace(
        entity=entity,
        project=project,
        name=project,
        sections=[
            workspaces.Section(name=name, panels=panels(of, None), is_open=True) for name, of in sections.items()
        ],
        settings=workspaces.WorkspaceSettings(x_axis=STEP),
    )
    grids = [
        block
        for name, of in sections.items()
        for block in (reports.H2(name), reports.PanelGrid(runsets=[reports.Runset()], panels=panels(of, STEP)))
    ]
    blocks: list[Any] = [reports.P(f"All runs of {project}."), *grids]
    return workspace, reports.Report(project=project, entity=entity, title=project, blocks=blocks)


def default_entity() -> str:
    """The account's own.

    Raises:
        UserError: it has none.
    """
    import wandb

    if entity := wandb.Api().default_entity:
        return entity
    raise UserError("the key is that of no user; name a user or a team by --entity")


def sent(definition: Any) -> Any:
    """What the library sends of a workspace or a report."""
    return json.loads(definition._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def online() -> bool:
    """Whether there is an account to save to."""
    from project.loggers import stored_key

    return os.environ.get("WANDB_MODE") not in ("offline", "disabled") and stored_key()
