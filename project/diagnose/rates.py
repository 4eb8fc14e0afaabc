"""Checks of rates and sizes: schedule, learning rate, batch size, memory."""

import gc
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.tuner import lr_finder
from lightning.pytorch.tuner.tuning import Tuner
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from project.diagnose.batches import batch_size, take, tensors
from project.diagnose.registry import check
from project.diagnose.result import Result
from project.diagnose.subject import Inside, Subject, configured_rate, without_noise

MOST_STEPS = 20_000  # of a schedule that is played through
TESTED = 80  # rates of the range test
CYCLE = 4  # batches of the range test, over and over
GB = 1e9


@check("schedule")
def schedule(subject: Subject) -> Result | None:
    """The learning rate rises above zero, and is through with its warm-up before training ends."""
    base, rates, total = subject.inside(None, play, **subject.duration)
    if not rates:
        return None
    peak = max(rates)
    values = {"rates": rates[:: max(1, len(rates) // 500)], "steps": total, "peak": peak, "end": rates[-1]}
    if peak == 0:
        advice = "set the optimizer's learning rate, or mend the schedule: no step changes anything"
        return Result("schedule", "failure", "the learning rate is zero in every step", advice, values)
    at = rates.index(peak) / max(1, len(rates) - 1)
    seen = f"{total:,} steps, peak {peak:.3g} after {at:.0%} of them, end {rates[-1]:.2g}"
    if peak < 0.5 * base:
        advice = f"shorten the warm-up, or train longer: the rate of {base:.3g} is never reached"
        return Result("schedule", "failure" if peak < 0.1 * base else "warning", seen, advice, values)
    return Result("schedule", "pass", seen, values=values)


def play(inside: Inside) -> tuple[float, list[float], int]:
    """The optimizer's own rate, the rate at each step of the training planned, and how many steps it has."""
    trainer = inside.trainer
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    total = trainer.estimated_stepping_batches
    if not groups or total == float("inf") or not inside.model.automatic_optimization:
        return 0.0, [], 0
    base = configured_rate(inside)
    by_epoch = max(1, int(total) // max(1, trainer.max_epochs or 1))
    rates = []
    for step in range(1, min(int(total), MOST_STEPS) + 1):
        rates.append(max(float(group["lr"]) for group in groups))
        for config in trainer.lr_scheduler_configs:
            due = config.frequency * (by_epoch if config.interval == "epoch" else 1)
            if not config.reduce_on_plateau and step % due == 0:
                config.scheduler.step()  # type: ignore[call-arg]
    return base, rates, int(total)


class _InMemory(CheckpointIO):
    """Keeps the checkpoint that the finder goes back to: no file, and nothing to unpickle."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.checkpoint = checkpoint

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        return self.checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        del self.checkpoint


@check("learning-rate")
def learning_rate(subject: Subject) -> Result | None:
    """Lightning's range test: the rate rises from step to step, and the loss tells which rates are of use."""
    model = without_noise(subject.model())
    if not model.automatic_optimization:
        return None
    batches = [subject.chunks[i % min(CYCLE, len(subject.chunks))] for i in range(TESTED)]
    with mock.patch.object(lr_finder, "tqdm", mock.MagicMock()):  # no bar
        finder = Tuner(subject.trainer(plugins=[_InMemory()])).lr_find(
            model, datamodule=subject.feed(batches), min_lr=1e-6, max_lr=1.0, num_training=TESTED, update_attr=False
        )
    assert finder is not None
    rates, losses = finder.results["lr"], moving_mean(unsmoothed(finder.results["loss"]))
    rate = subject.inside(subject.steps[0], configured_rate)
    lowest = rates[losses.index(min(losses))]
    values = {
        "rates": rates,
        "losses": losses,
        "suggestion": lowest / 10,
        "lowest": lowest,
        "lightning": finder.suggestion(),
        "configured": rate,
    }
    if not min(losses) < 0.97 * losses[0]:
        return Result(
            "learning-rate", "warning", "the loss falls at no rate", "see overfit for what else is wrong", values
        )
    seen = f"configured {rate:.2g}; in a range test the loss is lowest at {lowest:.1g}, a tenth of that is a start"
    if rate > 3 * lowest or rate < lowest / 1000:
        status: Literal["failure", "warning"] = "failure" if rate > 10 * lowest or rate == 0 else "warning"
        return Result("learning-rate", status, seen, f"try {lowest / 10:.1g}", values)
    return Result("learning-rate", "pass", seen, values=values)


def unsmoothed(losses: list[float], beta: float = 0.98) -> list[float]:
    """The losses that Lightning's finder averaged, whose average lags behind by half of a short test."""
    means = [loss * (1 - beta ** (i + 2)) for i, loss in enumerate(losses)]
    return [(mean - beta * last) / (1 - beta) for mean, last in zip(means, [0.0, *means], strict=False)]


def moving_mean(losses: list[float], width: int = CYCLE) -> list[float]:
    """Each with those before it: over whole cycles, so that it does not matter that some batches are harder."""
    parts = [losses[max(0, i + 1 - width) : i + 1] for i in range(len(losses))]
    return [sum(part) / len(part) for part in parts]


class _Bytes(Callback):
    """Memory of two steps: by the second the optimizer has its state, and the gradients of the first are there."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bytes = {"parameters": size([*pl_module.parameters(), *pl_module.buffers()])}
        self._hooks = ExitStack()
        self._cuda = pl_module.device.type == "cuda"
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.__enter__()  # type: ignore[no-untyped-call]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        own = {parameter.untyped_storage().data_ptr() for parameter in pl_module.parameters()}
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        self._saved = saved
        self._hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._hooks.close()
        if batch_idx == 0:
            return
        state = [t for o in trainer.optimizers for s in o.state.values() for t in s.values() if isinstance(t, Tensor)]
        self.bytes["gradients"] = size([p for p in pl_module.parameters() if p.requires_grad])
        self.bytes["optimizer state"] = size(state)
        self.bytes["activations"] = sum(self._saved.values())
        if self._cuda:
            self.peak = torch.cuda.max_memory_allocated()
        else:
            self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.peak = self.bytes["parameters"] + highest(self._profile)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._hooks.close()  # or they would see every tensor that this process saves from now on


def size(found: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in found)


def highest(profiled: Any) -> int:
    """By how many bytes the memory in use exceeded that of the beginning, at most."""
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    most, current = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most


def largest(subject: Subject) -> Any:
    """The training batch with the most numbers, of the first."""
    return max(subject.train_batches, key=lambda batch: sum(t.numel() for t in tensors(batch).values()))


def measure(subject: Subject, batch: Any) -> _Bytes:
    gc.collect()  # what earlier checks left is not freed in between
    counter = _Bytes()
    subject.fit([batch, batch], counter, model=subject.model())
    return counter


@check("memory")
def memory(subject: Subject) -> Result:
    """Where the memory of a training step goes."""
    batch = largest(subject)
    measured = measure(subject, batch)
    rest = max(0, measured.peak - sum(measured.bytes.values()))
    shares = {**measured.bytes, "temporary": rest}
    total = sum(shares.values())
    limit = memory_limit(subject)
    values = {"peak": measured.peak, "bytes": shares, "limit": limit}
    parts = ", ".join(f"{name} {value / total:.0%}" for name, value in shares.items() if value > 0.005 * total)
    seen = f"{subject.count(batch):,} {subject.unit} take {measured.peak / GB:.2g} GB at the peak: {parts}"
    if measured.peak > limit:
        advice = f"{limit / GB:.1f} GB are free: make batches smaller, and raise trainer.accumulate_grad_batches"
        return Result("memory", "failure", seen, advice, values)
    return Result("memory", "pass", seen, values=values)


@check("batch-size")
def largest_batch_size(subject: Subject) -> Result:
    """The batch that would fill the memory, from what one and two batches take."""
    batch = largest(subject)
    rows = list(range(batch_size(batch)))
    one, two = measure(subject, batch).peak, measure(subject, take(batch, rows + rows)).peak
    limit, count = memory_limit(subject), subject.count(batch)
    growth = max(1, two - one)
    fits = 1 + 0.9 * (limit - one) / growth  # a tenth is left for what fragments
    values = {"peaks": {str(count): one, str(2 * count): two}, "limit": limit, "fits": fits * count}
    seen = (
        f"{count:,} {subject.unit} a batch take {one / GB:.2f} GB; {limit / GB:.1f} GB hold {max(0.0, fits):,.0f} such"
    )
    if fits < 1:
        return Result("batch-size", "failure", seen, "make batches smaller, or raise --memory_limit", values)
    return Result("batch-size", "pass", seen, values=values)


def memory_limit(subject: Subject) -> float:
    """Bytes that training may take: those given, or those free now."""
    if subject.memory_limit is not None:
        return subject.memory_limit
    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if Path(file).is_file() and (text := Path(file).read_text().strip()).isdecimal():
            free = min(free, float(text))
    return free
