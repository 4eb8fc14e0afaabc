"""The checks of a healthy task, to be inherited: subclass `TaskSuite` in a test file, and give a task and a batch.

    class TestMyTask(TaskSuite):
        def make_task(self, **options): ...
        def make_batch(self, size, length): ...

pytest then runs all checks on it. They need no more than plain asserts, two seconds, and no data.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.export import Dim, export
from torch.utils.data import DataLoader

from project.tasks.base import Task

Batch = dict[str, Tensor]
TOLERANCE = 2e-5


class TaskSuite:
    """What every task must pass.

    A batch is a dictionary of tensors whose first dimension is the example; those of `sequences` are padded along the
    second with zeros.
    """

    sequences: tuple[str, ...] = ("tokens", "padding_mask")

    def make_task(self, **options: Any) -> Task:
        """A small task without dropout; `options` are `optimizer` and `warmup_ratio`. Weights may be any."""
        raise NotImplementedError

    def make_batch(self, size: int, length: int) -> Batch:
        """`size` examples, the longest of `length` tokens, which is 12 at most."""
        raise NotImplementedError

    # Helpers

    def task(self, **options: Any) -> Task:
        torch.manual_seed(0)
        return self.make_task(**options)

    def batches(self, *sizes: tuple[int, int]) -> list[Batch]:
        torch.manual_seed(1)
        return [self.make_batch(size, length) for size, length in sizes]

    def inputs(self, task: Task, batch: Batch) -> tuple[Tensor, ...]:
        """What the network takes of a batch."""
        return tuple(batch[name] for name in task.export_spec().inputs)

    def pad(self, batch: Batch, length: int) -> Batch:
        def padded(x: Tensor) -> Tensor:
            return torch.cat([x, x.new_zeros(len(x), length - x.size(1), *x.shape[2:])], dim=1)

        return {name: padded(x) if name in self.sequences else x for name, x in batch.items()}

    def join(self, batches: list[Batch]) -> Batch:
        length = max(batch[self.sequences[0]].size(1) for batch in batches)
        batches = [self.pad(batch, length) for batch in batches]
        return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}

    def loss(self, task: Task, batch: Batch) -> Tensor:
        task.log = lambda *_, **__: None  # type: ignore[method-assign]
        loss = task.training_step(batch, 0)
        assert isinstance(loss, Tensor)
        return loss

    def fit(self, batches: list[Batch], task: Task | None = None, ckpt: Path | None = None, **options: Any) -> Task:
        """Train with plain gradient descent, which shows any difference in the gradient in full."""
        task = task or self.task(optimizer=partial(torch.optim.SGD, lr=0.1), warmup_ratio=0.0)
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        settings = {"max_epochs": 1, "devices": 1, "enable_checkpointing": False, **quiet, **options}
        trainer = Trainer(accelerator="cpu", **settings)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a forked process must not start threads after its parent has
        try:
            trainer.fit(task, Loader(batches), ckpt_path=ckpt, weights_only=True)
        finally:
            torch.set_num_threads(threads)
        return task

    # Checks

    def test_padding_changes_nothing(self) -> None:
        task, (batch,) = self.task().eval(), self.batches((5, 7))
        longer = self.pad(batch, 10)
        expected, actual = (task.network(*self.inputs(task, b)) for b in (batch, longer))
        real = batch["padding_mask"] if expected.shape[:2] == batch["padding_mask"].shape else slice(None)
        actual = actual[:, :7] if isinstance(real, Tensor) else actual
        close(actual[real], expected[real], "outputs")
        close(self.loss(task, longer), self.loss(task, batch), "loss")

    def test_examples_do_not_see_each_other(self) -> None:
        task, (batch,) = self.task().eval(), self.batches((5, 7))
        outputs = task.network(*self.inputs(task, batch))
        for i in range(5):
            alone = task.network(*(x[i : i + 1] for x in self.inputs(task, batch)))
            close(alone[0], outputs[i], f"example {i}")

    def test_a_row_of_padding_is_finite(self) -> None:
        task, (batch,) = self.task().eval(), self.batches((3, 7))
        batch["padding_mask"][1] = False
        assert task.network(*self.inputs(task, batch)).isfinite().all()

    def test_the_gradient_reaches_every_parameter(self) -> None:
        task, (batch,) = self.task(), self.batches((16, 7))
        self.loss(task, batch).backward()
        without = [n for n, p in task.named_parameters() if p.grad is None or not p.grad.any()]
        assert not without, f"no gradient: {', '.join(without)}"

    def test_no_step_is_random_in_evaluation(self) -> None:
        task, (batch,) = self.task().eval(), self.batches((4, 7))
        first, second = (task.network(*self.inputs(task, batch)) for _ in range(2))
        assert torch.equal(first, second)

    def test_a_resumed_training_ends_like_an_uninterrupted_one(self, tmp_path: Path) -> None:
        batches = self.batches((4, 7), (3, 5), (5, 6))
        optimizer = partial(torch.optim.AdamW, lr=1e-2)
        save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        options: dict[str, Any] = {"max_epochs": 2, "enable_checkpointing": True}
        whole = self.fit(batches, self.task(optimizer=optimizer), callbacks=[save], **options)
        torch.manual_seed(5)
        other = self.make_task(optimizer=optimizer)
        again = ModelCheckpoint(tmp_path / "again")
        resumed = self.fit(batches, other, tmp_path / "epoch=0.ckpt", callbacks=[again], **options)
        same_weights(resumed, whole, 0.0)

    def test_scripts(self, tmp_path: Path) -> None:
        task = self.task().eval()
        torch.jit.script(task.network).save(str(tmp_path / "network.pt"))
        self.same_outputs(task, torch.jit.load(str(tmp_path / "network.pt")))

    def test_exports_with_sizes_that_vary(self) -> None:
        task = self.task().eval()
        spec = task.export_spec()
        names = {name for dims in spec.dynamic.values() for name in dims.values()}
        dims = {name: Dim(name, min=1, max=spec.max_sizes.get(name, 64)) for name in names}
        shapes = tuple({i: dims[n] for i, n in spec.dynamic.get(name, {}).items()} for name in spec.inputs)
        program = export(task.network, tuple(spec.inputs.values()), dynamic_shapes=shapes)
        dropouts = [node for node in program.graph.nodes if "dropout" in str(node.target) and node.args[-1] is True]
        assert not dropouts, "the exported program drops out, as in training"
        self.same_outputs(task, program.module())

    def test_compiling_keeps_names_and_outputs(self) -> None:
        task = self.task().eval()
        names = list(task.state_dict())
        compiled = self.task().eval()
        compiled.network.compile(backend="eager")
        self.same_outputs(task, compiled.network)
        assert list(compiled.state_dict()) == names

    def test_accumulated_batches_equal_one_large_batch(self) -> None:
        small = self.batches((1, 4), (6, 7), (3, 5), (4, 6), (2, 7))
        accumulated = self.fit(small, accumulate_grad_batches=3)
        whole = self.fit([self.join(small[:3]), self.join(small[3:])])
        same_weights(accumulated, whole)

    def test_two_processes_equal_one(self) -> None:
        batches = self.batches((1, 4), (6, 7), (3, 5), (4, 6))
        strategy = "ddp_spawn" if torch.cuda.is_available() else "ddp_fork"  # a fork is the faster, without CUDA
        two = self.fit(batches, devices=2, strategy=strategy, use_distributed_sampler=False)
        one = self.fit([self.join(batches[:2]), self.join(batches[2:])])
        same_weights(two, one)

    def same_outputs(self, task: Task, other: Callable[..., Any]) -> None:
        for size, length in ((1, 7), (4, 3), (2, 1)):
            (batch,) = self.batches((size, length))
            inputs = self.inputs(task, batch)
            close(other(*inputs), task.network(*inputs), f"{size} examples of {length} tokens")


class Loader(DataLoader[Any]):
    """Batches as they are, each process taking its turn."""

    def __init__(self, batches: list[Batch]) -> None:
        super().__init__(batches, batch_size=None)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        world, rank = 1, 0
        if torch.distributed.is_initialized():
            world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        return iter(list(self.dataset)[rank::world])  # type: ignore[call-overload]

    def __len__(self) -> int:
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return len(self.dataset) // world  # type: ignore[arg-type]


def close(actual: Tensor, expected: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, msg=lambda m: f"{what}: {m}")


def same_weights(actual: nn.Module, expected: nn.Module, tolerance: float = TOLERANCE) -> None:
    weights = expected.state_dict()
    assert actual.state_dict().keys() == weights.keys()
    for name, value in actual.state_dict().items():
        close(value, weights[name], name, tolerance)
