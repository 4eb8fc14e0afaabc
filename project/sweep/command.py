"""sweep: search for hyperparameters with Optuna, in any number of processes; each trial is a run like any other."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from project.errors import UserError
from project.options import Options

log = logging.getLogger("project")


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: the space or the options are wrong, found before the first trial; or trials fail.
    """
    parser = Options(
        "sweep",
        __doc__,
        usage="%(prog)s --space FILE --config FILE [options of fit]",
        epilog="The same command in another process, or on another machine that shares the folder, works on the same "
        "sweep; after a stop it goes on.",
    )
    parser.add_argument("--space", type=Path, required=True, help="search space, in the format of W&B's sweeps")
    parser.add_argument("--trials", type=int, help="of all processes together; default the space's run_cap")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each trial; their mean counts; default 1")
    parser.add_argument("--storage", help="Optuna's database URL; default a journal in the sweep's folder")
    given, options = parser.parse_known_args(arguments[1:])
    try:
        from project.sweep.space import Space
        from project.sweep.study import locked, open_study
        from project.sweep.worker import Worker
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UserError("a sweep needs Optuna: pip install -c constraints.txt -e '.[sweep]'") from error
    from project.arguments import flatten
    from project.cli import parse, quiet

    quiet()
    space = Space.read(given.space)
    for option in ("--run", "--ckpt_path"):
        if any(word.partition("=")[0] == option for word in options):
            raise UserError(f"a sweep gives each trial a run of its own: leave out {option}")
    config = parse(["fit", *options])
    space.check(lambda words: flatten(parse(["fit", *options, *words])))
    count = space.run_cap if given.trials is None else given.trials
    if space.method == "grid":
        count = min(len(space.grid()) if count is None else count, len(space.grid()))
    if count is None or count < 1 or given.seeds < 1:
        raise UserError("how many trials? Give --trials, or run_cap in the space; --trials and --seeds are 1 at least")
    if given.seeds > 1 and "seed_everything" in space.parameters:
        raise UserError("--seeds sets seed_everything: take it out of the space")
    first = config["seed_everything"] if type(config["seed_everything"]) is int else 0
    seeds: list[int | None] = [None] if given.seeds == 1 else [*range(first, first + given.seeds)]

    folder = Path(config["runs_dir"], config["name"], f"sweep-{space.name}")
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    storage = given.storage or str(folder.absolute() / "study.journal")
    with locked(folder):
        study = open_study(space.name, storage, space, {"options": options, "seeds": given.seeds})
    Worker(space, study, options, seeds, folder, storage).work(count)
    report(study, folder)


def report(study: Any, folder: Path, most: int = 10) -> None:
    from project.export.table import format_table
    from project.sweep.worker import short

    done = [trial for trial in study.trials if trial.value is not None and trial.state.name == "COMPLETE"]
    done.sort(key=lambda trial: trial.value, reverse=study.direction.name == "MAXIMIZE")
    if not done:
        log.info("no trial has been completed")
        return
    keys = list(done[0].params)
    rows = [[t.number, f"{t.value:.4f}", *(short(t.params[key]) for key in keys)] for t in done[:most]]
    print(format_table(["trial", "value", *keys], rows))
    states = [trial.state.name.lower() for trial in study.trials]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    print(f"best configuration: {folder / 'best.yaml'}")
