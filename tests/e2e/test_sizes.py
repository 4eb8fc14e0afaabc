"""The sizes that the configurations promise, built as the command line would build them."""

from pathlib import Path

import pytest
import torch
import yaml

from project.nn import Encoder, SequenceClassifier
from tests.e2e.conftest import ROOT, train

# Parameters of encoder and embedding with BERT's vocabulary of 30,522, as in the table beside them.
SIZES = {"tiny": 4_303_616, "small": 28_237_824, "base": 108_890_112}


def settings(size: str) -> dict[str, object]:
    config = yaml.safe_load((ROOT / "configs" / "size" / f"{size}.yaml").read_text())
    init_args: dict[str, object] = config["model"]["init_args"]["encoder"]["init_args"]
    return init_args


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts(size: str) -> None:
    with torch.device("meta"):  # 110 million parameters need no memory to be counted
        encoder = Encoder(**settings(size))  # type: ignore[arg-type]
        network = SequenceClassifier(encoder, 30_522, 26)
    counted = sum(p.numel() for part in (network.embedding, network.encoder) for p in part.parameters())
    assert counted == SIZES[size]
    assert f"{counted / 1e6:.1f} M" in (ROOT / "configs" / "size" / "README.md").read_text()


def test_base_is_the_standard_shape() -> None:
    assert settings("base").items() >= {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}.items()


def test_an_overlay_changes_the_size_and_nothing_else(config: Path, tmp_path: Path) -> None:
    overlay = ["--config", str(ROOT / "configs" / "size" / "tiny.yaml"), "--trainer.max_epochs=1"]
    run = train(config, tmp_path, *overlay)
    model = run.config["model"]["init_args"]
    assert model["encoder"]["init_args"] | settings("tiny") == model["encoder"]["init_args"]
    assert model["encoder"]["init_args"]["max_length"] == 32 and model["optimizer"]["init_args"]["lr"] == 0.01
    weights = torch.load(run.checkpoint(), weights_only=True)["state_dict"]
    assert weights["network.embedding.weight"].shape[1] == 128
