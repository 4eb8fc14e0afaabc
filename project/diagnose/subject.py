"""What is examined: a model and its data, of which every check gets copies, and the real Trainer around them.

All steps run inside `Trainer.fit`, so that precision, clipping, manual optimization and every hook are those of a real
run, for any LightningModule.
"""

import copy
import inspect
import logging
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from project.diagnose.batches import Padding, batch_size, sequences, take
from project.diagnose.survey import Split, survey
from project.diagnose.trace import Activations, Trace

T = TypeVar("T")

SPLITS = ("train", "val", "test")
SMALL_TOKENS = 1024  # of the batches on which the checks train
SMALL_ROWS = 32
MAX_STEPS = 60  # of a short training
HELD_OUT = 12  # small batches to see whether it carries over


class Subject:
    """A model and its data.

    Args:
        model: unchanged; checks get copies.
        datamodule: unchanged; prepared and set up in a copy.
        trainer_options: those of the Trainer that a step depends on, and how long training lasts.
        memory_limit: bytes that training may take; default what is free.
    """

    def __init__(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        trainer_options: Mapping[str, Any] | None = None,
        memory_limit: float | None = None,
    ) -> None:
        self._model = model
        self._datamodule = datamodule
        options = {"accelerator": "auto", "devices": 1, **(trainer_options or {})}
        self.duration = {name: options.pop(name) for name in ("max_epochs", "max_steps") if name in options}
        self.options = options
        self.memory_limit = memory_limit

    @cached_property
    def data(self) -> LightningDataModule:
        """A copy of the data module, prepared and set up."""
        data = copy.deepcopy(self._datamodule)
        data.trainer = self.trainer()
        data.prepare_data()
        for stage in ("fit", "test"):
            data.setup(stage)
        return data

    def model(self) -> LightningModule:
        """A copy as it was given."""
        return copy.deepcopy(self._model)

    def trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        """A quiet Trainer that writes nothing."""
        quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        fixed = {"max_epochs": 1, "limit_val_batches": 0, "logger": Memory(), **quiet}
        return Trainer(callbacks=[_Leniency(), *callbacks], **{**fixed, **self.options, **options})

    def loader(self, split: str) -> Any:
        """The loaders of a split, as Lightning takes them; None if the data module has none."""
        name = f"{split}_dataloader"
        if not is_overridden(name, self.data, LightningDataModule):
            return None
        return getattr(self.data, name)()

    def batches(self, split: str) -> Iterator[Any]:
        """Batches of a split, as the data module makes them."""
        loader = self.loader(split)
        if loader is not None:
            combined = CombinedLoader(loader, "max_size_cycle" if split == "train" else "sequential")
            for batch, _, _ in combined:
                yield batch

    @cached_property
    def train_batches(self) -> list[Any]:
        """The first batches of training."""
        return list(islice(self.batches("train"), 64))

    @cached_property
    def padding(self) -> Padding:
        return Padding(self.train_batches)

    @cached_property
    def surveyed(self) -> dict[str, Split]:
        """What one pass over each split counts."""
        return {name: survey(self.batches(name), self.padding, self.unknown_id) for name in SPLITS}

    @cached_property
    def tokenizer(self) -> Any:
        """Of the data module or the model, whichever has one that decodes."""
        for owner in (self.data, self._model):
            if hasattr(tokenizer := getattr(owner, "tokenizer", None), "decode"):
                return tokenizer
        return None

    @cached_property
    def unknown_id(self) -> int | None:
        """Of transformers' tokenizers, or of those of the tokenizers library."""
        if (found := getattr(self.tokenizer, "unk_token_id", None)) is not None:
            return int(found)
        name = getattr(getattr(self.tokenizer, "model", None), "unk_token", None)
        return self.tokenizer.token_to_id(name) if name else None

    @property
    def unit(self) -> str:
        """What `count` counts."""
        return "tokens" if sequences(self.train_batches[0]) else "examples"

    def count(self, batch: Any) -> int:
        """Real tokens of a batch; examples, where there are no sequences."""
        lengths_B = self.padding.lengths(batch)
        if lengths_B is not None:
            return int(lengths_B.sum())
        sequence = next(iter(sequences(batch).values()), None)
        return batch_size(batch) if sequence is None else sequence.shape[:2].numel()

    @cached_property
    def speed(self) -> float:
        """Tokens, or examples, that a training step takes in a second."""
        batches = [self.train_batches[i % len(self.train_batches)] for i in range(4)]
        clock = _Clock()
        self.fit(batches, clock)
        return sum(map(self.count, batches[1:])) / sum(clock.seconds[1:])  # the first step is slower

    def small(self, batch: Any) -> Any:
        """The first rows of a batch, few enough to train on quickly."""
        lengths = [t.size(1) for t in sequences(batch).values()]
        rows = min(batch_size(batch), max(2, SMALL_TOKENS // max(lengths)) if lengths else SMALL_ROWS)
        return take(batch, range(rows))

    @cached_property
    def chunks(self) -> list[Any]:
        """Small batches, no example twice: those of the first batches of training."""
        small = [self.small(batch) for batch in self.train_batches]
        for batch, first in zip(self.train_batches, list(small), strict=True):  # of few but large batches, what is left
            step, size = batch_size(first), batch_size(batch)
            starts = range(step, size, step) if len(small) < MAX_STEPS + HELD_OUT else ()
            small += [take(batch, range(start, min(start + step, size))) for start in starts]
        counts = list(map(self.count, small))
        return [batch for batch, n in zip(small, counts, strict=True) if 4 * n >= max(counts)]  # not a last, short one

    @cached_property
    def held_out(self) -> list[Any]:
        """Small batches on which no check trains."""
        return self.chunks[: min(HELD_OUT, max(1, len(self.chunks) // 5))]

    @cached_property
    def steps(self) -> list[Any]:
        """Small batches to train on, one a step, repeated where there are few."""
        chunks = self.chunks[len(self.held_out) :] or self.chunks
        return [chunks[i % len(chunks)] for i in range(MAX_STEPS)]

    @property
    def trained(self) -> LightningModule:
        """A copy of the model after the short training."""
        return copy.deepcopy(self.trace.model)

    @cached_property
    def trace(self) -> Trace:
        """A short training, watched."""
        from project.callbacks.gradient_monitor import GradientMonitor
        from project.callbacks.update_monitor import UpdateMonitor

        model = without_noise(self.model())
        before = self.loss(model, self.held_out)
        activations, memory = Activations(MAX_STEPS // 2), Memory()
        monitors = [GradientMonitor(1), UpdateMonitor(MAX_STEPS // 6), activations]
        trained = self.fit(self.steps, Rate(1.0, MAX_STEPS // 10), *monitors, model=model, logger=memory)
        after = self.loss(model, self.held_out)
        return Trace(model, trained.values, before, after, activations.layers, memory.rows)

    def loss(self, model: LightningModule, batches: Sequence[Any]) -> float:
        """Mean training loss over batches of a model that is not trained by this."""
        values = self.fit(batches, Rate(0.0), model=model).values
        sizes = [batch_size(batch) for batch in batches]
        return sum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)

    def fit(
        self, batches: Sequence[Any], *callbacks: Callback, model: LightningModule | None = None, **options: Any
    ) -> "Losses":
        """Train a copy without dropout, or the model given, on these batches, one step each.

        Returns:
            The losses, and with them the trained model.
        """
        model = without_noise(self.model()) if model is None else model
        losses = Losses()
        torch.manual_seed(0)  # randomness that is no dropout module is the same in fits that are compared
        self.trainer(losses, *callbacks, **options).fit(model, datamodule=self.feed(batches))
        # Hooks that build or load weights are through: the same model may be given again.
        model.setup = lambda stage=None: None  # type: ignore[method-assign, misc]
        model.on_fit_start = lambda: None  # type: ignore[method-assign]
        losses.model = model
        return losses

    def feed(self, batches: Sequence[Any] | None) -> LightningDataModule:
        """The data module with its hooks, but these batches for training, if any are given."""
        data = copy.copy(self.data)
        data.prepare_data = lambda: None  # type: ignore[method-assign]
        data.setup = lambda stage=None: None  # type: ignore[method-assign, misc]
        if batches is not None:
            data.train_dataloader = lambda: Batches(batches)  # type: ignore[method-assign]
        return data

    def inside(
        self, batch: Any, look: Callable[["Inside"], T], model: LightningModule | None = None, **options: Any
    ) -> T:
        """What `look` returns, called at the first step of a training in float32, with the batch on its device.

        Without a batch, it is the real training's first step.
        """
        probe = _Probe(look)
        model = self.model() if model is None else model
        with suppress(_Done):
            data = self.feed(None if batch is None else [batch])
            self.trainer(probe, **{"precision": "32-true", **options}).fit(model, datamodule=data)
        result: T = probe.result
        return result


class Inside:
    """A model at work: attached to a trainer, on its device, with a batch there."""

    def __init__(self, trainer: Trainer, model: LightningModule, batch: Any) -> None:
        self.trainer, self.model, self.batch = trainer, model, batch
        self._logged: dict[str, Any] = {}
        model.log = self._log  # type: ignore[assignment]
        model.log_dict = lambda values, **_: self._logged.update(values)  # type: ignore[method-assign]
        if not model.automatic_optimization:  # look at the step, do not take it
            optimizers = [mock.MagicMock() for _ in trainer.optimizers]
            model.optimizers = lambda *_, **__: optimizers if len(optimizers) > 1 else optimizers[0]  # type: ignore
            model.lr_schedulers = lambda *_, **__: mock.MagicMock()  # type: ignore[method-assign]

    @property
    def evaluates(self) -> bool:
        return is_overridden("validation_step", self.model)

    def step(self, batch: Any, name: str = "training_step", seed: int = 0) -> Any:
        """What a step returns. Random numbers are those of the seed."""
        function = getattr(self.model, name)
        arguments = [batch, 0] if "batch_idx" in inspect.signature(function).parameters else [batch]
        torch.manual_seed(seed)
        with self.trainer.precision_plugin.forward_context(), torch.set_grad_enabled(torch.is_grad_enabled()):
            return function(*arguments)

    def outputs(self, batch: Any, name: str = "training_step", seed: int = 0) -> list[tuple[str, Tensor]]:
        """Names and outputs of all modules, in the order in which they finish; then scalars that the step logs."""
        from torchmetrics import Metric

        found: list[tuple[str, Tensor]] = []
        self._logged = {}
        metrics = {id(part) for m in self.model.modules() if isinstance(m, Metric) for part in m.modules()}

        def hook(name: str) -> Any:
            def note(module: Any, arguments: Any, output: Any) -> None:
                found.extend((name, t.detach()) for t in _floats(output))

            return note

        handles = [
            module.register_forward_hook(hook(name or type(module).__name__))
            for name, module in self.model.named_modules()
            if id(module) not in metrics
        ]
        try:
            with torch.set_grad_enabled(not self.model.automatic_optimization):
                returned = self.step(batch, name, seed)
        finally:
            for handle in handles:
                handle.remove()
        scalars = {"loss": returned} if isinstance(returned, Tensor) else returned or {}
        scalars = {k: v for k, v in {**scalars, **self._logged}.items() if isinstance(v, Tensor) and v.numel() == 1}
        return found + [(key, value.detach().reshape(())) for key, value in scalars.items()]

    def _log(self, name: str, value: Any, **_: Any) -> None:
        self._logged[name] = value


def _floats(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.ndim > 0:
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _floats(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _floats(value)


class _Clock(Callback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._start)


class Memory(DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: Mapping[str, float], *_: Any, **__: Any) -> None:
        self.rows.append(dict(metrics))


class Rate(Callback):
    """The optimizers' peak rates times a factor, or one rate for all, whatever the schedule.

    So a few steps show what the optimizer does, though the schedule was made for many.
    """

    def __init__(self, factor: float = 1.0, warmup: int = 1, rate: float | None = None) -> None:
        self.factor, self.warmup, self.rate = factor, warmup, rate

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                rate = peak_rate(group) * self.factor if self.rate is None else self.rate
                group["lr"] = rate * min(1.0, (batch_idx + 1) / self.warmup)


def peak_rate(group: dict[str, Any]) -> float:
    """The rate that an optimizer was made with; of a one-cycle schedule its highest."""
    if "peak_rate" not in group:
        group["peak_rate"] = float(group.get("max_lr", group.get("initial_lr", group["lr"])))
    rate: float = group["peak_rate"]
    return rate


def configured_rate(inside: Inside) -> float:
    """The highest of all parameters."""
    groups = [group for optimizer in inside.trainer.optimizers for group in optimizer.param_groups]
    return max(map(peak_rate, groups), default=0.0)


class Batches:
    """A loader of given batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return map(copy.deepcopy, self.batches)  # a step may write into its batch


class Losses(Callback):
    """Keeps the loss of each training step."""

    model: LightningModule

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.optimizers = list(trainer.optimizers)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        loss = outputs if isinstance(outputs, Tensor) else (outputs or {}).get("loss")
        if loss is None:  # manual optimization may return nothing; then what it logs
            logged = [value for name, value in trainer.callback_metrics.items() if "loss" in name]
            loss = logged[0] if logged else math.nan
        self.values.append(float(loss))


class _Leniency(Callback):
    """Nothing is validated here: a schedule that waits for a validation score goes on without."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for config in trainer.lr_scheduler_configs:
            config.strict = False


class _Done(Exception):  # noqa: N818
    """Leave `Trainer.fit`."""


class _Probe(Callback):
    result: Any = None

    def __init__(self, look: Callable[[Inside], Any]) -> None:
        self.look = look

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.result = self.look(Inside(trainer, pl_module, batch))
        raise _Done


def without_noise(model: LightningModule) -> LightningModule:
    """The model with dropout of every kind and label smoothing set to zero, wherever an attribute says so."""
    for module in model.modules():
        dropout = "drop" in type(module).__name__.lower()
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name == "label_smoothing" or (dropout and name == "p")):
                setattr(module, name, 0.0)
    return model


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random state, log levels and warnings as before; inside, a fixed seed and silence."""
    loggers = [logging.getLogger("project"), *map(logging.getLogger, ("lightning.pytorch", "lightning.fabric"))]
    levels = [logger.level for logger in loggers]
    with isolate_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
