"""Where an export comes from: a checkpoint as a freshly built network in float32, on the CPU, in evaluation.

Never from the live module: that may be compiled, sharded, in half precision (buffers rounded to it), or not the best.
"""

import io
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from project.errors import UserError
from project.export.artifacts import digest
from project.export.interface import Input, Interface
from project.runs import Run, import_class
from project.tasks import Task

PREFIX = "network."


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's content; one that is sharded into a folder is gathered."""
    if not path.is_dir():
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return content
    from lightning.fabric.utilities.load import _load_distributed_checkpoint
    from lightning.pytorch.utilities.consolidate_checkpoint import _format_checkpoint

    return _format_checkpoint(_load_distributed_checkpoint(path))


class Source:
    """The task of a checkpoint, and its network ready to be exported.

    Attributes:
        task: in float32, on the CPU, in evaluation.
        network: its `network`, not compiled.
        spec: how the network is called.
        interface: the same without example tensors.
        epoch, step: where the checkpoint stands in its training.

    Raises:
        UserError: the task cannot be rebuilt from the checkpoint, or does not say how it is exported.
    """

    def __init__(self, run: Run, checkpoint: Path) -> None:
        import_class(run.config["model"]["class_path"])  # Lightning loads only classes that are imported
        content = read_checkpoint(checkpoint)
        self.epoch, self.step = int(content["epoch"]), int(content["global_step"])
        # torch.compile(module) puts `_orig_mod.` into the names of weights.
        state = {name.replace("_orig_mod.", ""): value for name, value in content["state_dict"].items()}
        self.task = _rebuild({**content, "state_dict": state, "optimizer_states": [], "lr_schedulers": []}, checkpoint)
        self.network = self.task.network = uncompiled(self.task.network)
        self._state = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
        self.network.load_state_dict(self._state)
        self.task.requires_grad_(False).float().eval()
        self.spec = self.task.export_spec()
        self.interface = Interface(
            inputs=[
                Input(
                    name,
                    dtype=str(example.dtype).removeprefix("torch."),
                    shape=[self.spec.dynamic.get(name, {}).get(i, size) for i, size in enumerate(example.shape)],
                    num_ids=self.spec.num_ids.get(name),
                )
                for name, example in self.spec.inputs.items()
            ],
            outputs=self.spec.outputs,
            max_sizes=self.spec.max_sizes,
        )

    @cached_property
    def program(self) -> ExportedProgram:
        """The one torch.export, which every format but TorchScript comes from."""
        return self.export(self.network)

    def export(self, network: nn.Module) -> ExportedProgram:
        """Like `program`, of another version of the network."""
        spec = self.spec
        dimensions = {
            name: Dim(name, max=spec.max_sizes.get(name))
            for name in sorted({name for names in spec.dynamic.values() for name in names.values()})
        }
        shapes = tuple({i: dimensions[d] for i, d in spec.dynamic.get(name, {}).items()} for name in spec.inputs)
        with torch.no_grad():
            return torch.export.export(network, tuple(self.examples), dynamic_shapes=shapes)

    @property
    def examples(self) -> list[Tensor]:
        """Example inputs, in order."""
        return list(self.spec.inputs.values())

    @cached_property
    def weights(self) -> dict[str, str]:
        """Digest of each parameter in the checkpoint that evaluation uses, by name: what a file has to contain."""
        names = self.program.graph_signature.inputs_to_parameters
        used = [names[node.name] for node in self.program.graph.nodes if node.name in names and node.users]
        return {name: digest(self._state[name].float().numpy()) for name in used}

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Outputs of the eager network."""
        with torch.inference_mode():
            outputs = self.network(*inputs)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def uncompiled(module: nn.Module) -> nn.Module:
    """Undo torch.compile, in any part of the module and either way: wrapped, or in place."""
    module = getattr(module, "_orig_mod", module)
    module.__dict__.pop("_compiled_call_impl", None)
    for name, child in module.named_children():
        setattr(module, name, uncompiled(child))
    return module


def _rebuild(content: dict[str, Any], checkpoint: Path) -> Task:
    """The task, as its hyperparameters say; of its weights those whose names fit."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that do not fit
            task = LightningModule.load_from_checkpoint(buffer, map_location="cpu", weights_only=True, strict=False)
    except TypeError as error:
        raise UserError(
            f"{checkpoint} does not say how its task is built; export needs a run of `python -m project fit` ({error})"
        ) from None
    if not isinstance(task, Task):
        raise UserError(f"{type(task).__name__} cannot be exported: it is no project.tasks.Task")
    return task
