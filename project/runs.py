"""One run is one folder: ``runs/<name>/<id>/``.

config.yaml       as resolved; fit takes it as it is
provenance.json   command, git commit, package versions
data.json         size and hash of each split
tokenizer.json    and labels.json: what prediction needs of the data
checkpoints/      best.ckpt, last.ckpt, and while it trains previous.ckpt, the one before
metrics.csv       every logged value
metrics.json      the final scores
training.json     what training took: time, steps, parameters, memory
README.md         the model card, with confusion.png
wandb/  export/
"""

import fcntl
import json
import logging
import os
import secrets
import shutil
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TextIO

from project.errors import UserError, first_line
from project.files import read_yaml, write_whole

log = logging.getLogger("project")

# Names the current run to the processes that a strategy starts.
ENVIRONMENT_VARIABLE = "PROJECT_RUN_FOLDER"

_locks: dict[Path, TextIO] = {}  # kept open: a lock goes when its file is closed


@dataclass(frozen=True)
class Run:
    folder: Path

    @classmethod
    def create(cls, name: str, root: Path = Path("runs")) -> "Run":
        """Make a new folder. Its id is a time and a random part, so that two started at once do not meet.

        In a sweep of W&B it is the id that W&B has given the run.

        Raises:
            UserError: the name leads out of `root`, or the folder cannot be written.
        """
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"the run's name {name!r} must be that of a folder in {root}; see --name")
        id = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
        while True:
            folder = root / name / (id or f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
            if not folder.exists():
                return cls.begin(folder)
            id = None

    @classmethod
    def begin(cls, folder: Path) -> "Run":
        """Make this folder, and see that it can be written.

        Raises:
            UserError: it cannot.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / "probe"
            probe.write_bytes(b"\0" * 2**20)
            probe.unlink()
        except OSError as error:
            raise UserError(f"cannot write the run folder {folder}: {error.strerror}; see --runs_dir") from error
        return cls(folder)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """The run that `path` names: its folder, or anything inside it, such as a checkpoint.

        Raises:
            UserError: there is no run there.
        """
        path = Path(path)
        for folder in (path, *path.parents):
            if (folder / "config.yaml").is_file():
                return cls(folder)
        if not path.exists():
            raise UserError(f"{path.absolute()} does not exist; runs are named by their folder, runs/<name>/<id>")
        candidates = sorted(path.glob("**/config.yaml"))
        hint = f"; did you mean {candidates[-1].parent}?" if candidates else ""
        raise UserError(f"{path} is no run: it holds no config.yaml{hint}")

    @classmethod
    def current(cls) -> "Run | None":
        """The run of this process and of those it starts, while one is under way."""
        folder = os.environ.get(ENVIRONMENT_VARIABLE)
        return cls(Path(folder)) if folder else None

    def make_current(self) -> None:
        os.environ[ENVIRONMENT_VARIABLE] = str(self.folder.absolute())

    def lock(self) -> None:
        """Let no other process train in this folder as long as this one lives.

        Raises:
            UserError: one does.
        """
        folder = self.folder.resolve()
        if folder in _locks:  # closing a second file would give up the lock of the first
            return
        file = (folder / ".lock").open("a")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise UserError(f"{self.folder}: another process is training this run; wait for it, or end it") from error
        except OSError:  # a file system without locks
            return
        _locks[folder] = file

    @staticmethod
    def end() -> None:
        """Let this process have no current run."""
        os.environ.pop(ENVIRONMENT_VARIABLE, None)

    def discard_if_untrained(self) -> None:
        """Remove the folder of a run that failed before its first value was logged or checkpoint written."""
        if not (self.folder / "metrics.csv").exists() and not self.checkpoints.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            links = self.folder.parent / "wandb"
            for link in links.glob("*"):
                if not link.exists():
                    link.unlink()
            for folder in (links, self.folder.parent):
                with suppress(OSError):  # others are in it
                    folder.rmdir()
            self.end()

    @property
    def name(self) -> str:
        return self.folder.absolute().parent.name

    @property
    def id(self) -> str:
        return self.folder.absolute().name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def config_file(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def config(self) -> dict[str, Any]:
        return read_yaml(self.config_file)

    def checkpoint(self, name: str = "best") -> Path:
        """Path of the checkpoint ``best`` or ``last``.

        Raises:
            UserError: the run has none.
        """
        path = self.checkpoints / f"{name}.ckpt"
        if not is_checkpoint(path):
            there = ", ".join(sorted(p.name for p in self.checkpoints.glob("*.ckpt"))) or "none"
            raise UserError(f"{self.folder} has no checkpoint {path.name} (there: {there}); did its training finish?")
        return path

    @property
    def has_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.config_file.is_file() and any(self.checkpoints.glob("*.ckpt"))

    def resume_point(self) -> Path:
        """``last.ckpt``; where that is missing or damaged, ``previous.ckpt`` takes its place.

        Raises:
            UserError: there is no whole checkpoint to go on from.
        """
        last, previous = (self.checkpoints / f"{name}.ckpt" for name in ("last", "previous"))
        reason = damage(last) if last.exists() else None
        if reason or (previous.exists() and not last.exists()):
            if not previous.exists() or damage(previous):
                raise UserError(f"{last} is damaged ({reason}), and there is no whole {previous.name} to go on from")
            log.warning(f"{last} is damaged or missing; going on from the checkpoint before it")
            remove(last)
            previous.rename(last)
        return self.checkpoint("last")

    def data_assets(self) -> dict[str, Any]:
        """Arguments that make a data module use this run's tokenizer and labels instead of making its own."""
        assets: dict[str, Any] = {}
        if (file := self.folder / "tokenizer.json").is_file():
            assets["tokenizer"] = str(file)
        if (file := self.folder / "labels.json").is_file():
            assets["labels"] = json.loads(file.read_text(encoding="utf-8"))
        return assets

    def load_task(self, checkpoint: Path | None = None) -> Any:
        """The run's task on the CPU, in evaluation mode, with the weights of a checkpoint, by default the best.

        Raises:
            UserError: the run has no such checkpoint, or it cannot be read.
        """
        from lightning.pytorch import LightningModule

        checkpoint = checkpoint or self.checkpoint()
        refuse_damaged(checkpoint)
        import_class(self.config["model"]["class_path"])  # Lightning loads only classes that are imported
        try:
            source: Any = checkpoint
            if checkpoint.is_dir():
                from project.sharded_checkpoint import as_file

                source = as_file(checkpoint)
            return LightningModule.load_from_checkpoint(source, map_location="cpu", weights_only=True).eval()
        except (OSError, RuntimeError, KeyError, EOFError, UnpicklingError) as error:
            raise UserError(f"{checkpoint} cannot be loaded: {first_line(error)}") from error

    def keep(self, name: str) -> None:
        """Give a file that is to be written anew the first free name of ``name-1``, ``name-2``, ..."""
        file = self.folder / name
        if file.exists():
            number = next(n for n in count(1) if not file.with_stem(f"{file.stem}-{n}").exists())
            file.rename(file.with_stem(f"{file.stem}-{number}"))

    def write_evaluation(self, verb: str, scores: dict[str, float]) -> None:
        """Scores of a later ``validate`` or ``test``, beside those of the training, which stay."""
        (self.folder / "evaluations").mkdir(exist_ok=True)
        self.write_json(f"evaluations/{verb}-{datetime.now():%Y%m%d-%H%M%S-%f}.json", scores)

    def write_json(self, name: str, content: Any) -> None:
        """Write whole or not at all."""
        write_whole(self.folder / name, json.dumps(content, indent=2, sort_keys=True) + "\n")


def run_and_checkpoint(folder: str | None, checkpoint: str | None) -> tuple[Run, Path]:
    """What ``--run`` and ``--ckpt_path`` stand for: of the run ``best``, by default, or ``last``, or a path.

    Raises:
        UserError: there is no such run or checkpoint.
    """
    if checkpoint in (None, "best", "last"):
        if folder is None:
            raise UserError(f"--ckpt_path {checkpoint} needs --run runs/<name>/<id>")
        run = Run.open(folder)
        return run, run.checkpoint(checkpoint or "best")
    path = Path(str(checkpoint))
    if not is_checkpoint(path):
        raise UserError(f"there is no checkpoint {path}")
    return Run.open(folder or path), path


def import_class(class_path: str) -> Any:
    """The class that a configuration names by its import path."""
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name)


def is_checkpoint(path: Path) -> bool:
    """Whether there is a file, or a folder to which several processes wrote their parts."""
    return path.is_file() or (path / "meta.pt").is_file()


def remove(checkpoint: Path) -> None:
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint)
    else:
        checkpoint.unlink(missing_ok=True)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, by its checksums; None if nothing is."""
    if path.is_dir():
        from project.sharded_checkpoint import damage_of_parts

        return damage_of_parts(path)
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        return str(error)
    return f"{bad} has a wrong checksum" if bad else None


def refuse_damaged(checkpoint: Path) -> None:
    """
    Raises:
        UserError: its checksums are not those of its content, or it is no checkpoint.
    """
    if reason := damage(checkpoint):
        raise UserError(f"{checkpoint} is damaged or no checkpoint: {reason}")
