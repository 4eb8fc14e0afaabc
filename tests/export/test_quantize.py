"""What quantization keeps, and what it leaves alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from project.export.artifacts import ARTIFACTS, ArtifactError
from project.export.bundle import export
from project.export.interface import Interface
from project.export.process import FreshProcess
from project.export.quantize import Int8Embedding, called, eager_dynamic
from project.nn import Encoder, SequenceClassifier
from project.runs import Run
from tests.export.conftest import Bundle


def test_int8_embedding_is_off_by_half_a_step_at_most() -> None:
    embedding = nn.Embedding(50, 8)
    with torch.no_grad():
        embedding.weight[3] = 0.0
        embedding.weight[4] *= 1000  # its row has a step of its own
    int8 = Int8Embedding(embedding)
    ids = torch.arange(50).view(5, 10)
    error = (int8(ids) - embedding(ids)).abs().amax(-1)
    step = embedding.weight.abs().amax(1).view(5, 10) / 127
    assert (error <= step / 2 * 1.001).all()
    assert not int8(torch.tensor([3])).any()
    assert torch.equal(int8.weight[ids], int8(ids))
    assert int8.table.dtype == torch.int8


class Lender(nn.Module):
    """Calls one linear layer, and only reads the weight of another."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.lent = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.called(x), self.lent.weight)


def test_only_what_is_called_is_quantized() -> None:
    network, x = Lender(), torch.randn(3, 4)
    assert called(network, [x]) == {"called": network.called}
    quantized = eager_dynamic(network, [x])
    assert torch.equal(quantized.lent.weight, network.lent.weight)
    assert "DynamicQuantizedLinear" in str(quantized)
    assert "Quantized" not in str(network)
    torch.testing.assert_close(quantized(x), network(x), atol=0.1, rtol=0)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
def test_networks_of_ours(position: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(d_model=32, num_layers=1, num_heads=2, max_length=16, position=position)  # type: ignore[arg-type]
    network = SequenceClassifier(encoder, 50, 3).eval()
    inputs = torch.randint(50, (3, 8)), torch.ones(3, 8, dtype=torch.bool)
    quantized = torch.jit.script(eager_dynamic(network, inputs))
    torch.testing.assert_close(quantized(*inputs), network(*inputs), atol=0.1, rtol=0)


@pytest.mark.slow
def test_torchao_and_aotinductor(bundle: Bundle, tmp_path: Path) -> None:
    """All three, published; the program runs without torchao, and the packages refuse what would end them."""
    run = Run(tmp_path)
    for file in bundle.run.folder.iterdir():
        if file.name != "export":
            (tmp_path / file.name).symlink_to(file)
    manifest = export(run, run.checkpoint(), ["pt2-int8", "aoti", "aoti-int8"], max_drop=1.0)
    assert not manifest["failed"]
    assert list(manifest["artifacts"]) == ["pt2-int8", "aoti", "aoti-int8"]
    assert manifest["artifacts"]["aoti"]["parity"] < 1e-4

    program = torch.export.load(tmp_path / "export" / "model-int8.pt2")
    targets = " ".join(str(node.target) for node in program.graph.nodes)
    assert "torchao" not in targets
    assert "aten._int_mm" in targets
    assert any(value.dtype == torch.int8 for value in program.state_dict.values())

    interface = Interface.from_json(manifest["interface"])
    tokens, mask = np.ones((2, 3), np.int64), np.ones((2, 3), bool)
    for name in ("aoti", "aoti-int8"):
        with FreshProcess(name, tmp_path / "export" / ARTIFACTS[name].file, interface, 1) as process:
            for wrong in ([tokens.astype(np.int32), mask], [tokens * 10_000, mask], [tokens.repeat(20, 1), mask]):
                with pytest.raises(ArtifactError, match=r"ValueError: (tokens|padding_mask)"):
                    process.run(wrong)
            assert np.isfinite(process.run([tokens, mask])[0]).all()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from project.export import aoti

    monkeypatch.setattr("shutil.which", lambda name: None)
    assert aoti.unsupported() == "AOTInductor needs a C++ compiler; install g++ or clang"


def test_registry() -> None:
    assert len({artifact.file for artifact in ARTIFACTS.values()}) == len(ARTIFACTS)
    for artifact in ARTIFACTS.values():
        module = artifact.load()
        assert all(hasattr(module, name) for name in ("write", "write_int8", "read", "unsupported"))
