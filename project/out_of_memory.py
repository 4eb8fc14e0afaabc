"""Out of memory: what it was used for, and which options would save how much of it."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from project.errors import UserError


def explained(error: Exception, trainer: Trainer) -> Exception:
    """The error itself, or where it is one of memory in training, a `UserError` with the sizes of this model."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    if not isinstance(error, MemoryError) and not any(word in str(error) for word in words):
        return error
    try:
        return UserError("\n".join(advice(trainer)))
    except Exception:  # it is a guess, and must not hide the error
        return error


def advice(trainer: Trainer) -> list[str]:
    """Lines for the user, the option that saves most first. Sizes are of each process."""
    task = trainer.lightning_module
    weights = sum(p.numel() * p.element_size() for p in task.parameters())
    gradients = sum(p.numel() * p.element_size() for p in task.parameters() if p.requires_grad)
    state = sum(size_of(optimizer.state) for optimizer in trainer.optimizers) or 2 * gradients  # Adam's two moments
    activations, checkpointed = activation_sizes(trainer, task)
    budget = next((name for name in ("tokens_per_batch", "batch_size") if hasattr(trainer.datamodule, name)), None)  # type: ignore[attr-defined]
    options = {}
    if budget is not None:
        half, windows = getattr(trainer.datamodule, budget) // 2, 2 * trainer.accumulate_grad_batches  # type: ignore[attr-defined]
        words = f"--data.{budget} {half} --trainer.accumulate_grad_batches {windows}: the same step in smaller batches"
        options[words] = activations / 2
    if checkpointed < activations:
        words = "--model.encoder.activation_checkpointing true: the same gradients, a third more time"
        options[words] = activations - checkpointed
    if trainer.precision == "32-true":
        options["--trainer.precision bf16-mixed: activations of half the size"] = activations / 2
    options["--config configs/trainer/model_parallel.yaml: weights shared out over processes, saved with two"] = (
        weights + gradients + state
    ) / 2
    return [
        f"out of memory: weights take {mib(weights)}, gradients {mib(gradients)}, the optimizer {mib(state)}, "
        f"and what the backward pass needs of a batch about {mib(activations)}. To save about",
        *(f"  {mib(saved)}  {words}" for words, saved in sorted(options.items(), key=lambda o: -o[1])),
    ]


def mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"


def size_of(state: Any) -> int:
    """Bytes of all tensors in nested mappings."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(map(size_of, state.values())) if isinstance(state, dict) else 0


def activation_sizes(trainer: Trainer, task: LightningModule) -> tuple[float, float]:
    """Bytes that a training step keeps for its backward pass, as it is and with its encoders' layers checkpointed.

    Measured on one row of the next batch, and multiplied. Of checkpointed layers one at a time is run again.
    """
    loader: Any = trainer.train_dataloader
    batch = next(iter(loader))
    rows = len(batch["ids"])
    one = {name: value[:1].clone().to(task.device) for name, value in batch.items()}  # not a view of all rows
    encoders: list[Any] = [m for m in task.modules() if hasattr(m, "activation_checkpointing")]

    def measure() -> int:
        with trainer.precision_plugin.forward_context():
            return saved_bytes(lambda: task(one["tokens"], one["padding_mask"]), task)

    before = rows * measure()
    if not encoders or all(m.activation_checkpointing for m in encoders):
        return before, before
    for encoder in encoders:
        encoder.activation_checkpointing = True
    after, layers = rows * measure(), sum(len(encoder.layers) for encoder in encoders)
    return before, after + (before - after) / layers


def saved_bytes(function: Callable[[], object], module: torch.nn.Module) -> int:
    """Bytes that autograd keeps after this call, parameters and buffers left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
        output = function()  # held, so that no storage is freed and counted under another's address
    del output
    return sum(kept.values())
