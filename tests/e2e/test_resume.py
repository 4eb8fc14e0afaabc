"""A run that was stopped, in whatever way, and goes on ends bit by bit as if it had not been."""

import csv
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from project.__main__ import main
from project.checkpoint_io import AtomicCheckpointIO
from project.errors import UserError
from project.runs import ENVIRONMENT_VARIABLE, Run
from project.tasks import SequenceClassification
from tests.conftest import Together
from tests.e2e.conftest import ROOT, train
from tests.processes import torchrun


@pytest.fixture(scope="module")
def short(config: Path) -> Path:
    """About ten batches an epoch, every step in the CSV, no W&B."""
    content: dict[str, Any] = yaml.safe_load(config.read_text())
    content["data"]["init_args"]["tokens_per_batch"] = 512
    content["trainer"] |= {"max_epochs": 2, "log_every_n_steps": 1}
    content["trainer"]["logger"] = [{"class_path": "project.loggers.MetricsCSV"}]
    file = config.with_name("short.yaml")
    file.write_text(yaml.safe_dump(content))
    return file


def fit(*arguments: str) -> int:
    return main(["fit", *arguments])


def load(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(file, weights_only=True)
    return content


def assert_same_weights(actual: Path, expected: Path) -> None:
    a, b = load(actual), load(expected)
    assert a["global_step"] == b["global_step"]
    assert a["state_dict"].keys() == b["state_dict"].keys()
    for name, value in b["state_dict"].items():
        assert torch.equal(a["state_dict"][name], value), name


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def train_keeping(
    config: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> tuple[Path, dict[int, Path]]:
    """A whole run, and what its folder looked like just after each writing of last.ckpt."""
    snapshots: dict[int, Path] = {}
    save = AtomicCheckpointIO.save_checkpoint

    def save_and_copy(self: Any, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        save(self, checkpoint, path, storage_options)
        if Path(path).name == "last.ckpt":
            number = len(snapshots)
            snapshots[number] = folder / "snapshots" / str(number)
            shutil.copytree(os.environ[ENVIRONMENT_VARIABLE], snapshots[number])

    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", save_and_copy)
        run = train(config, folder / "runs", "--checkpoint.every_n_minutes", "1e-9", *options).folder
    return run, snapshots


# options, which of the checkpoints to go on from
CASES = [
    ([], [0, 8, 9, 10]),  # within an epoch, before the validation, after the epoch, within the next
    (["--trainer.accumulate_grad_batches", "3"], [1, 3, 4]),
    (["--trainer.max_steps", "14", "--trainer.max_epochs", "9", "--trainer.val_check_interval", "4"], [3, 4, 5, 12]),
]


@pytest.mark.parametrize(("options", "numbers"), CASES, ids=["plain", "accumulation", "max_steps"])
def test_every_kind_of_checkpoint_goes_on_exactly(
    options: list[str], numbers: list[int], short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, snapshots = train_keeping(short, tmp_path, monkeypatch, *options)
    for number in numbers:
        run = snapshots[number]  # which lies elsewhere than the folder it was copied from: runs may be moved
        step = load(run / "checkpoints/last.ckpt")["global_step"]
        assert fit("--run", str(run)) == 0
        assert_same_weights(run / "checkpoints/last.ckpt", whole / "checkpoints/last.ckpt")
        assert_same_weights(run / "checkpoints/best.ckpt", whole / "checkpoints/best.ckpt")
        # The snapshot was taken before the row of its own step was written.
        mine, expected = ([r for r in rows(folder) if r["step"] != str(step - 1)] for folder in (run, whole))
        assert mine == expected
        assert (run / "metrics.json").read_text() == (whole / "metrics.json").read_text()
        assert not (run / "config-1.yaml").exists()


def test_a_longer_run_records_its_new_configuration(short: Path, tmp_path: Path) -> None:
    run = train(short, tmp_path)
    rows_before = rows(run.folder)
    assert fit("--ckpt_path", str(run.checkpoint("last")), "--trainer.max_epochs", "3") == 0
    assert run.config["trainer"]["max_epochs"] == 3
    assert yaml.safe_load((run.folder / "config-1.yaml").read_text())["trainer"]["max_epochs"] == 2
    assert load(run.checkpoint("last"))["epoch"] == 2
    kept = [row for row in rows_before if not row["test/accuracy"]]
    assert rows(run.folder)[: len(kept)] == kept
    assert {p.name for p in run.checkpoints.iterdir()} == {"best.ckpt", "last.ckpt"}


@pytest.fixture(scope="module")
def stopped(short: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run killed in its second epoch, as its folder shows. Tests must not change it."""
    run = train(short, tmp_path_factory.mktemp("stopped"), "--trainer.max_epochs", "1")
    config = run.config
    config["trainer"]["max_epochs"] = 2
    run.config_file.write_text(yaml.safe_dump(config))
    shutil.copy(run.checkpoint("last"), run.checkpoints / "previous.ckpt")
    return run


@pytest.fixture
def copy(stopped: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(stopped.folder, tmp_path / "tiny" / "copy")))


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_the_previous_checkpoint_takes_the_place_of_a_damaged_one(
    how: str, copy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    last = copy.checkpoint("last")
    content = bytearray(last.read_bytes())
    if how == "missing":
        last.unlink()
    elif how == "truncated":
        last.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0xFF
        last.write_bytes(content)
    assert fit("--run", str(copy.folder)) == 0
    assert f"{last} is damaged or missing; going on from the checkpoint before it" in capsys.readouterr().out
    assert load(last)["epoch"] == 1


def test_two_damaged_checkpoints_are_an_error(copy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("last", "previous"):
        (copy.checkpoints / f"{name}.ckpt").write_bytes(b"nothing")
    assert fit("--run", str(copy.folder)) == 1
    assert f"{copy.checkpoints / 'last.ckpt'} is damaged" in capsys.readouterr().err


def test_last_must_be_there_and_auto_may_be_missing(
    short: Path, copy: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("--config", str(short), "--ckpt_path", "last") == 1
    assert "--ckpt_path last needs --run" in capsys.readouterr().err
    for file in copy.checkpoints.iterdir():
        file.unlink()
    assert fit("--run", str(copy.folder)) == 1
    assert "has no checkpoint last.ckpt" in capsys.readouterr().err

    named = tmp_path / "runs" / "named"
    auto = ["--config", str(short), "--run", str(named), "--ckpt_path", "auto"]
    assert fit(*auto, "--trainer.max_epochs", "1") == 0
    assert load(named / "checkpoints/last.ckpt")["epoch"] == 0
    assert fit(*auto) == 0
    assert load(named / "checkpoints/last.ckpt")["epoch"] == 1


def test_a_checkpoint_of_another_model_says_what_differs(copy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--run", str(copy.folder), "--model.encoder.num_layers", "2", "--model.encoder.activation", "relu") == 1
    error = capsys.readouterr().err
    assert "error: the checkpoint is of another model: it lacks network.encoder.layers.1." in error
    assert fit("--run", str(copy.folder), "--model.encoder.d_model", "16") == 1
    assert re.search(r"differs network\.\S+ is \(.*32.*\), not \(.*16.*\)", capsys.readouterr().err)


def test_weights_alone_start_everything_else_anew(short: Path, stopped: Run, tmp_path: Path) -> None:
    run = train(short, tmp_path, "--weights", str(stopped.folder), "--trainer.max_steps", "1")
    assert load(run.checkpoint("last"))["global_step"] == 1
    start, end = load(stopped.checkpoint())["state_dict"], load(run.checkpoint("last"))["state_dict"]
    moved = max((end[name] - start[name]).abs().max().item() for name in start)
    assert 0 < moved <= 0.0101  # one step of AdamW at the peak rate of 0.01, which decays by no more than its hundredth


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Sets the largest size of a file; writing beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, small_disk: Callable[[int], None]) -> None:
    file = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"value": torch.ones(3)}, file)
    small_disk(100_000)
    with pytest.raises(
        UserError, match=r"cannot write the checkpoint .*last\.ckpt: .*; the one before it is whole"
    ) as e:
        AtomicCheckpointIO().save_checkpoint({"value": torch.ones(10**6)}, file)
    assert len(str(e.value).splitlines()) == 1
    assert torch.equal(load(file)["value"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [file]


def test_a_disk_that_fills_ends_a_run_in_one_line_and_leaves_the_checkpoint_before(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        run, callback = disk / "run", "tests.e2e.test_resume.FillDisk"
        options = ["--checkpoint.every_n_steps", "1", "--trainer.callbacks+", callback]
        assert fit("--config", str(short), "--run", str(run), "--ckpt_path", "auto", *options) == 1
        error = capsys.readouterr().err.strip()
        assert error == f"error: cannot write the checkpoint {run}/checkpoints/best.ckpt: No space left on device"
        assert load(run / "checkpoints/last.ckpt")["global_step"] == 10  # each takes the place of the last but one
        assert not list(run.glob("checkpoints/*.partial"))
        (disk / "ballast").unlink()
        assert fit("--run", str(run), "--trainer.max_epochs", "1") == 0
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # checkpoints are mapped into memory


class FillDisk(Callback):
    """In the first session, after the fourth step, leaves a few kilobytes."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        disk = Path(trainer.default_root_dir).parent
        if trainer.global_step == 4 and trainer.ckpt_path is None:
            (disk / "ballast").write_bytes(b"0" * (shutil.disk_usage(disk).free - 20_000))


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "project", "fit", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
def test_signals_save_and_end_and_runs_go_on(short: Path, tmp_path: Path) -> None:
    runs = {number: tmp_path / number.name for number in (signal.SIGTERM, signal.SIGINT)}
    auto = ["--config", str(short), "--ckpt_path", "auto", "--trainer.max_epochs", "500"]
    processes = {number: start(*auto, "--run", str(run)) for number, run in runs.items()}
    steps = {}
    for number, run in runs.items():
        wait_for(lambda run=run: (run / "metrics.csv").exists() and len(rows(run)) > 3)  # type: ignore[misc]
        processes[number].send_signal(number)
        _, error = processes[number].communicate(timeout=60)
        assert processes[number].returncode == 128 + number
        (step,) = re.findall(rf"^stopped by {number.name}, saved at step (\d+)$", error, re.MULTILINE)
        assert load(run / "checkpoints/last.ckpt")["global_step"] == int(step)
        assert rows(run)[-1]["step"] == str(int(step) - 1)
        steps[number] = int(step)
    end = str(max(steps.values()) + 2)
    for run in runs.values():
        assert fit("--run", str(run), "--trainer.max_steps", end) == 0
        assert [row["step"] for row in rows(run) if row["train/loss"]] == [str(i) for i in range(int(end))]


@pytest.mark.slow
def test_without_its_wandb_process_a_run_ends_and_its_csv_is_whole(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("--config", str(config), "--run", str(run), "--ckpt_path", "auto", "--trainer.max_epochs", "6")
    wait_for(lambda: (run / "metrics.csv").exists() and len(rows(run)) > 3)
    (helper,) = [pid for pid in descendants(process.pid) if "wandb-core" in command_line(pid)]
    os.kill(helper, signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert sum(bool(row["val/accuracy"]) for row in rows(run)) == 6
    assert fit("--run", str(run), "--trainer.max_epochs", "7") == 0
    ids = {folder.name.rpartition("-")[2] for folder in run.glob("wandb/offline-run-*")}
    assert ids == {"run"}, "the run that went on is another to W&B"


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [d for child in children for d in (int(child), *descendants(int(child)))]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


class Killed(SequenceClassification):
    """In a process that is told of it, killed by SIGKILL at some moment of a batch or of what follows.

    Its loss needs the random numbers of Python and numpy, as its dropout those of torch.
    """

    def weighted_loss(self, loss_sum: Tensor, weight: Tensor | int) -> Tensor:
        return super().weighted_loss(loss_sum * (random.random() + np.random.rand()), weight)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if os.environ.get("KILL_IN_BATCH") == str(batch_idx):
            threading.Timer(float(os.environ["KILL_AFTER"]), os.kill, (os.getpid(), signal.SIGKILL)).start()


def kill(draw: random.Random, batches: int) -> dict[str, str]:
    """The environment of a process that is to be killed."""
    return {"KILL_IN_BATCH": str(draw.randrange(batches)), "KILL_AFTER": str(draw.uniform(0.0, 0.03))}


@pytest.mark.slow
def test_twenty_kills_at_random_change_no_bit(short: Path, tmp_path: Path, together: Together) -> None:
    content: dict[str, Any] = yaml.safe_load(short.read_text())
    content["trainer"] |= {"max_epochs": 25, "accumulate_grad_batches": 2}
    average = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {"decay": 0.9}}
    patience = {"monitor": "val/loss", "min_delta": 9.0, "patience": 15}
    stop = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": patience}
    content["trainer"]["callbacks"] += [average, stop]
    content["model"]["class_path"] = "tests.e2e.test_resume.Killed"
    content["checkpoint"] = {"every_n_steps": 2}
    file = tmp_path / "long.yaml"
    file.write_text(yaml.safe_dump(content))
    whole, run = tmp_path / "whole", tmp_path / "killed"
    words = {to: ["fit", "--config", str(file), "--run", str(to), "--ckpt_path", "auto"] for to in (whole, run)}
    draw, stops = random.Random(20), set()
    for _ in range(20):
        assert together([(kill(draw, 10), words[run])]) == [(-signal.SIGKILL, "")]
        stops.add(rows(run)[-1]["step"] if (run / "metrics.csv").exists() else None)
    assert len(stops) > 10
    assert together([({}, words[run]), ({}, words[whole])]) == [(0, ""), (0, "")]
    for name in ("last", "best"):
        assert_same_weights(run / f"checkpoints/{name}.ckpt", whole / f"checkpoints/{name}.ckpt")
    assert load(whole / "checkpoints/last.ckpt")["epoch"] == patience["patience"]
    steps = [row["step"] for row in rows(run) if row["train/loss"]]
    assert len(steps) == len(set(steps))


@pytest.mark.slow
def test_two_processes_share_a_folder_and_killed_go_on_exactly(short: Path, tmp_path: Path, together: Together) -> None:
    """The whole run is started as a user would, the one that is killed as by torchrun."""
    ddp = ["--config", str(short), "--config", str(ROOT / "configs/trainer/ddp.yaml"), "--trainer.accelerator", "cpu"]
    options = [*ddp, "--model", "tests.e2e.test_resume.Killed", "--checkpoint.every_n_steps", "2"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    logger = ["--trainer.logger+", "project.loggers.WandB"]
    process = start(*options, *logger, "--run", str(whole), "--ckpt_path", "auto")
    words = ["fit", *options, "--run", str(run), "--ckpt_path", "auto"]
    draw = random.Random(2)
    for _ in range(3):
        results = together([(place | kill(draw, 5), words) for place in torchrun(1, 2)])
        assert -signal.SIGKILL in [status for status, _ in results], results
    assert load(run / "checkpoints/last.ckpt")["global_step"] > 0
    assert together([(place, words) for place in torchrun(1, 2)]) == [(0, ""), (0, "")]
    assert process.communicate(timeout=120)[1] == "" and process.returncode == 0
    assert_same_weights(run / "checkpoints/last.ckpt", whole / "checkpoints/last.ckpt")
    assert len(list(whole.glob("wandb/offline-run-*"))) == 1
    assert main(["test", "--run", str(whole), "--trainer.devices", "1", "--trainer.strategy", "auto"]) == 0
    (file,) = whole.glob("evaluations/test-*.json")
    alone, both = json.loads(file.read_text()), json.loads((whole / "metrics.json").read_text())
    assert (alone["test/accuracy"], alone["test/macro_f1"]) == (both["test/accuracy"], both["test/macro_f1"])
    assert alone["test/loss"] == pytest.approx(both["test/loss"], rel=1e-4)
