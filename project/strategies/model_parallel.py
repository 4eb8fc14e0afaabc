"""FSDP2 and tensor parallelism with the project's checkpoints and metrics. What lies where: `project.nn.sharding`."""

from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from project import sharded_checkpoint
from project.sharded_checkpoint import by_name, by_number
from project.strategies.averaging import refuse_averaging
from project.strategies.metrics import count_once
from project.tasks.base import refuse_other_weights


class ModelParallel(ModelParallelStrategy):
    """Lightning's strategy of that name; the task shares out its network in `configure_model`.

    Args:
        data_parallel_size: processes that see other batches and share every weight; "auto": the number of nodes.
        tensor_parallel_size: processes that see the same batch and share heads and feed-forward; "auto": a node's.
        save_distributed_checkpoint: write checkpoints as folders, to which each process writes its part, instead of
            files that process zero gathers. All verbs read both, in any number of processes.
        process_group_backend: by default what suits the device.
    """

    def __init__(
        self,
        data_parallel_size: Literal["auto"] | int = "auto",
        tensor_parallel_size: Literal["auto"] | int = "auto",
        save_distributed_checkpoint: bool = False,
        process_group_backend: str | None = None,
    ) -> None:
        super().__init__(data_parallel_size, tensor_parallel_size, save_distributed_checkpoint, process_group_backend)

    def setup(self, trainer: Trainer) -> None:
        refuse_averaging(trainer)
        super().setup(trainer)
        count_once(trainer.lightning_module, self.device_mesh["data_parallel"].get_group())

    def clip_gradient_norm(self, parameters: list[nn.Parameter], most: float) -> None:
        """Scale the whole gradient to a norm of `most`.

        It lies on meshes of one and of two dimensions, which torch keeps apart.
        """
        meshes: dict[Any, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                meshes.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        norms: list[Any] = [
            nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]) for group in meshes.values()
        ]
        norm = torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]).norm()
        for group in meshes.values():
            nn.utils.clip_grads_with_norm_(group, most, norm)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any = None) -> None:
        path = Path(self.broadcast(filepath))
        if self._save_distributed_checkpoint:
            sharded_checkpoint.save(checkpoint, path, self.is_global_zero)
        elif self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Whole on process zero, as in a training with one process; or, to be sharded, by name."""
        assert self.lightning_module is not None
        whole = not self._save_distributed_checkpoint
        optimizer = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        options = StateDictOptions(full_state_dict=whole, cpu_offload=True)
        named: dict[str, Any] = get_optimizer_state_dict(self.lightning_module, optimizer, options=options)
        return by_number(named["state"], named["param_groups"]) if whole and self.is_global_zero else named

    def load_checkpoint(self, checkpoint_path: _PATH, weights_only: bool | None = True) -> dict[str, Any]:
        """
        Raises:
            UserError: the checkpoint is of another architecture.
        """
        path, model = Path(self.broadcast(checkpoint_path)), self.lightning_module
        assert model is not None
        refuse_other_weights(model.state_dict(), sharded_checkpoint.weights(path))
        named: list[dict[str, Any]] = [get_optimizer_state_dict(model, optimizer) for optimizer in self.optimizers]
        if whole := path.is_file():
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            weights, numbers = content.pop("state_dict"), content.pop("optimizer_states", [])
            named = [by_name(state, mine["param_groups"]) for mine, state in zip(named, numbers, strict=False)]
        else:
            content = torch.load(path / sharded_checkpoint.REST, map_location="cpu", weights_only=True)
            weights = get_model_state_dict(model)
            states = {f"optimizer_{i}": state["state"] for i, state in enumerate(named)}
            dcp.state_dict_loader.load(
                {"state_dict": weights, **states}, storage_reader=sharded_checkpoint.Reader(path)
            )
            for state, groups in zip(named, content.pop(sharded_checkpoint.GROUPS), strict=False):
                state["param_groups"] = groups
        options = StateDictOptions(full_state_dict=whole)
        set_model_state_dict(model, weights, options=options)
        for optimizer, state in zip(self.optimizers, named, strict=True):
            set_optimizer_state_dict(model, optimizer, state, options=options)
        return content
