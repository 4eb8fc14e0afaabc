"""python -m project VERB: a light front, so that help, version and mistakes need no torch."""

import importlib
import os
import sys
from collections.abc import Sequence

from project import __version__

# verb: (module whose `main(arguments)` runs it, what it does)
VERBS = {
    "fit": ("project.cli", "train a model, then test its best checkpoint"),
    "validate": ("project.cli", "score a run's checkpoint on the validation split"),
    "test": ("project.cli", "score a run's checkpoint on the test split"),
    "predict": ("project.predict", "label texts from a file or standard input"),
    "export": ("project.export.command", "make a verified bundle: TorchScript, ONNX, .pt2, in float32 and int8"),
    "check": ("project.diagnose.command", "why does my model not learn? Examine a configuration before training it"),
    "sweep": ("project.sweep.command", "search for hyperparameters, as `wandb sweep` does, without an account"),
    "compare": ("project.compare.command", "what differs between runs, scores over seeds, curves on one page"),
    "dashboard": ("project.dashboard", "a W&B workspace and a report of what a folder's runs have logged"),
    "schema": ("project.schema", "write a schema by which editors complete and check configurations"),
    "completion": ("project.completion", "write a script by which bash or zsh completes this command line"),
    "new": ("project.fork.command", "a project of your own out of this one: your name, a fresh history"),
}

HELP = f"""usage: python -m project VERB [options]

{{verbs}}

  python -m project fit --config configs/classify.yaml
  python -m project fit --config configs/classify.yaml --trainer.max_epochs 1 --model.encoder.num_layers 2
  python -m project test --run runs/classify/ID
  python -m project predict --run runs/classify/ID --input texts.txt

Options of a verb: python -m project VERB --help. Version {__version__}."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:<10} {does}" for verb, (_, does) in VERBS.items())))
        return 0 if arguments else 2
    verb, *rest = arguments
    if verb == "--version":
        print(__version__)
        return 0
    if verb not in VERBS:
        from difflib import get_close_matches

        if verb.startswith("-"):
            hint = f"options come after the verb: python -m project fit {verb} ..."
        else:
            nearest = get_close_matches(verb, VERBS, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(VERBS)}"
        print(f"error: {verb!r} is no verb; {hint}", file=sys.stderr)
        return 2

    from project.errors import ElsewhereError, Interrupted, UserError
    from project.rank import is_first

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # below are stack traces where another process has ended
    try:
        importlib.import_module(VERBS[verb][0]).main([verb, *rest])
    except UserError as error:
        if is_first() or not isinstance(error, ElsewhereError):
            print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as stop:
        if is_first():
            print(stop, file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def run() -> int:
    """As `main`, and silent where what reads the output has ended, such as `head`."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


if __name__ == "__main__":
    sys.exit(run())
