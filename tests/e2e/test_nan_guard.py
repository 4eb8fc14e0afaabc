"""A loss that is not finite ends the run at that step; the weights before it stay."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from project.__main__ import main
from project.nn.heads import Pooling


def test_the_examples_and_the_module_are_named_and_the_checkpoint_stays(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forward, calls = Pooling.forward, 0

    def poisoned(self: Pooling, x_BTD: Tensor, padding_mask_BT: Tensor) -> Tensor:
        nonlocal calls
        calls += self.training
        return forward(self, x_BTD, padding_mask_BT) * (torch.nan if calls > 5 and self.training else 1.0)

    monkeypatch.setattr(Pooling, "forward", poisoned)
    assert main(["fit", "--config", str(config), "--runs_dir", str(tmp_path), "--checkpoint.every_n_steps", "1"]) == 1
    error = capsys.readouterr().err
    assert "error: the loss is nan in epoch 0, batch 5, after optimizer step 5: network.pooling is the first" in error
    assert "training rows of the batch: [" in error
    (last,) = tmp_path.glob("tiny/*/checkpoints/last.ckpt")
    content = torch.load(last, weights_only=True)
    assert content["global_step"] == 5
    assert all(value.isfinite().all() for value in content["state_dict"].values())
