"""The whole way on the default data: fit, bundle, predictions of each artifact on the test split."""

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from project.export.artifacts import ARTIFACTS, DEFAULT
from project.export.bundle import data_module
from project.export.parity import Batch
from project.export.source import Source
from project.runs import Run

OVERLAY = """
trainer:
  max_epochs: 1
  limit_train_batches: 60
  callbacks+:
    - class_path: project.callbacks.Export
      init_args: {max_drop: 0.05}
model: {init_args: {members: 1}}
"""


def logits(file: Path, batch: Batch) -> Tensor:
    """By the runtime itself."""
    inputs = batch["tokens"], batch["padding_mask"]
    if file.suffix == ".onnx":
        feed = dict(zip(("tokens", "padding_mask"), (x.numpy() for x in inputs), strict=True))
        return torch.from_numpy(onnxruntime.InferenceSession(file).run(None, feed)[0])
    module = torch.jit.load(file) if file.suffix == ".pt" else torch.export.load(file).module()
    with torch.no_grad():
        return module(*inputs)


@pytest.mark.slow
def test_fit_bundle_predict(tmp_path: Path, shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (tmp_path / "overlay.yaml").write_text(OVERLAY)
    configs = ["--config", "configs/classify.yaml", "--config", str(tmp_path / "overlay.yaml")]
    done = shell("fit", *configs, "--runs_dir", str(tmp_path / "runs"), OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("runs/classify/*/export/manifest.json")
    run, folder, manifest = Run(file.parents[1]), file.parent, json.loads(file.read_text())
    assert list(manifest["artifacts"]) == list(DEFAULT), done.stdout
    sizes = {name: facts["bytes"] for name, facts in manifest["artifacts"].items()}
    assert sizes["onnx-int8"] / sizes["onnx"] == pytest.approx(0.25, abs=0.03)
    assert sizes["torchscript-int8"] / sizes["torchscript"] == pytest.approx(0.25, abs=0.03)

    data = data_module(run)
    data.setup("test")
    batches = list(data.test_dataloader())
    source = Source(run, run.checkpoint())
    expected = [source.run([batch["tokens"], batch["padding_mask"]])[0] for batch in batches[::8]]
    for name in DEFAULT:
        artifact = ARTIFACTS[name]
        given = [logits(folder / artifact.file, batch) for batch in batches[::8]]
        same = torch.cat([(a.argmax(-1) == b.argmax(-1)).float() for a, b in zip(given, expected, strict=True)])
        assert len(same) > 500
        assert same.mean() > (0.97 if artifact.int8 else 0.9999), name
        if not artifact.int8:
            for a, b in zip(given, expected, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=0)

    texts = [data.tokenizer.decode(row.tolist()) for row in batches[-1]["tokens"][:200]]  # type: ignore[attr-defined]
    rows = []
    for source_of in (["--run", str(run.folder)], ["--bundle", str(folder)]):
        done = shell("predict", *source_of, stdin="\n".join(texts))
        assert done.returncode == 0, done.stderr
        rows.append(list(csv.DictReader(done.stdout.splitlines())))
    probabilities = [[float(row["probability"]) for row in side] for side in rows]
    np.testing.assert_allclose(*probabilities, atol=0.03)  # the run predicts in half precision on some processors
    assert np.mean([a["label"] == b["label"] for a, b in zip(*rows, strict=True)]) > 0.98
