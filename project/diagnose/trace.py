"""One short training, watched: what the checks of numbers read."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from project.callbacks.activation_monitor import statistics

# Activation functions that can die or saturate, with the ends of their range.
RECTIFIERS = {F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6, torch.clamp_min}
BOUNDED: dict[Any, tuple[float, float]] = {
    **dict.fromkeys((torch.sigmoid, F.sigmoid, Tensor.sigmoid, F.hardsigmoid), (0.0, 1.0)),
    **dict.fromkeys((torch.tanh, F.tanh, Tensor.tanh, F.hardtanh), (-1.0, 1.0)),
}


@dataclass
class Trace:
    """What a short training showed.

    Args:
        model: as it was after.
        losses: of each step.
        before: mean loss on batches that are not trained on, before.
        after: the same, after.
        layers: mean, std and zeros of each module's output, and dead or saturated share where it has such a function.
        rows: what the monitors wrote, by step.
    """

    model: LightningModule
    losses: list[float]
    before: float
    after: float
    layers: dict[str, dict[str, float]]
    rows: list[dict[str, float]]


class Activations(Callback):
    """Statistics of every module's output in one step, in the order of the forward pass."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.layers: dict[str, dict[str, float]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._stack = ExitStack()
        if batch_idx != self.step:
            return
        self._stack.enter_context(watch := _Functions(self.layers))
        for name, module in pl_module.named_modules():
            if name and next(module.children(), None) is None and next(module.parameters(), None) is not None:
                watch.attach(self._stack, name, module)
            elif name:
                watch.enter(self._stack, name, module)

    def on_train_batch_end(self, *_: Any) -> None:
        self._stack.close()

    def on_exception(self, *_: Any) -> None:
        self._stack.close()


class _Functions(TorchFunctionMode):
    """Sees activation functions, whether they are modules or called by hand."""

    def __init__(self, layers: dict[str, dict[str, float]]) -> None:
        super().__init__()
        self.layers = layers
        self.inside: list[str] = []

    def attach(self, stack: ExitStack, name: str, module: nn.Module) -> None:
        """Note a module's output."""

        def note(module: nn.Module, arguments: Any, output: Any) -> None:
            x = output[0] if isinstance(output, tuple) else output
            if isinstance(x, Tensor) and x.is_floating_point() and name not in self.layers:
                with torch._C.DisableTorchFunction():
                    self.layers[name] = {key: float(value) for key, value in statistics(module, x).items()}

        stack.callback(module.register_forward_hook(note).remove)

    def enter(self, stack: ExitStack, name: str, module: nn.Module) -> None:
        """Know that code runs inside a module."""
        stack.callback(module.register_forward_pre_hook(lambda *_: self.inside.append(name)).remove)
        stack.callback(module.register_forward_hook(lambda *_: self.inside.pop() and None).remove)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        rectifies = function in RECTIFIERS
        if (rectifies or function in BOUNDED) and isinstance(output, Tensor) and output.is_floating_point():
            x = output.detach().float()
            x = x.reshape(-1, x.size(-1)) if x.ndim > 1 else x[None]
            name = f"{self.inside[-1] if self.inside else 'step'}.{function.__name__.strip('_')}"
            values = {"mean": x.mean(), "std": x.std(correction=0), "zeros": (x == 0).float().mean()}
            if rectifies:
                values["dead"] = (x == 0).all(0).float().mean()
            else:
                low, high = BOUNDED[function]
                margin = (high - low) / 100
                values["saturated"] = ((x < low + margin) | (x > high - margin)).float().mean()
            self.layers.setdefault(name, {key: float(value) for key, value in values.items()})
        return output
