"""A file that cannot be read, a call that fails, a process that dies: each is one line, and nothing else ends."""

from pathlib import Path

import numpy as np
import pytest

from project.export.artifacts import ArtifactError
from project.export.interface import Input, Interface
from project.export.process import FreshProcess
from tests.export.conftest import Bundle

INPUTS = [np.ones((2, 3), np.int64), np.ones((2, 3), bool)]


def process(bundle: Bundle, name: str = "onnx") -> FreshProcess:
    interface = Interface.from_json(bundle.manifest["interface"])
    return FreshProcess(name, bundle.folder / bundle.manifest["artifacts"][name]["file"], interface, 1)


def test_answers(bundle: Bundle) -> None:
    with process(bundle) as onnx:
        (logits,) = onnx.run(INPUTS)
        assert logits.shape == (2, 3)
        assert np.isfinite(logits).all()
        assert 0 < onnx.seconds(INPUTS, 3) < 10


def test_refuses_and_goes_on(bundle: Bundle) -> None:
    with process(bundle) as onnx:
        with pytest.raises(ArtifactError, match="ValueError: tokens must lie in"):
            onnx.run([INPUTS[0] * 1000, INPUTS[1]])
        assert onnx.run(INPUTS)[0].shape == (2, 3)


def test_no_such_format(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    interface = Interface([Input("x", "float32", ["batch"])], ["y"], {})
    with (
        FreshProcess("onnx", tmp_path / "model.onnx", interface, 1) as onnx,
        pytest.raises(ArtifactError, match="model"),
    ):
        onnx.contents()


def test_death(bundle: Bundle) -> None:
    with process(bundle) as onnx:
        onnx.run(INPUTS)
        onnx._process.kill()
        with pytest.raises(ArtifactError, match="the process that ran it died, exit code -9"):
            onnx.run(INPUTS)


def test_patience(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("project.export.process.PATIENCE", 0.0)
    with process(bundle) as onnx, pytest.raises(ArtifactError, match="no answer within 0 s"):
        onnx.run(INPUTS)
