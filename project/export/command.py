"""export: make the bundle of a finished run, any time after its training."""

import logging
import warnings
from collections.abc import Sequence

from project.errors import UserError
from project.export.artifacts import ARTIFACTS, DEFAULT
from project.options import Options
from project.runs import run_and_checkpoint


def main(arguments: Sequence[str]) -> None:
    """Run the verb.

    Raises:
        UserError: nothing could be exported, or something failed its check and was left out.
    """
    parser = Options("export", __doc__)
    parser.add_argument("--run", help="folder of a finished run")
    parser.add_argument("--ckpt_path", help="best (default), last, or a checkpoint inside a run's folder")
    parser.add_argument(
        "--artifacts",
        nargs="+",
        default=DEFAULT,
        metavar="NAME",
        help=f"any of {' '.join(ARTIFACTS)}; default {' '.join(DEFAULT)}",
    )
    parser.add_argument(
        "--max_drop", type=float, default=0.01, help="by how much int8 may lower the validation metric; default 0.01"
    )
    options = parser.parse_args(arguments[1:])
    if options.run is None and options.ckpt_path is None:
        raise UserError("export needs trained weights: --run runs/<name>/<id>, or --ckpt_path FILE")
    run, checkpoint = run_and_checkpoint(options.run, options.ckpt_path)

    from project.cli import quiet
    from project.export.bundle import export
    from project.export.table import LEGEND, format_table, table
    from project.model_card import write_model_card

    quiet()
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("project").setLevel(logging.WARNING)  # what the data are was said in training
    bundle = run.folder / "export"
    before = {name for name, artifact in ARTIFACTS.items() if (bundle / artifact.file).exists()}
    manifest = export(run, checkpoint, options.artifacts, options.max_drop)
    write_model_card(run)
    print(format_table(*table(manifest)))
    print(LEGEND)
    if gone := sorted(before - manifest["artifacts"].keys()):
        print(f"removed with the bundle before: {', '.join(gone)}; --artifacts names all that a bundle is to hold")
    print(f"bundle: {bundle}")
    if manifest["failed"]:
        raise UserError("; ".join(f"{name}: {reason}" for name, reason in manifest["failed"].items()))
