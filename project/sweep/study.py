"""One study that any number of processes work on, and that outlives all of them.

Notable:
- a trial is locked by the process that trains it, and the lock goes with the process. A trial that is under way in the
  study and locked by nobody was killed: whoever looks next goes on with it, from its last checkpoint;
- which trial comes next is decided under a lock on the whole study, so that no two processes take the same.
"""

import fcntl
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from project.errors import UserError
from project.sweep.space import Space

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=ExperimentalWarning)


def open_storage(name: str) -> BaseStorage:
    """A database by its URL, such as ``sqlite:///sweep.db``; anything else is a journal's file."""
    return RDBStorage(name) if "://" in name else JournalStorage(JournalFileBackend(str(Path(name).absolute())))


def open_study(name: str, storage: str, space: Space, options: dict[str, Any]) -> optuna.Study:
    """The study of this name, made if there is none.

    Args:
        options: what else all trials have in common.

    Raises:
        UserError: there is one of this name that searches for something else.
    """
    common = {"space": space.content, **options}
    sampler = optuna.samplers.TPESampler() if space.method == "bayes" else optuna.samplers.RandomSampler()
    parts: dict[str, Any] = {"storage": open_storage(storage), "sampler": sampler}
    try:
        study = optuna.create_study(study_name=name, direction=space.goal, **parts)
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=name, **parts)
        if study.user_attrs.get("common") != json.loads(json.dumps(common)):
            raise UserError(
                f"the sweep {name} of {storage} was begun with another space or other options: "
                f"give the same, or another name in the space's file"
            ) from None
        return study
    study.set_user_attr("common", common)
    study.set_user_attr("begun", f"{datetime.now():%Y%m%d-%H%M%S}")
    for parameters in space.grid() if space.method == "grid" else ():
        study.enqueue_trial(parameters)
    return study


def pruner(space: dict[str, Any]) -> optuna.pruners.BasePruner:
    """W&B's `early_terminate`: asynchronous successive halving, with epochs for its resource (Li et al. 2020)."""
    given = space.get("early_terminate")
    if given is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(given.get("min_iter", 1), given.get("eta", 3))


@dataclass(frozen=True)
class Claim:
    """A trial that this process is to train, and the lock on it: processes that inherit the file hold it too."""

    number: int
    parameters: dict[str, Any]
    lock: IO[str]


def claim_trial(study: optuna.Study, folder: Path, space: Space, count: int) -> Claim | None:
    """A trial that was killed, or a new one while there are fewer than `count`.

    Args:
        folder: of the sweep, with the locks. Processes that do not share it never take up each other's trials.
    """
    with locked(folder):
        for trial in study.get_trials(states=[TrialState.RUNNING]):
            file = lock_file(folder, trial.number)
            if (lock := try_lock(file) if file.exists() else None) is None:
                continue
            if trial.params.keys() == space.parameters.keys():
                return Claim(trial.number, trial.params, lock)
            lock.close()  # killed while its parameters were drawn
            study.tell(trial.number, state=TrialState.FAIL)
        begun = sum(trial.state != TrialState.WAITING for trial in study.get_trials(deepcopy=False))
        if begun >= count:
            return None
        new = study.ask(space.parameters)
        new_lock = try_lock(lock_file(folder, new.number))
        assert new_lock is not None
        return Claim(new.number, new.params, new_lock)


def lock_file(folder: Path, number: int) -> Path:
    return folder / "locks" / f"{number:04}"


def try_lock(file: Path) -> IO[str] | None:
    stream = file.open("a")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone among all processes that work on the study."""
    with (folder / "locks" / "study").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
