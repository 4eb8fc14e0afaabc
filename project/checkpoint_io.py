"""Checkpoints that are whole or not there, whenever the process, the machine or the disk stops."""

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from project import sharded_checkpoint
from project.errors import UserError, first_line
from project.runs import refuse_damaged


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's whole content: of a file lazily, of a folder gathered.

    Raises:
        UserError: it is damaged, or none.
    """
    try:
        refuse_damaged(path)
        if path.is_dir():
            return sharded_checkpoint.load(path)
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise UserError(f"{path} is damaged or no checkpoint: {first_line(error)}") from error
    return checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the place, waits for the disk, then renames. A checkpoint of that name stays until then.

    Reads folders too, to which several processes wrote their parts.
    """

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """
        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            if path.is_dir():
                sharded_checkpoint.replace(partial, path)
            else:
                partial.replace(path)
        except (OSError, RuntimeError) as error:  # torch's own words for a failed write are a RuntimeError
            cause = error if isinstance(error, OSError) else error.__context__
            reason = cause.strerror if isinstance(cause, OSError) else first_line(error)
            kept = "; the one before it is whole" if path.exists() else ""
            raise UserError(f"cannot write the checkpoint {path}: {reason}{kept}") from error
        finally:
            partial.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name itself
        finally:
            os.close(folder)
