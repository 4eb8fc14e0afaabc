"""predict: label texts from a file or standard input with a finished run."""

import csv
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from project.errors import UserError
from project.options import Options
from project.runs import Run, run_and_checkpoint
from project.tables import SUFFIXES, read_table, require_column


def read_rows(source: str, column: str) -> list[dict[str, Any]]:
    """Rows of a table, or the lines of any other file as rows of that one column; ``-`` is standard input.

    Raises:
        UserError: the file or the column is missing, or it is not UTF-8.
    """
    try:
        if source == "-" or Path(source).suffix not in SUFFIXES:
            if source == "-" and sys.stdin.isatty():
                print("reading texts, one a line, up to Ctrl-D; of a file: --input FILE", file=sys.stderr)
            lines = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
            return [{column: line} for line in lines.splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 (byte {error.start}); convert it first") from error
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from error
    table = read_table(Path(source))
    require_column(table, column, source, "--text")
    rows: Any = table.astype(object).where(table.notna(), None).to_dict("records")
    return list(rows)


def beside(row: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A row with label and probability added, as ``predicted_label`` where it has a label of its own."""

    def free(name: str) -> str:
        return free(f"predicted_{name}") if name in row else name

    return row | {free(name): answer[name] for name in ("label", "probability")}


def write_rows(rows: Sequence[dict[str, Any]], file: TextIO, form: str) -> None:
    if form == "jsonl":
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    else:
        columns = list(rows[0]) if rows else ["text", "label", "probability"]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def predict_run(run: Run, checkpoint: Path, texts: list[str], precision: Any = None) -> list[dict[str, Any]]:
    """Label of highest probability for each text, in the order given.

    Args:
        precision: as Lightning calls it; by default that of the training.
    """
    import torch
    from lightning.pytorch import Trainer
    from tokenizers import Tokenizer
    from torch.utils.data import DataLoader

    from project.cli import quiet
    from project.data import encode_batches

    quiet()
    if not (run.folder / "tokenizer.json").is_file():
        raise UserError(f"{run.folder} has no tokenizer.json: it was not trained on texts, and predict labels texts")
    config = run.config
    task = run.load_task(checkpoint)
    if not hasattr(task, "labels"):
        raise UserError(f"{run.folder} has no labels: {type(task).__name__} is to be fine-tuned first")
    tokenizer = Tokenizer.from_file(str(run.folder / "tokenizer.json"))
    data = config["data"]["init_args"]
    batches = encode_batches(texts, tokenizer, data["max_length"], data["tokens_per_batch"])
    trainer = Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        precision=precision or config["trainer"]["precision"],
    )
    loader: Any = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    outputs: Any = trainer.predict(task, loader)
    ids = torch.cat([output["ids"] for output in outputs])
    probabilities = torch.cat([output["probabilities"] for output in outputs])[ids.argsort()]
    best, index = probabilities.max(-1)
    return [
        {"text": text, "label": task.labels[i], "probability": round(p, 6)}
        for text, i, p in zip(texts, index.tolist(), best.tolist(), strict=True)
    ]


def main(arguments: Sequence[str]) -> None:
    parser = Options("predict", __doc__)
    parser.add_argument("--run", help="folder of a finished run")
    parser.add_argument("--ckpt_path", help="best (default), last, or a checkpoint inside a run's folder")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), help="of a run; default that of its training")
    parser.add_argument("--bundle", help="an exported bundle, runs/<name>/<id>/export, in place of a run")
    parser.add_argument("--artifact", help="which of the bundle's: onnx (default) or onnx-int8")
    parser.add_argument(
        "--input", default="-", help="one text a line, or a CSV, TSV, JSONL or Parquet table, whose columns are kept"
    )
    parser.add_argument("--text", default="text", help="the table's column of texts")
    parser.add_argument("--output", default="-", help="a .csv or .jsonl file; default CSV on standard output")
    options = parser.parse_args(arguments[1:])
    output = Path(options.output)
    if options.output != "-" and output.suffix not in (".csv", ".jsonl"):
        raise UserError(f"--output {output} must end in .csv or .jsonl")
    if options.bundle is not None and (options.run or options.ckpt_path or options.precision):
        raise UserError("a bundle has weights of its own: leave out --run, --ckpt_path and --precision, or --bundle")
    if options.bundle is None and options.artifact is not None:
        raise UserError("--artifact is one of a bundle: give --bundle runs/<name>/<id>/export too")
    if options.bundle is None and options.run is None and options.ckpt_path is None:
        raise UserError("predict needs trained weights: --run runs/<name>/<id>, --ckpt_path FILE, or --bundle FOLDER")
    if options.bundle is not None:
        from project.export.predictor import Predictor

        label = Predictor(Path(options.bundle), options.artifact).predict
    else:
        run, checkpoint = run_and_checkpoint(options.run, options.ckpt_path)
        label = partial(predict_run, run, checkpoint, precision=options.precision)
    rows = read_rows(options.input, options.text)
    answers = label(["" if row[options.text] is None else str(row[options.text]) for row in rows]) if rows else []
    rows = [beside(row, answer) for row, answer in zip(rows, answers, strict=True)]
    if options.output == "-":
        write_rows(rows, sys.stdout, "csv")
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w", encoding="utf-8", newline="") as file:
            write_rows(rows, file, output.suffix.lstrip("."))
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
