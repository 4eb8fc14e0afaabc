"""What the monitors of configs/debug/monitors.yaml cost: share of a step at their default interval.

They measure at every second step of the default run, and the medians of both kinds of step are compared: the difference
is what one measurement costs, which the default interval spreads over many steps.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.loop import CONFIG, ONE_BATCH, write_table
from benchmarks.report import machine, markdown
from project.callbacks import ActivationMonitor, GradientMonitor, UpdateMonitor
from project.callbacks.monitor import Monitor

INTERVAL = Monitor().every_n_steps


class Steps(Callback):
    """Seconds from the start of a step to the start of the next, apart for steps with and without a measurement."""

    def __init__(self) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self._last: tuple[float, bool] | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        now = time.perf_counter()
        if self._last is not None:
            start, measured = self._last
            self.seconds[measured].append(now - start)
        monitor = next(callback for callback in trainer.callbacks if isinstance(callback, UpdateMonitor))  # type: ignore[attr-defined]
        self._last = now, monitor.due(trainer)

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of a step without and with a measurement; the first ten of each warm up."""
        warm = 10 if len(self.seconds[True]) > 20 else 0
        return median(self.seconds[False][warm:]), median(self.seconds[True][warm:])


def main(arguments: Sequence[str] | None = None) -> None:
    from project.cli import main as run

    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitors", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--config", default=str(CONFIG), help="what to train")
    options = parser.parse_args(arguments)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, steps = Path(name), 6 if options.quick else 100
        fit = ["--config", options.config, f"--runs_dir={folder / 'runs'}", "--trainer.log_every_n_steps=100000"]
        fit += [
            "--trainer.max_epochs=1000",
            f"--trainer.max_steps={steps}",
            *ONE_BATCH,
        ]
        fit += ["--trainer.callbacks+=benchmarks.monitors.Steps"]
        for monitor in (ActivationMonitor, GradientMonitor, UpdateMonitor):
            fit += [f"--trainer.callbacks+=project.callbacks.{monitor.__name__}", "--trainer.callbacks.every_n_steps=2"]
        if options.quick:
            write_table(folder / "texts.csv", 300)
            source = ["--data.source=project.data.TableFile", f"--data.source.train={folder / 'texts.csv'}"]
            fit += [*source, f"--data.cache_dir={folder / 'cache'}", "--data.tokens_per_batch=256"]
            fit += ["--model.encoder.d_model=32"]
        with redirect_stdout(sys.stderr):
            cli = run(["fit", *fit])
    clock = next(callback for callback in cli.trainer.callbacks if isinstance(callback, Steps))  # type: ignore[attr-defined]
    plain, measured = clock.medians
    rows = [
        ["a step", f"{1000 * plain:.1f} ms", ""],
        ["a step with a measurement", f"{1000 * measured:.1f} ms", ""],
        [f"monitors, at one step of {INTERVAL}", f"{(measured - plain) / plain / INTERVAL:+.2%}", "2 % at most"],
    ]
    print(f"\n{markdown(['what', 'measured', 'goal'], rows)}")


if __name__ == "__main__":
    from benchmarks import monitors  # the command line names the callback there, not in __main__

    monitors.main()
