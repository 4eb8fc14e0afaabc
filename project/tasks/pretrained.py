"""Start from the embedding and the encoder of another run, and keep what it learned."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from project.checkpoint_io import read_checkpoint
from project.errors import UserError
from project.nn import members_of
from project.runs import Run, is_checkpoint
from project.tasks.base import Task

PARTS = ("embedding.", "encoder.")
# settings of an encoder that leave the meaning of its weights as it is
FREE = {"activation_checkpointing", "dropout", "max_length"}


def load_pretrained(task: Task, source: str, tokenizer: str | None = None) -> None:
    """Copy embedding and encoder of a run's best checkpoint, or of the checkpoint given; of an ensemble into each.

    Args:
        task: whose network is built; the rest of it stays as it is.
        source: a run's folder or a checkpoint in it.
        tokenizer: that of the data as JSON, to be compared with the run's.

    Raises:
        UserError: no such run or checkpoint, or encoder, weights or tokenizer differ; the message names the first.
    """
    run = Run.open(source)
    file = Path(source) if is_checkpoint(Path(source)) else run.checkpoint()
    checkpoint = read_checkpoint(file)
    compare_encoders(dict(task.hparams).get("encoder"), checkpoint["hyper_parameters"].get("encoder"), str(file))
    if tokenizer is not None and (theirs := run.folder / "tokenizer.json").is_file():
        compare_tokenizers(json.loads(tokenizer), json.loads(theirs.read_text(encoding="utf-8")), str(theirs))
    all_weights = {name.removeprefix("network."): value for name, value in checkpoint["state_dict"].items()}
    weights = {name: value for name, value in all_weights.items() if name.startswith(PARTS)}
    for network in members_of(task.network):
        mine = {name: value for name, value in network.state_dict().items() if name.startswith(PARTS)}
        for name in sorted(mine.keys() | weights.keys()):
            here = tuple(mine[name].shape) if name in mine else "not there"
            there = tuple(weights[name].shape) if name in weights else "not there"
            if here != there:
                raise UserError(f"pretrained weights do not fit: network.{name} is {here} here, {there} in {file}")
        network.load_state_dict(weights, strict=False)


def compare_encoders(here: Any, there: Any, where: str) -> None:
    """Settings that no shape shows: heads, activation, order of norms, positions."""
    if not here or not there:  # built by hand: its weights alone can be compared
        return
    if here["class_path"] != there["class_path"]:
        raise UserError(f"model.encoder is {here['class_path']} here, {there['class_path']} in {where}")
    mine, theirs = dict(here.get("init_args") or {}), dict(there.get("init_args") or {})
    for name in sorted((mine.keys() | theirs.keys()) - FREE):
        if mine.get(name) != theirs.get(name):
            raise UserError(f"model.encoder.{name} is {mine.get(name)!r} here, {theirs.get(name)!r} in {where}")


def compare_tokenizers(here: dict[str, Any], there: dict[str, Any], where: str) -> None:
    """All but the length at which texts are cut."""
    free = {"truncation", "padding"}
    for part in sorted((here.keys() | there.keys()) - free):
        if here.get(part) != there.get(part):
            mine, theirs = (tokenizer.get(part) for tokenizer in (here, there))
            detail = ""
            if part == "model" and mine and theirs:
                ids = mine["vocab"], theirs["vocab"]
                known = [token for token in ids[0] if ids[1].get(token) == ids[0][token]]
                detail = f": {len(known)} of its {len(ids[0])} tokens have the same id"
            raise UserError(f"the data's tokenizer is not that of {where}: they differ in {part!r}{detail}")


def layer_rates(network: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """Factor on the learning rate of each parameter below the head: `decay` for each layer that lies above it.

    The last of L layers has `decay`, the first `decay` ** L, the embedding `decay` ** (L + 1); what is neither has 1
    (Howard and Ruder, ULMFiT, 2018).
    """
    rates: dict[nn.Parameter, float] = {}
    for member in members_of(network):
        layers = list(member.get_submodule("encoder.layers").children())
        rates |= {p: decay ** (len(layers) + 1) for p in member.get_submodule("embedding").parameters()}
        for depth, layer in enumerate(reversed(layers), 1):
            rates |= {p: decay**depth for p in layer.parameters()}
    return rates
