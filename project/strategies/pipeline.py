"""Pipeline parallelism: each process holds some of the encoder's layers, and the chunks of a batch pass through all.

Notable:
- a task knows nothing of it: its network answers on every process with all logits, and each computes the same loss;
- checkpoints are those of one process, which can go on from them, and it from theirs.

How chunks pass: `project.strategies.gpipe`. Where a network is cut: `project.nn.stages`.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities import move_data_to_device
from torch import nn
from torch.optim import Optimizer

from project.errors import UserError
from project.nn import SequenceClassifier, members_of
from project.nn.stages import cut
from project.strategies.averaging import refuse_averaging
from project.strategies.gpipe import PipelinedForward
from project.strategies.metrics import count_once


class Pipeline(DDPStrategy):
    """As many stages as there are processes, all of which see the same batches.

    Args:
        chunks: how many a batch is cut into, by its rows; with more of them, processes wait less for each other.
        process_group_backend: by default what suits the device.
    """

    def __init__(self, chunks: int = 4, process_group_backend: str | None = None) -> None:
        super().__init__(process_group_backend=process_group_backend)
        if chunks < 1:
            raise ValueError(f"chunks must be positive, got {chunks}")
        self.chunks = chunks
        self._joins: list[Callable[[], None]] = []
        self._groups: dict[Optimizer, list[list[nn.Parameter]]] = {}  # the parameters of all stages

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": 1, "rank": 0}

    def setup(self, trainer: Trainer) -> None:
        """
        Raises:
            UserError: the network cannot be cut into that many stages, or something asks for the whole of it.
        """
        task = self.lightning_module
        assert self.accelerator is not None and task is not None
        refuse_averaging(trainer)
        self.accelerator.setup(trainer)
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise UserError("stages of a pipeline would scale gradients apart: give precision bf16-mixed or 32-true")
        self.precision_plugin.convert_module(task)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
            self._groups = {o: [group["params"] for group in o.param_groups] for o in self.optimizers}
        self._cut(task.get_submodule("network"))
        for optimizer in self._groups:
            self._keep_own(optimizer)
        self.model_to_device()
        self.setup_precision_plugin()
        count_once(task, dist.new_subgroups(1)[0])

    def _cut(self, network: nn.Module) -> None:
        for member in members_of(network):
            if not isinstance(member, SequenceClassifier):
                raise UserError(
                    f"a pipeline cuts project.nn.SequenceClassifier into stages, and no {type(member).__name__}"
                )
            try:
                self._joins.append(cut(member, self.global_rank, self.world_size))
            except ValueError as error:
                raise UserError(str(error)) from error
            member.forward = PipelinedForward(member, self.chunks, self.root_device)  # type: ignore[method-assign]

    def teardown(self) -> None:
        """Put the network together again; after training, with the weights of all stages."""
        task = self.lightning_module
        if task is not None and self._joins:
            state = task.trainer.state
            trained = state.fn == TrainerFn.FITTING and state.status != TrainerStatus.INTERRUPTED
            weights = self.lightning_module_state_dict() if trained else {}
            for member in members_of(task.get_submodule("network")):
                member.__dict__.pop("forward", None)
            while self._joins:
                self._joins.pop()()
            task.load_state_dict(weights, strict=trained)
            self._groups = {}
        super().teardown()

    def clip_gradient_norm(self, parameters: list[nn.Parameter], most: float) -> None:
        """Scale the whole gradient, of which each process has that of its stage, to a norm of `most`."""
        square = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.root_device) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(parameters, most, square.sqrt())

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The weights of all stages."""
        assert self.lightning_module is not None
        return gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of all stages, as the optimizer of one process would have it."""
        optimizer = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        with self._whole(optimizer):
            state = optimizer.state_dict()
        return {**state, "state": gathered(state["state"])}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            with self._whole(optimizer):
                optimizer.load_state_dict(state)

    @contextmanager
    def _whole(self, optimizer: Optimizer) -> Generator[None, None, None]:
        """With the parameters of all stages an optimizer numbers them as in one process."""
        for group, parameters in zip(optimizer.param_groups, self._groups[optimizer], strict=True):
            group["params"] = parameters
        yield
        self._keep_own(optimizer)

    def _keep_own(self, optimizer: Optimizer) -> None:
        assert self.lightning_module is not None
        own = set(self.lightning_module.parameters())
        for group in optimizer.param_groups:
            for parameter in set(group["params"]) - own:
                optimizer.state.pop(parameter, None)
            group["params"] = [parameter for parameter in group["params"] if parameter in own]


def gathered(part: dict[Any, Any]) -> dict[Any, Any]:
    """What all processes hold, each a part, on the CPU of every one."""
    parts: list[dict[Any, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, move_data_to_device(part, torch.device("cpu")))
    return {key: value for part in parts for key, value in part.items()}
