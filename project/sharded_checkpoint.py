"""Checkpoints to which each process wrote its own part: a folder, as torch.distributed.checkpoint makes it.

    .metadata        which part of which tensor lies where
    __0_0.distcp     the parts that one process wrote
    meta.pt          what is no tensor, and small: loops, callbacks, options of the optimizers

Notable:
- torch would unpickle ``.metadata``; here it may name nothing but the classes that it is made of;
- any number of processes can read what any other number wrote, one process too.
"""

import os
import pickle
import shutil
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_parts
from torch.distributed.checkpoint.state_dict_saver import save as write_parts

from project.errors import UserError, first_line
from project.runs import damage, remove

REST = "meta.pt"
GROUPS = "optimizer_groups"  # in it: the options of each optimizer's groups, and the names of their parameters
METADATA, STORAGE = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"


class DataUnpickler(pickle.Unpickler):
    """Builds what a checkpoint's metadata is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "pathlib":
            return PurePath
        if module in ("torch", "torch.serialization", METADATA, STORAGE):
            found = super().find_class(module, name)
            own = isinstance(found, type) and found.__module__ in (METADATA, STORAGE)
            if own or found is torch.Size or name == "_get_layout" or isinstance(found, torch.dtype):
                return found
        raise pickle.UnpicklingError(f"its metadata asks for {module}.{name}, which is no part of a checkpoint")


class Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata: Metadata = DataUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def save(checkpoint: dict[str, Any], path: Path, is_global_zero: bool) -> None:
    """Write whole or not at all; by all processes together.

    Args:
        checkpoint: as Lightning makes it, weights and states of optimizers as DTensors by name.
        path: of a folder, which takes the place of what is there.
        is_global_zero: whether this process writes what all have.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    rest = dict(checkpoint)
    optimizers = rest.pop("optimizer_states", [])
    tensors = {"state_dict": rest.pop("state_dict")} | {f"optimizer_{i}": o["state"] for i, o in enumerate(optimizers)}
    rest[GROUPS] = [optimizer["param_groups"] for optimizer in optimizers]
    partial = path.with_name(path.name + ".partial")
    try:
        if is_global_zero:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            with (partial / REST).open("wb") as file:
                torch.save(rest, file)
                file.flush()
                os.fsync(file.fileno())
        write_parts(tensors, checkpoint_id=partial)  # begins when all are here, and ends when all have written
        if is_global_zero:
            replace(partial, path)
    except (OSError, RuntimeError, CheckpointException) as error:
        kept = "; the one before it is whole" if path.exists() else ""
        raise UserError(f"cannot write the checkpoint {path}: {first_line(error)}{kept}") from error


def replace(new: Path, path: Path) -> None:
    """Give a checkpoint the name of another, a folder or a file, which for a moment nothing has."""
    old = path.with_name(path.name + ".old")
    remove(old)
    if path.exists():
        path.rename(old)
    new.rename(path)
    remove(old)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's whole content in this process, in the form of one that is a file."""
    reader = Reader(path)
    metadata = reader.read_metadata()
    stored = {k: v for k, v in metadata.state_dict_metadata.items() if isinstance(v, TensorStorageMetadata)}
    tensors: dict[str, Any] = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in stored.items()}
    read_parts(tensors, storage_reader=reader, no_dist=True)
    content: dict[str, Any] = torch.load(path / REST, map_location="cpu", weights_only=True)
    for key, tensor in tensors.items():
        *parents, name = metadata.planner_data[key]
        place = content
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = tensor
    content["optimizer_states"] = [
        by_number(content.pop(f"optimizer_{i}", {}), groups) for i, groups in enumerate(content.pop(GROUPS, []))
    ]
    return content


def by_number(state: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of an optimizer as it gives it in one process: parameters counted, in the order of the groups.

    Args:
        state: by the names of parameters.
        groups: options of each group, with those names as `params`.
    """
    numbers = {name: number for number, name in enumerate(names_of(groups))}
    return {
        "state": {numbers[name]: values for name, values in state.items()},
        "param_groups": [{**group, "params": [numbers[name] for name in group["params"]]} for group in groups],
    }


def by_name(numbered: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The inverse, for an optimizer of these groups."""
    names = names_of(groups)
    return {
        "state": {names[number]: values for number, values in numbered["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in numbered["param_groups"]
        ],
    }


def names_of(groups: list[dict[str, Any]]) -> list[str]:
    return [name for group in groups for name in group["params"]]


def as_file(path: Path) -> BytesIO:
    """What a file would hold, for functions that read nothing else."""
    file = BytesIO()
    torch.save(load(path), file)
    file.seek(0)
    return file


def damage_of_parts(path: Path) -> str | None:
    """What is wrong with a folder; None if nothing is."""
    try:
        places = list(Reader(path).read_metadata().storage_data.values())
        ends = {place.relative_path: 0 for place in places}
        for place in places:
            ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
        short = [name for name, end in ends.items() if (path / name).stat().st_size < end]
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError) as error:
        return str(error)
    return f"{short[0]} is cut off" if short else damage(path / REST)


def weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, a file or a folder, to be compared by name and shape; nothing is read yet."""
    if path.is_file():
        content: dict[str, torch.Tensor] = torch.load(path, weights_only=True, mmap=True)["state_dict"]
        return content
    metadata = Reader(path).read_metadata()
    return {
        metadata.planner_data[key][1]: torch.empty(stored.size, device="meta")
        for key, stored in metadata.state_dict_metadata.items()
        if metadata.planner_data[key][0] == "state_dict" and isinstance(stored, TensorStorageMetadata)
    }
