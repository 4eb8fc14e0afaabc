"""What Lightning does not carry over a resume: random state, place in the data, early stop, rows of the CSV."""

import logging
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop

from project.loggers import MetricsCSV

log = logging.getLogger("project")


class Resume(Callback):
    """Makes a run that goes on from a checkpoint what it would have been without the stop, bit by bit on a CPU."""

    def __init__(self) -> None:
        self._random_states: list[dict[str, Any]] = []

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        states: list[dict[str, Any]] = [random_state()]
        if trainer.world_size > 1:
            states *= trainer.world_size
            dist.all_gather_object(states, random_state())
        checkpoint["random_states"] = states

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._random_states = checkpoint.get("random_states", [])
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint.get("callbacks", {}).get(callback.state_key)
            if isinstance(callback, ModelCheckpoint) and state and state["dirpath"] != callback.dirpath:
                move_paths(state, str(callback.dirpath))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:  # under max_steps Lightning takes a finished epoch for one under way
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            _Loop.restarting.fset(loop, False)  # type: ignore[attr-defined]
        if loop.restarting and loop._combined_loader_states_to_load:
            # A schedule that asks for the number of steps makes the loader before its place is known.
            loop._load_combined_loader_states()
            iter(loop._data_fetcher)  # type: ignore[arg-type]
        for stop in trainer.early_stopping_callbacks:
            trainer.should_stop |= stop.wait_count >= stop.patience
        if trainer.ckpt_path and trainer.is_global_zero:
            log.info(f"going on in epoch {trainer.current_epoch + 1}, after step {trainer.global_step}")
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV):
                logger.forget_from(trainer.global_step)
        if len(self._random_states) == trainer.world_size:
            set_random_state(self._random_states[trainer.global_rank])
        self._random_states = []


def move_paths(state: dict[str, Any], folder: str) -> None:
    """Let a ModelCheckpoint find its files after the run's folder was moved."""
    old, state["dirpath"] = state["dirpath"], folder
    for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
        state[name] = state[name].replace(old, folder)
    state["best_k_models"] = {path.replace(old, folder): score for path, score in state["best_k_models"].items()}


def random_state() -> dict[str, Any]:
    """The state of all generators of this process, in types that load with `weights_only`."""
    name, keys, *rest = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
