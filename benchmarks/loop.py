"""What the template costs around the model: training loop, loader, start-up, and growth with the data.

- The whole `fit` (Trainer, callbacks, logging, data) against a bare PyTorch loop. Both train the same model on the same
  batches in the same process, taking turns of as many steps as lie between two lines of the log.
- The loader's tokens per second against those that the model consumes.
- Seconds from command to first optimizer step on cached data, beside those of importing torch and lightning, and
  seconds that leaving the interpreter takes.
- The same for data of ten times the size: time to prepare and to open, speed of the loader, private memory.
"""

import argparse
import atexit
import copy
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from benchmarks.memory import in_fresh_process, peak, private
from benchmarks.report import machine, markdown
from project.data import TableFile, TextClassificationData
from project.tasks import SequenceClassification, Task
from project.tasks.base import parameter_groups
from project.tasks.classification import hide_tokens

CONFIG = Path(__file__).parents[1] / "configs" / "classify.yaml"
ONE_BATCH = ["--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]  # after training
Batch = dict[str, Tensor]


class BareLoop:
    """A copy of a task's network and optimizer, trained by hand."""

    def __init__(self, trainer: Trainer, task: Task) -> None:
        assert isinstance(task, SequenceClassification)
        self.network = copy.deepcopy(task.network)
        self.optimizer = task.optimizer(parameter_groups(self.network))
        self.clip = trainer.gradient_clip_val
        self.word_dropout, self.label_smoothing, self.weights = (
            task.word_dropout,
            task.label_smoothing,
            task.class_weights,
        )
        self.bf16 = trainer.precision == "bf16-mixed"

    def step(self, batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits = self.network(batch["tokens"], hide_tokens(batch["padding_mask"], self.word_dropout)).float()
            logits = logits.view(-1, logits.shape[-1])  # those of each member of an ensemble below another
            labels = batch["labels"].repeat(len(logits) // len(batch["labels"]))
            loss = F.cross_entropy(logits, labels, self.weights, label_smoothing=self.label_smoothing)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


class BesideBareLoop(Callback):
    """Times turns of the trainer and of a bare loop on the same batches.

    A turn has `log_every_n_steps` steps, so that writing the log is in each. The first pair of turns warms up.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []  # seconds of the trainer and of the bare loop
        self.tokens_per_second: list[float] = []  # that the bare loop consumed
        self.batches: list[Batch] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        self.bare = BareLoop(trainer, pl_module)
        self.start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.batches.append(batch)
        if len(self.batches) < trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        middle = time.perf_counter()
        for each in self.batches:
            self.bare.step(each)
        end = time.perf_counter()
        self.pairs.append((middle - self.start, end - middle))
        self.tokens_per_second.append(sum(int(each["padding_mask"].sum()) for each in self.batches) / (end - middle))
        self.batches.clear()
        self.start = time.perf_counter()

    @property
    def overhead(self) -> list[float]:
        """What the trainer takes longer, as a share of the bare loop's time: quartiles over pairs of turns."""
        return quantiles((template / bare - 1 for template, bare in self.pairs[1:]), method="inclusive")


class Clock(Callback):
    """Says at what time, in seconds since 1970, the first step ended and the interpreter began to leave."""

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        if trainer.global_step == 1:
            print(f"clock: stepped {time.time()}", flush=True)
            atexit.register(lambda: print(f"clock: left {time.time()}", flush=True))


def times(command: Sequence[str]) -> dict[str, float]:
    """Seconds from starting a command to each time that it says, and from the last of these to its end."""
    start = time.time()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    end = time.time()
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    said = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("clock: "))
    return {what: float(at) - start for what, at in said.items()} | {"leaving": end - float(said["left"])}


def startup(fit: Sequence[str], repeats: int) -> tuple[float, float, float]:
    """Seconds to the first step, of importing torch and lightning, and of leaving; medians, taking turns."""
    imports = "import time, torch, lightning; print('clock: left', time.time())"
    clock = ["--trainer.callbacks+=benchmarks.loop.Clock", "--trainer.max_steps=1", *ONE_BATCH]
    one_step = ["-m", "project", "fit", *fit, *clock]
    runs = [(times(one_step), times(["-c", imports])) for _ in range(repeats)]
    return (
        median(run["stepped"] for run, _ in runs),
        median(bare["left"] for _, bare in runs),
        median(run["leaving"] for run, _ in runs),
    )


def write_table(file: Path, rows: int) -> None:
    """A CSV of `rows` texts of 4 to 40 made-up words, in three classes."""
    generator = random.Random(0)
    words = ["".join(generator.choices("aeioubdgklmnprst", k=generator.randint(2, 9))) for _ in range(5000)]
    with file.open("w") as stream:
        stream.write("text,label\n")
        for row in range(rows):
            stream.write(f"{row} {' '.join(generator.choices(words, k=generator.randint(4, 40)))},{row % 3}\n")


def loader_speed(data: TextClassificationData, batches: int) -> float:
    """Real tokens per second that come out of the training loader."""
    loader = iter(data.train_dataloader())
    next(loader)
    start = time.perf_counter()
    tokens = sum(int(batch["padding_mask"].sum()) for batch, _ in zip(loader, range(batches), strict=False))
    return tokens / (time.perf_counter() - start)


def prepare(file: Path, cache: Path) -> list[float]:
    """Seconds, and MiB at the peak, of splitting, tokenizing and encoding."""
    before, start = peak(), time.perf_counter()
    TextClassificationData(TableFile(str(file)), vocab_size=8000, cache_dir=str(cache)).prepare_data()
    return [time.perf_counter() - start, peak() - before]


def use(file: Path, cache: Path, batches: int) -> list[float]:
    """Seconds to open prepared data, tokens/s of the loader, and MiB of private memory that both took."""
    before, start = private(), time.perf_counter()
    data = TextClassificationData(TableFile(str(file)), vocab_size=8000, cache_dir=str(cache))
    data.setup()
    opened = time.perf_counter() - start
    return [opened, loader_speed(data, batches), private() - before]


def growth(folder: Path, rows: int, batches: int) -> list[list[str]]:
    """The table's rows for data of two sizes, and their quotient."""
    measured = []
    for size in (rows, 10 * rows):
        file = folder / f"{size}.csv"
        write_table(file, size)
        measured.append(
            [
                *in_fresh_process(prepare, file, folder / "cache"),
                *in_fresh_process(use, file, folder / "cache", batches),
            ]
        )
    units = ["{:.2f} s", "{:,.0f} MiB", "{:.2f} s", "{:,.0f}", "{:,.1f} MiB"]
    lines = [
        [f"{size:,}", *(unit.format(value) for unit, value in zip(units, values, strict=True))]
        for size, values in zip((rows, 10 * rows), measured, strict=True)
    ]
    return [*lines, ["quotient", *(f"{large / small:.1f}" for small, large in zip(*measured, strict=True))]]


def beside_bare_loop(fit: Sequence[str], turns: int, log_every: int, batches: int) -> tuple[BesideBareLoop, float]:
    """The measured pairs of turns, and the tokens/s of the loader alone."""
    from project.cli import main as run

    ends = ["--trainer.max_epochs=1000", f"--trainer.max_steps={(1 + turns) * log_every}", *ONE_BATCH]
    clock = ["--trainer.callbacks+=benchmarks.loop.BesideBareLoop", f"--trainer.log_every_n_steps={log_every}"]
    with redirect_stdout(sys.stderr):
        cli = run(["fit", *fit, *ends, *clock])
    beside = next(callback for callback in cli.trainer.callbacks if isinstance(callback, BesideBareLoop))  # type: ignore[attr-defined]
    return beside, loader_speed(cli.datamodule, batches)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    options = parser.parse_args(arguments)
    turns, log_every, repeats, rows, batches = (2, 2, 1, 300, 5) if options.quick else (30, 20, 3, 10_000, 100)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fit = ["--config", str(CONFIG), f"--runs_dir={folder / 'runs'}"]
        if options.quick:
            write_table(folder / "texts.csv", rows)
            source = ["--data.source=project.data.TableFile", f"--data.source.train={folder / 'texts.csv'}"]
            fit += [*source, f"--data.cache_dir={folder / 'cache'}", "--data.tokens_per_batch=256"]
            fit += ["--model.encoder.d_model=32"]
        beside, loader = beside_bare_loop(fit, turns, log_every, batches)  # leaves the data cached
        low, middle, high = beside.overhead
        consumed = median(beside.tokens_per_second[1:])
        stepped, imported, leaving = startup(fit, repeats)
        lines = [
            ["training loop over the bare loop", f"{middle:+.1%}", "5% at most"],
            [f"  the middle half of {turns} pairs of turns", f"{low:+.1%} to {high:+.1%}", ""],
            ["loader over the model's consumption", f"{loader / consumed:,.0f} x", "10 x at least"],
            ["  loader", f"{loader:,.0f} tokens/s", ""],
            ["  bare loop", f"{consumed:,.0f} tokens/s", ""],
            ["command to first step, imports aside", f"{stepped - imported:.1f} s", "2 s at most"],
            ["  command to first step", f"{stepped:.1f} s", ""],
            ["  importing torch and lightning", f"{imported:.1f} s", ""],
            ["leaving the interpreter", f"{leaving:.1f} s", "2 s at most"],
        ]
        print(f"\n{markdown(['what', 'measured', 'goal'], lines)}\n", flush=True)
        header = ["texts", "prepare", "at its peak", "open", "loader tokens/s", "private memory"]
        print(markdown(header, growth(folder, rows, batches)))


if __name__ == "__main__":
    from benchmarks import loop  # the command line names the callbacks there, not in __main__

    loop.main()
