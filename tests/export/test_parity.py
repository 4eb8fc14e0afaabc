"""The examination finds what numbers alone would not show."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.errors import UserError
from project.export.artifacts import ARTIFACTS, Array, Artifact, ArtifactError, Contents
from project.export.onnx import Reader as OnnxReader
from project.export.parity import Batch, Examination, Metric, difference, edge_cases, resize
from project.export.process import FreshProcess
from project.export.pt2 import Reader
from project.export.source import Source
from project.export.torchscript import Reader as ScriptReader

FLOAT, INT8 = ARTIFACTS["pt2"], ARTIFACTS["pt2-int8"]


class Here(FreshProcess):
    """An artifact in this process, for speed: what is tested is the judgement."""

    def __init__(self, source: Source, network: nn.Module, contents: Contents | None = None) -> None:
        self.network, self.what = network, contents or Contents(set(source.weights.values()), [], None)

    def contents(self) -> Contents:
        return self.what

    def run(self, inputs: list[Array]) -> list[Array]:
        with torch.inference_mode():
            return [self.network(*map(torch.from_numpy, inputs)).numpy()]

    def seconds(self, inputs: list[Array], repeats: int) -> float:
        return 1e-3


class Wrapped(nn.Module):
    """The network with something done to its logits."""

    def __init__(self, network: nn.Module, change: object) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, tokens: Tensor, padding_mask: Tensor) -> Tensor:
        return self.change(self.network(tokens, padding_mask))  # type: ignore[operator]


def examine(examination: Examination, change: object, artifact: Artifact = FLOAT) -> dict[str, object]:
    process = Here(examination.source, Wrapped(examination.source.network, change))
    return examination.examine(artifact, process)


def judged(examination: Examination, max_drop: float, metric: Metric | None) -> Examination:
    other = copy.copy(examination)
    other.max_drop, other.metric = max_drop, metric
    return other


def test_the_network_itself_passes(examination: Examination) -> None:
    report = examine(examination, lambda logits: logits)
    assert report["parity"] == 0.0
    assert report["metric_drop"] == 0.0
    assert report["metrics"] == examination.sample.scores
    assert examine(examination, lambda logits: logits, INT8)["metrics"] == examination.whole.scores


def test_tolerance_of_floats(examination: Examination) -> None:
    assert examine(examination, lambda logits: logits + 5e-5)["parity"] == pytest.approx(5e-5, rel=0.1)
    with pytest.raises(ArtifactError, match=r"differs from the eager network by 0\.0005, more than 0\.0001"):
        examine(examination, lambda logits: logits + 5e-4)


def test_one_case_is_enough(examination: Examination) -> None:
    """Wrong for a batch of one sequence alone."""
    with pytest.raises(ArtifactError, match="differs"):
        examine(examination, lambda logits: logits + (len(logits) == 1))


def test_what_is_compared(source: Source, batches: list[Batch]) -> None:
    monitor = Metric("train/loss", "min")
    with pytest.raises(UserError, match="the run's data have no validation split"):
        Examination(source, [], monitor, 0.01)
    examination = Examination(source, batches * 4, monitor, 0.01)
    assert examination.metric is None
    assert len(examination.whole.batches) == 4 * len(batches)
    assert 8 <= len(examination.sample.batches) < 16


def test_not_finite(examination: Examination) -> None:
    with pytest.raises(ArtifactError, match="differs from the eager network by inf"):
        examine(examination, lambda logits: logits * float("nan"))
    with pytest.raises(ArtifactError, match="gives numbers that are not finite"):
        examine(examination, lambda logits: logits / 0, INT8)


def test_int8_is_judged_by_the_metric(examination: Examination) -> None:
    metric = examination.metric
    assert metric == Metric("val/accuracy", "max")
    strict = judged(examination, 0.01, metric)
    report = examine(strict, lambda logits: logits * 3, INT8)  # other numbers, same answers
    assert report["metric_drop"] == 0.0
    assert report["parity"] > 1.0  # type: ignore[operator]
    with pytest.raises(ArtifactError, match=r"val/accuracy is worse by \d\.\d{4}, more than 0\.01"):
        examine(strict, lambda logits: -logits, INT8)
    # What is to be small has got worse by growing.
    with pytest.raises(ArtifactError, match="val/loss is worse by"):
        examine(judged(examination, 0.01, Metric("val/loss", "min")), lambda logits: logits * 0, INT8)
    with pytest.raises(ArtifactError, match="int8 needs a validation metric to be judged by"):
        examine(judged(examination, 0.01, None), lambda logits: logits, INT8)


def test_contents(examination: Examination) -> None:
    source = examination.source
    weights = set(source.weights.values())

    def look(contents: Contents, artifact: Artifact = FLOAT) -> None:
        examination.examine(artifact, Here(source, source.network, contents))

    look(Contents(weights | {"more"}, [], [["b", "s"], ["b", "s"]]))
    look(Contents(None, None, None))
    with pytest.raises(ArtifactError, match=r"1 weights are not the checkpoint's: head\.linear\.bias"):
        look(Contents(weights - {source.weights["head.linear.bias"]}, [], None))
    look(Contents(set(), [], None), INT8)
    with pytest.raises(ArtifactError, match="draws random numbers: Dropout"):
        look(Contents(weights, ["Dropout", "Dropout"], None), INT8)
    with pytest.raises(ArtifactError, match="dimension sequence of padding_mask is fixed to 8"):
        look(Contents(weights, [], [["b", "s"], ["b", 8]]))


class Dropping(nn.Module):
    """Dropout that was forgotten, of a probability at which no number shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 1e-9, training=True)


def test_readers_see_dropout(tmp_path: Path) -> None:
    network, x = Dropping().eval(), torch.randn(3, 4)
    batch = torch.export.Dim("batch")
    program = torch.export.export(network, (x,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "m.pt2")
    assert Reader(tmp_path / "m.pt2").contents().random == ["aten.dropout.default"]
    program = torch.export.export(nn.Dropout(0.5).eval(), (x,))
    torch.export.save(program, tmp_path / "inert.pt2")
    assert "aten.dropout" in str(program.graph)
    assert Reader(tmp_path / "inert.pt2").contents().random == []
    torch.jit.freeze(torch.jit.script(network)).save(tmp_path / "m.pt")
    assert ScriptReader(tmp_path / "m.pt").contents().random == ["aten::dropout"]

    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node("Dropout", ["x"], ["y"])
    x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x_info], [y_info]), ir_version=10), tmp_path / "m.onnx")
    contents = OnnxReader(tmp_path / "m.onnx", 1).contents()
    assert contents.random == ["Dropout"]
    assert contents.shapes == [["batch", 4]]


def test_readers_see_fixed_dimensions(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 4), (torch.randn(3, 4),))
    torch.export.save(program, tmp_path / "m.pt2")
    assert Reader(tmp_path / "m.pt2").contents().shapes == [[3, 4]]


def test_edge_cases(source: Source) -> None:
    tokens = torch.arange(1, 13).view(3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    cases = edge_cases(source, [tokens, mask])
    sizes = {tuple(case[0].shape) for case in cases}
    assert {(1, 1), (1, 4), (3, 1), (3, 32), (7, 4)} <= sizes
    assert all(case[0].shape == case[1].shape for case in cases)
    padded = [tuple(case[1].shape) for case in cases if not case[1].any(1).all()]
    assert padded == [(3, 4), (1, 1)]
    assert mask.all()
    assert torch.equal(resize(source, [tokens, mask], batch=4)[0][3], tokens[0])


def test_difference() -> None:
    a = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert difference(a, [torch.tensor([1.0, 2.5]), torch.tensor([3.25])]) == 0.5
    assert difference(a, [torch.tensor([1.0]), torch.tensor([3.0])]) == float("inf")
    assert difference([torch.tensor([float("nan")])], [torch.tensor([float("nan")])]) == float("inf")
