"""What is published is what was trained, and says so."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor

from project.errors import UserError
from project.export import bundle as bundle_module
from project.export import pt2, torchscript
from project.export.artifacts import ARTIFACTS, DEFAULT, ArtifactError, check_names, sha256
from project.export.bundle import export
from project.export.command import main
from project.export.parity import Batch
from project.export.source import Source
from project.export.table import format_table, table
from project.runs import Run
from tests.export.conftest import Bundle, custom_run

FLOAT = [name for name in DEFAULT if not ARTIFACTS[name].int8]


def answers(bundle: Bundle, name: str, batch: Batch) -> Tensor:
    """Logits by the runtime itself, without any of our code."""
    path = bundle.folder / bundle.manifest["artifacts"][name]["file"]
    inputs = batch["tokens"], batch["padding_mask"]
    if name.startswith("onnx"):
        session = onnxruntime.InferenceSession(path)
        names = ("tokens", "padding_mask")
        return torch.from_numpy(session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))[0])
    module = torch.jit.load(path) if name.startswith("torchscript") else torch.export.load(path).module()
    with torch.no_grad():
        return module(*inputs)


def test_everything_is_there(bundle: Bundle) -> None:
    assert list(bundle.manifest["artifacts"]) == list(DEFAULT)
    assert not bundle.manifest["failed"]
    files = {facts["file"] for facts in bundle.manifest["artifacts"].values()}
    assert {p.name for p in bundle.folder.iterdir()} == {
        *files,
        "manifest.json",
        "training.yaml",
        "tokenizer.json",
        "labels.json",
    }
    assert json.loads((bundle.folder / "manifest.json").read_text()) == bundle.manifest
    assert not list(bundle.run.folder.glob(".export*"))


def test_manifest(bundle: Bundle, source: Source) -> None:
    manifest = bundle.manifest
    for facts in manifest["artifacts"].values():
        file = bundle.folder / facts["file"]
        assert facts["sha256"] == sha256(file)
        assert facts["bytes"] == file.stat().st_size
        assert facts["latency_ratio"] > 0 < facts["throughput_ratio"]
    assert manifest["checkpoint"]["file"] == "checkpoints/best.ckpt"
    assert manifest["checkpoint"]["step"] == source.step
    assert manifest["versions"]["torch"] == torch.__version__
    assert [i["name"] for i in manifest["interface"]["inputs"]] == ["tokens", "padding_mask"]
    assert [i["dtype"] for i in manifest["interface"]["inputs"]] == ["int64", "bool"]
    model = onnx.load(bundle.folder / "model.onnx")
    assert {opset.domain: opset.version for opset in model.opset_import}[""] == manifest["onnx_opset"]


@pytest.mark.parametrize("name", FLOAT)
def test_float_agrees_with_eager_and_holds_its_weights(
    bundle: Bundle, source: Source, batches: list[Batch], name: str
) -> None:
    facts = bundle.manifest["artifacts"][name]
    assert facts["weights_sha256"] == bundle.manifest["checkpoint"]["weights_sha256"]
    assert facts["parity"] < 1e-4
    for batch in batches:
        expected = source.run([batch["tokens"], batch["padding_mask"]])[0]
        torch.testing.assert_close(answers(bundle, name, batch), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", DEFAULT)
def test_metric_is_the_artifacts_own(bundle: Bundle, batches: list[Batch], name: str) -> None:
    facts = bundle.manifest["artifacts"][name]
    judged = batches if ARTIFACTS[name].int8 else batches[:: max(1, len(batches) // 8)]
    assert facts["batches"] == len(judged)
    predictions = torch.cat([answers(bundle, name, batch).argmax(-1) for batch in judged])
    accuracy = accuracy_score(torch.cat([batch["labels"] for batch in judged]), predictions)
    assert facts["metrics"]["val/accuracy"] == pytest.approx(accuracy, abs=1e-6)
    if ARTIFACTS[name].int8:
        eager = bundle.manifest["eager"]["metrics"]["val/accuracy"]
        assert facts["metric_drop"] == pytest.approx(eager - accuracy, abs=1e-6)
    else:
        assert facts["metric_drop"] == 0.0


def test_int8_holds_int8(bundle: Bundle) -> None:
    model = onnx.load(bundle.folder / "model-int8.onnx")
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    assert sum(kind == onnx.TensorProto.INT8 for kind in kinds.values()) >= 5
    assert "embedding.weight" not in kinds
    script = str(torch.jit.load(bundle.folder / "model-int8.pt").inlined_graph)
    assert "quantized::linear_dynamic" in script
    assert "quantized::embedding_byte" in script


def test_dimensions_have_the_tasks_names(bundle: Bundle) -> None:
    model = onnx.load(bundle.folder / "model.onnx")
    shapes = {v.name: [d.dim_param for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    assert shapes == {name: ["batch", "sequence"] for name in ("tokens", "padding_mask")}
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert not any(node.metadata_props for node in model.graph.node)


def test_what_fails_is_removed_and_named(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cannot be written, nor what is made of it, one lies, one is not possible here: the last is published."""
    run = Run(tmp_path)
    for file in finished.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "export").unlink(missing_ok=True)

    def broken(source: Source, path: Path) -> None:
        path.write_bytes(b"half a file")
        raise ArtifactError("the disk is full")

    def lie(source: Source, path: Path) -> None:
        with torch.no_grad():
            source.network.get_parameter("head.linear.bias")[0] += 1e-7
        torch.export.save(source.export(source.network), path)

    monkeypatch.setattr("project.export.onnx.write", broken)
    monkeypatch.setattr(pt2, "write", lie)
    monkeypatch.setattr(torchscript, "unsupported", lambda: "not here")
    names = ["torchscript", "onnx", "onnx-int8", "pt2", "pt2-int8"]
    monkeypatch.setattr(pt2, "int8_program", lambda source: source.program)  # torchao takes seconds to import
    with pytest.raises(
        UserError,
        match=r"^onnx: the disk is full; onnx-int8: the disk is full; pt2: 1 weights are not .*: head.linear.bias$",
    ):
        main(["export", "--run", str(run.folder), "--artifacts", *names, "--max_drop", "1"])
    printed = capsys.readouterr().out
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text())
    assert list(manifest["artifacts"]) == ["pt2-int8"]
    assert manifest["failed"].keys() == {"onnx", "onnx-int8", "pt2"}
    assert manifest["skipped"] == {"torchscript": "not here"}
    there = {path.name for path in (tmp_path / "export").iterdir()}
    assert there == {"model-int8.pt2", "manifest.json", "training.yaml", "tokenizer.json", "labels.json"}
    assert "failed: the disk is full" in printed
    assert "skipped: not here" in printed
    card = (tmp_path / "README.md").read_text()
    assert "| pt2-int8 | model-int8.pt2 |" in card and "failed: the disk is full" in card
    assert "model-int8.pt2" not in (finished.folder / "README.md").read_text()


def test_a_task_of_a_fork(tmp_path: Path) -> None:
    """Floats in, two outputs, torch's own dropout, a metric that is to be small, weights for training alone."""
    run = custom_run(tmp_path, "Regression")
    manifest = export(run, run.checkpoint(), ["torchscript", "onnx", "onnx-int8", "pt2"], max_drop=0.1)
    assert not manifest["failed"]
    assert manifest["metric"] == "val/nll"
    assert manifest["interface"] == {
        "inputs": [{"name": "features", "dtype": "float32", "shape": ["batch", 5], "num_ids": None}],
        "outputs": ["mean", "scale"],
        "max_sizes": {},
    }
    features = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    session = onnxruntime.InferenceSession(run.folder / "export" / "model.onnx")
    assert [output.name for output in session.get_outputs()] == ["mean", "scale"]
    expected = Source(run, run.checkpoint()).run([torch.from_numpy(features)])
    for ours, theirs in zip(session.run(None, {"features": features}), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_nothing_tried_leaves_the_earlier_bundle(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Run, checkpoint: Path) -> Source:
        raise UserError("no")

    monkeypatch.setattr(bundle_module, "Source", refuse)
    before = (bundle.folder / "manifest.json").read_bytes()
    with pytest.raises(UserError):
        export(bundle.run, bundle.run.checkpoint())
    assert (bundle.folder / "manifest.json").read_bytes() == before
    assert not list(bundle.run.folder.glob(".export*"))


def test_the_command_says_what_the_bundle_no_longer_holds(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(bundle.run.folder, tmp_path / "tiny" / "copy")
    main(["export", "--run", str(run), "--artifacts", "torchscript"])
    said = capsys.readouterr().out
    assert "removed with the bundle before: onnx, onnx-int8, pt2, torchscript-int8; --artifacts names all" in said
    assert "data: train" not in said and "parity: largest difference" in said


def test_names_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no artifact is called onxx; there are torchscript, "):
        check_names(["onnx", "onxx"])
    check_names(["onnx", "torchscript"])
    monkeypatch.setattr("project.export.artifacts.find_spec", lambda name: None)
    check_names(["torchscript", "pt2"])
    with pytest.raises(
        UserError, match=r"^export needs onnx, onnxruntime, onnxscript; .* pip install -e '.\[export\]'$"
    ):
        check_names(["onnx", "pt2"])


def test_table() -> None:
    facts = {"file": "model.pt", "bytes": 2_000_000, "parity": 1.234e-6, "metrics": {"f1": 0.5}, "metric_drop": 0.01}
    facts |= {"batches": 9, "sha256": "0123456789abcdef"}
    manifest = {
        "batches": 9,
        "metric": "f1",
        "eager": {"bytes": 4_000_000, "metrics": {"f1": 0.51}},
        "artifacts": {
            "fast": facts | {"batches": 3, "latency_ratio": 0.5, "throughput_ratio": 2.0},
            "slow": facts | {"latency_ratio": 1.5, "throughput_ratio": 0.5},
        },
        "failed": {"third": "broke"},
        "skipped": {},
    }
    columns, rows = table(manifest)
    assert rows[1] == ["fast", "model.pt", "0123456789ab", 2.0, 1.2e-6, None, 0.01, 0.5, 2.0, "drop on 3 of 9 batches"]
    assert rows[2][5] == 0.5
    assert rows[2][-1] == "slower than eager at batch 1 and batch 32"
    assert rows[3] == ["third", *[None] * 8, "failed: broke"]
    lines = format_table(columns, rows).splitlines()
    assert lines[0].split() == columns
    assert len({line.index("f1" if i == 0 else "0.51") for i, line in enumerate(lines[:2])}) == 1


def test_python_that_torchscript_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchscript.unsupported() is None
    monkeypatch.setattr("sys.version_info", (3, 14, 0))
    assert torchscript.unsupported() == "torch does not support TorchScript on Python 3.14 and newer"


def test_quarter_of_the_size(tmp_path: Path) -> None:
    """Of a model in which weights outweigh the rest."""
    from onnx import TensorProto, helper, numpy_helper

    from project.export.quantize import onnx_dynamic

    weights = {"table": np.random.randn(4000, 64), "matrix": np.random.randn(64, 512)}
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "matrix"], ["y"])],
        "two",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 512])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "f.onnx")
    onnx_dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx")
    ratio = (tmp_path / "q.onnx").stat().st_size / (tmp_path / "f.onnx").stat().st_size
    assert ratio == pytest.approx(0.25, abs=0.02)
