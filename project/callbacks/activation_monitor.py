"""What comes out of each layer in training: mean, spread, zeros, saturation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.distributed.tensor import DTensor

from project.callbacks.monitor import Monitor

# Bounded activations, with the ends of their range.
BOUNDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Hardtanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
}


class ActivationMonitor(Monitor):
    """Logs ``activation_mean/LAYER``, ``_std``, ``_zeros`` and ``_saturated`` of this process' batch, padding included.

    Layers are the modules with parameters of their own, and activation functions, by their first call in a
    step. Compiled code cannot be looked into: in a measured batch it runs once more, uncompiled and without gradient.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        super().__init__(every_n_steps)
        self._values: dict[str, Tensor] = {}
        self._undo: list[Callable[[], object]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.due(trainer):
            self._watch("", pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._leave()
        self.write(trainer, self._values)
        self._values = {}

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._leave()

    def _watch(self, name: str, module: nn.Module) -> None:
        """Hook the layers below; replace the call of a compiled part until it was called once."""
        entry = compiled_entry(module)
        if entry is None:
            self._hook(name, module)
            for child_name, child in module.named_children():
                self._watch(f"{name}.{child_name}".lstrip("."), child)
            return
        compiled = getattr(module, entry)
        restore = partial(setattr, module, entry, compiled)

        def call(*args: Any, **kwargs: Any) -> Any:
            restore()
            before = len(self._undo)
            for below, layer in module.named_modules(prefix=name):
                self._hook(below, layer)
            with unnoticed(module):
                compiled(*args, **kwargs)
            while len(self._undo) > before:
                self._undo.pop()()
            return compiled(*args, **kwargs)

        setattr(module, entry, call)
        self._undo.append(restore)

    def _hook(self, name: str, module: nn.Module) -> None:
        is_activation = type(module).__module__ == nn.ReLU.__module__
        if is_activation or next(module.parameters(recurse=False), None) is not None:
            self._undo.append(module.register_forward_hook(partial(self._note, name)).remove)

    def _note(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        x = output[0] if isinstance(output, tuple) else output
        if isinstance(x, Tensor) and x.is_floating_point() and f"activation_mean/{name}" not in self._values:
            self._values |= {f"activation_{what}/{name}": value for what, value in statistics(module, x).items()}

    def _leave(self) -> None:
        while self._undo:
            self._undo.pop()()


def statistics(module: nn.Module, output: Tensor) -> dict[str, Tensor]:
    """Scalars over all numbers of an output; the saturated are those in the outer 1 % of a bounded range, each side."""
    x = output.detach()
    x = (x.to_local() if isinstance(x, DTensor) else x).float()
    mean = x.mean()
    std = (x - mean).norm() / x.numel() ** 0.5  # torch.std takes one thread, and ten times as long
    values = {"mean": mean, "std": std, "zeros": 1 - x.count_nonzero() / x.numel()}
    if type(module) in BOUNDS:
        low, high = BOUNDS[type(module)]
        margin = (high - low) / 100
        values["saturated"] = ((x < low + margin) | (x > high - margin)).float().mean()
    return values


def compiled_entry(module: nn.Module) -> str | None:
    """The attribute that holds a module's compiled call: of `module.compile()`, or of `torch.compile(module)`."""
    if module._compiled_call_impl is not None:
        return "_compiled_call_impl"
    return "forward" if isinstance(module, OptimizedModule) else None


@contextmanager
def unnoticed(module: nn.Module) -> Iterator[None]:
    """Run a module uncompiled and without gradient; random state and buffers stay as they were."""
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = {parameter.device for parameter in module.parameters() if parameter.device.type != "cpu"}
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # it would hand casts made here, without gradient, to the training step
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(caches)
        for buffer, value in kept:
            buffer.copy_(value)
