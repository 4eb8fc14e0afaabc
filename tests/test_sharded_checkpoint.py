"""Checkpoints in folders: read as if they were files, without running what is in them, and never half there."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from project.checkpoint_io import AtomicCheckpointIO, read_checkpoint
from project.errors import UserError
from project.runs import damage, is_checkpoint
from project.sharded_checkpoint import as_file, by_name, by_number, save, weights

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [{"params": [p for p in model.parameters() if p.ndim == 2]}, {"params": [model[1].bias, model[0].bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


GROUPS = [{"params": ["0.weight", "1.weight"]}, {"params": ["1.bias", "0.bias"]}]


@pytest.fixture
def content(trained: tuple[nn.Module, torch.optim.Optimizer]) -> dict[str, Any]:
    """As a training in one process saves it."""
    model, optimizer = trained
    states = [optimizer.state_dict()]
    return {"state_dict": dict(model.state_dict()), "optimizer_states": states, "epoch": 3, "loops": {"step": [1, 2]}}


@pytest.fixture
def folder(content: dict[str, Any], tmp_path: Path) -> Path:
    named = {**content, "optimizer_states": [by_name(content["optimizer_states"][0], GROUPS)]}
    save(named, tmp_path / "best.ckpt", is_global_zero=True)
    return tmp_path / "best.ckpt"


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_content_is_that_of_a_file(content: dict[str, Any], folder: Path) -> None:
    assert is_checkpoint(folder)
    for loaded in (
        read_checkpoint(folder),
        AtomicCheckpointIO().load_checkpoint(folder, weights_only=True),
        torch.load(as_file(folder), weights_only=True),
    ):
        assert loaded.keys() == content.keys()
        assert_same(loaded, content)
    assert {k: v.shape for k, v in weights(folder).items()} == {k: v.shape for k, v in content["state_dict"].items()}


def test_numbers_are_those_of_the_groups(content: dict[str, Any]) -> None:
    named = by_name(content["optimizer_states"][0], GROUPS)
    assert_same(named["state"]["1.bias"], content["optimizer_states"][0]["state"][2])
    assert [group["params"] for group in named["param_groups"]] == [group["params"] for group in GROUPS]
    assert_same(by_number(named["state"], named["param_groups"]), content["optimizer_states"][0])


def test_it_takes_the_place_of_any_other(content: dict[str, Any], folder: Path) -> None:
    named = {**content, "optimizer_states": [], "epoch": 4}
    save(named, folder, is_global_zero=True)
    assert read_checkpoint(folder)["epoch"] == 4
    shutil.rmtree(folder)
    folder.write_bytes(b"a file")
    save(named, folder, is_global_zero=True)
    assert read_checkpoint(folder)["epoch"] == 4
    assert [path.name for path in folder.parent.iterdir()] == ["best.ckpt"]


def test_damage(folder: Path) -> None:
    assert damage(folder) is None
    (part,) = folder.glob("*.distcp")
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=rf"best.ckpt is damaged or no checkpoint: {part.name} is cut off"):
        read_checkpoint(folder)
    part.unlink()
    with pytest.raises(UserError, match=part.name):
        read_checkpoint(folder)
    part.write_bytes(whole)
    (folder / "meta.pt").write_bytes((folder / "meta.pt").read_bytes()[:100])
    with pytest.raises(UserError, match=r"best.ckpt is damaged or no checkpoint"):
        read_checkpoint(folder)


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_metadata_cannot_run_anything(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UserError, match=r"its metadata asks for posix.mkdir, which is no part of a checkpoint"):
        read_checkpoint(folder)
    assert not Path("harm").exists()


def test_metadata_imports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "harmful.py").write_text("from pathlib import Path; Path('harm').mkdir()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (folder / ".metadata").write_bytes(b"charmful\n_StorageInfo\n.")
    with pytest.raises(UserError, match=r"its metadata asks for harmful._StorageInfo"):
        read_checkpoint(folder)
    assert not Path("harm").exists()


def test_a_full_disk_leaves_the_one_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("project.sharded_checkpoint.write_parts", full)
    with pytest.raises(UserError, match=r"cannot write .*No space left on device; the one before it is whole"):
        save({"state_dict": {}, "epoch": 9}, folder, is_global_zero=True)
    assert read_checkpoint(folder)["epoch"] == 3
