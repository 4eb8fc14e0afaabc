"""check: why does my model not learn? Examines a configuration before it costs hours."""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from project.cli import ProjectCLI, command_line, quiet
from project.cpu import use_cpu_well
from project.diagnose import CHECKS, Result, diagnose
from project.diagnose.picture import draw
from project.errors import UserError
from project.options import Options
from project.runs import Run

# Options of the Trainer that a training step depends on, and its length.
OPTIONS = ("accelerator", "precision", "gradient_clip_val", "gradient_clip_algorithm", "max_epochs", "max_steps")
COLORS = {"pass": 32, "warning": 33, "failure": 31, "not run": 0}


class Building(ProjectCLI):
    """Builds model and data as `fit` would; makes no run and no Trainer."""

    def before_instantiate_classes(self) -> None:
        self._take_pretrained_tokenizer(self.config[self.subcommand])

    def instantiate_trainer(self, **_: Any) -> Trainer:
        return None  # type: ignore[return-value]

    def _run_subcommand(self, subcommand: str) -> None:
        self.before_fit()


def line(result: Result, color: bool) -> str:
    """A result as one line, columns aligned."""
    status = f"{result.status:<8}"
    if color:
        status = f"\033[{COLORS[result.status]}m{status}\033[0m"
    advice = f" -> {result.advice}" if result.advice else ""
    return f"{status} {result.check:<{max(map(len, CHECKS))}}  {result.seen}{advice}"


def finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN: there they are words."""
    if isinstance(value, dict):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: something in the configuration does not exist, or a check failed.
    """
    parser = Options(
        "check",
        f"{__doc__} The checks: {', '.join(CHECKS)}.",
        usage="%(prog)s --config FILE [options]",
        epilog="Every other option is one of fit: python -m project fit --help",
    )
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="run these checks alone")
    parser.add_argument("--skip", nargs="+", metavar="CHECK", default=[], help="leave these checks out")
    parser.add_argument(
        "--output", metavar="FOLDER", help="where check.json and check.png go; default runs/NAME-check/ID"
    )
    parser.add_argument("--memory_limit", type=float, metavar="GB", help="that training may take; default what is free")
    own, options = parser.parse_known_args(arguments[1:])
    unknown = [name for name in own.skip if name not in CHECKS]
    chosen = [name for name in own.only or CHECKS if name not in own.skip or name in unknown] + unknown

    quiet()
    use_cpu_well()
    begin = time.monotonic()
    built = command_line(Building, ["fit", *options])
    config = built.config["fit"]
    folder = Run.begin(Path(own.output)) if own.output else Run.create(f"{config.name}-check", Path(config.runs_dir))

    def report(result: Result) -> None:
        if result.status != "not run":
            print(line(result, sys.stdout.isatty()), flush=True)

    results = diagnose(
        built.model,
        built.datamodule,
        only=chosen,
        trainer_options={name: config.trainer[name] for name in OPTIONS},
        memory_limit=None if own.memory_limit is None else own.memory_limit * 1e9,
        report=report,
    )
    for cause in dict.fromkeys(result.seen for result in results if result.status == "not run"):
        print(f"not run: {', '.join(result.check for result in results if result.seen == cause)}: {cause}")
    rows = [{**vars(result), "values": finite(result.values)} for result in results]
    folder.write_json("check.json", rows)
    draw(results, folder.folder / "check.png")
    counts = {status: sum(result.status == status for result in results) for status in COLORS}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    print(f"{said}, in {time.monotonic() - begin:.0f} s: {folder.folder}/check.json and check.png")
    if failed := [result.check for result in results if result.status == "failure"]:
        raise UserError(f"failed: {', '.join(failed)}; see above what to do")
