"""What an artifact must prove, in a process of its own, before it is published.

float32: no random operator, dimensions that vary, every weight bit for bit that of the checkpoint, and outputs within a
tolerance of the eager network's, on validation batches and on the sizes at which exports break.
int8: no random operator, dimensions that vary, finite outputs there, and a validation metric, computed with the file
itself, that has not dropped by too much.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from project.errors import UserError
from project.export.artifacts import Artifact, ArtifactError, Contents, fingerprint
from project.export.process import FreshProcess
from project.export.source import Source
from project.tasks import Task

TOLERANCE = 1e-4  # of float32, absolute, on outputs
SAMPLE = 8  # batches, roughly
ROUNDS = 4
PAUSE = 0.01  # seconds in which threads that wait actively go to sleep and leave the processor to the other side
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Metric:
    """The validation metric that the best checkpoint was chosen by."""

    name: str
    mode: str

    def drop(self, before: float, after: float) -> float:
        """By how much it got worse."""
        return before - after if self.mode == "max" else after - before


class Recorder(nn.Module):
    """A network that keeps what it returned, in order of the calls."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.outputs: list[list[Tensor]] = []

    def compute(self, inputs: list[Tensor]) -> list[Tensor]:
        return self.source.run(inputs)

    def forward(self, *inputs: Tensor) -> Any:
        outputs = self.compute(list(inputs))
        self.outputs.append(outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Remote(Recorder):
    """The same, computed by an artifact in its process."""

    def __init__(self, source: Source, process: FreshProcess) -> None:
        super().__init__(source)
        self.process = process

    def compute(self, inputs: list[Tensor]) -> list[Tensor]:
        return [torch.from_numpy(output) for output in self.process.run([tensor.numpy() for tensor in inputs])]


def validate(task: Task, network: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """The metrics of the task's validation, with another network in place of its own."""
    original, task.network = task.network, network
    try:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            plugins=LightningEnvironment(),  # not that of a cluster's job, which may be meant for many processes
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        scores = trainer.validate(task, DataLoader(batches, batch_size=None), verbose=False)[0]  # type: ignore[arg-type]
        return {name: float(value) for name, value in scores.items()}
    finally:
        task.network = original


def resize(source: Source, inputs: list[Tensor], **sizes: int) -> list[Tensor]:
    """Inputs brought to other sizes of named dimensions, by repeating or leaving out."""
    resized = []
    for name, tensor in zip(source.spec.inputs, inputs, strict=True):
        for dimension, dimension_name in source.spec.dynamic.get(name, {}).items():
            size = sizes.get(dimension_name, tensor.shape[dimension])
            tensor = tensor.index_select(dimension, torch.arange(size) % tensor.shape[dimension])
        resized.append(tensor.contiguous())
    return resized


def edge_cases(source: Source, inputs: list[Tensor]) -> list[list[Tensor]]:
    """Real inputs at the sizes at which exports break: 1, odd and largest; and with rows of padding alone."""
    names = {name for names in source.spec.dynamic.values() for name in names.values()}
    cases = [inputs, resize(source, inputs, **dict.fromkeys(names, 1))]
    for name in sorted(names):
        largest = source.spec.max_sizes.get(name)
        cases += [resize(source, inputs, **{name: size}) for size in (1, 2, 7, *([largest] if largest else []))]
    for case in cases[:2]:  # masks are the boolean inputs
        padded = [tensor.clone() for tensor in case]
        for tensor in padded:
            if tensor.dtype == torch.bool:
                tensor[0] = False
        cases.append(padded)
    return cases


@dataclass(frozen=True)
class Answers:
    """What the eager network says to batches, and the metrics that it earns."""

    batches: list[Batch]
    outputs: list[list[Tensor]]
    scores: dict[str, float]

    @classmethod
    def of(cls, source: Source, batches: list[Batch]) -> "Answers":
        eager = Recorder(source)
        scores = validate(source.task, eager, batches)
        return cls(batches, eager.outputs, scores)


class Examination:
    """The eager network's answers, and the comparison of artifacts with them.

    Args:
        source: the eager network.
        batches: the validation split.
        metric: what int8 is judged by; None if the run chose its checkpoint by none.
        max_drop: by how much the metric of an int8 artifact may be worse.

    Attributes:
        whole: for int8, the whole split.
        sample: for float32, batches spread over the split: an artifact with the same weights that gives the same output
            to them and to the edge cases earns the same metric.

    Raises:
        UserError: there are no validation batches.
    """

    def __init__(self, source: Source, batches: list[Batch], metric: Metric | None, max_drop: float) -> None:
        if not batches:
            raise UserError("nothing can be verified: the run's data have no validation split")
        self.source, self.max_drop = source, max_drop
        self.whole = Answers.of(source, batches)
        self.sample = Answers.of(source, batches[:: max(1, len(batches) // SAMPLE)])
        self.metric = metric if metric and metric.name in self.whole.scores else None
        middle = batches[len(batches) // 2]
        self.inputs = resize(source, [middle[name] for name in source.spec.inputs], batch=4)
        self.cases = edge_cases(source, self.inputs)
        self.edge_outputs = [source.run(case) for case in self.cases]

    def examine(self, artifact: Artifact, process: FreshProcess) -> dict[str, Any]:
        """What there is to say of an artifact.

        Raises:
            ArtifactError: it must not be published.
        """
        report = self._inspect(process.contents(), artifact)
        remote = Remote(self.source, process)
        for case in self.cases:
            remote(*case)
        eager = self.whole if artifact.int8 else self.sample
        scores = validate(self.source.task, remote, eager.batches)
        report |= {"metrics": scores, "batches": len(eager.batches)}
        if self.metric is not None:
            report["metric_drop"] = self.metric.drop(eager.scores[self.metric.name], scores[self.metric.name])
        expected = self.edge_outputs + eager.outputs
        report["parity"] = max(difference(a, b) for a, b in zip(remote.outputs, expected, strict=True))
        if artifact.int8:
            self._judge_int8(report)
        elif not report["parity"] <= TOLERANCE:
            raise ArtifactError(f"differs from the eager network by {report['parity']:.2g}, more than {TOLERANCE:g}")
        return report | self._speed(process)

    def _inspect(self, contents: Contents, artifact: Artifact) -> dict[str, Any]:
        """Look into the file, as far as its format lets."""
        if contents.random:
            raise ArtifactError(f"draws random numbers: {', '.join(sorted(set(contents.random)))}")
        for wanted, shape in zip(self.source.interface.inputs, contents.shapes or []):  # noqa: B905  (None: no shapes)
            for name, size in zip(wanted.shape, shape, strict=True):
                if isinstance(name, str) and isinstance(size, int):
                    raise ArtifactError(f"dimension {name} of {wanted.name} is fixed to {size}")
        if contents.weights is None or artifact.int8:
            return {}
        missing = [name for name, value in self.source.weights.items() if value not in contents.weights]
        if missing:
            raise ArtifactError(f"{len(missing)} weights are not the checkpoint's: {', '.join(missing[:5])}")
        return {"weights_sha256": fingerprint(set(self.source.weights.values()) & contents.weights)}

    def _judge_int8(self, report: dict[str, Any]) -> None:
        if self.metric is None:
            raise ArtifactError(
                "int8 needs a validation metric to be judged by: let the run's ModelCheckpoint monitor one"
            )
        if not math.isfinite(report["parity"]):
            raise ArtifactError("gives numbers that are not finite")
        if not (drop := report["metric_drop"]) <= self.max_drop:
            raise ArtifactError(f"{self.metric.name} is worse by {drop:.4f}, more than {self.max_drop:g}")

    def _speed(self, process: FreshProcess) -> dict[str, float]:
        """Latency at batch 1 and throughput at batch 32 relative to eager: by turns, and the best round of each."""
        ratios = []
        for size, repeats in ((1, 10), (32, 3)):
            inputs = resize(self.source, self.inputs, batch=size)
            arrays = [tensor.numpy() for tensor in inputs]
            self.source.run(inputs), process.run(arrays)
            eager, artifact = math.inf, math.inf
            for _ in range(ROUNDS):
                start = time.perf_counter()
                for _ in range(repeats):
                    self.source.run(inputs)
                eager = min(eager, (time.perf_counter() - start) / repeats)
                time.sleep(PAUSE)
                artifact = min(artifact, process.seconds(arrays, repeats))
                time.sleep(PAUSE)
            ratios.append(artifact / eager)
        return {"latency_ratio": ratios[0], "throughput_ratio": 1 / ratios[1]}


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest absolute difference; infinite where shapes differ or a number is not finite."""
    same = all(x.shape == y.shape and x.isfinite().all() for x, y in zip(a, b, strict=True))
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True)) if same else math.inf
