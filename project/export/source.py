"""Where an export comes from: a checkpoint as a freshly built network in float32, on the CPU, in evaluation.

Never from the live module: that may be compiled, sharded, in half precision (buffers rounded to it), or not the best.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import instantiate_module
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from project.checkpoint_io import read_checkpoint
from project.errors import UserError
from project.export.artifacts import digest
from project.export.interface import Input, Interface
from project.runs import Run, import_class
from project.tasks import Task


class Source:
    """The task of a checkpoint, and its network ready to be exported.

    Attributes:
        state: the checkpoint's weights, by name.
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
        self.state = {name.replace("_orig_mod.", ""): value for name, value in content["state_dict"].items()}
        self.task = rebuild(content.get("hyper_parameters", {}), checkpoint)
        self.task.on_load_checkpoint({**content, "state_dict": self.state})
        self.task.load_state_dict(self.state)
        self.task.requires_grad_(False).float().eval()
        self.network = self.task.network
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
        return {name: digest(self.state["network." + name].float().numpy()) for name in used}

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


def rebuild(hyper_parameters: dict[str, Any], checkpoint: Path) -> Task:
    """The task, as its hyperparameters say, with new weights."""
    hyper_parameters = dict(hyper_parameters)
    if hyper_parameters.pop("_instantiator", None) is None:
        raise UserError(
            f"{checkpoint} does not say how its task is built; export needs a run of `python -m project fit`"
        )
    task = instantiate_module(LightningModule, hyper_parameters)
    if not isinstance(task, Task):
        raise UserError(f"{type(task).__name__} cannot be exported: it is no project.tasks.Task")
    task.configure_model()
    uncompiled(task)
    return task
