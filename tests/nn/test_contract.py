"""An encoder that breaks the contract is refused before it is trained."""

import pytest
import torch
from torch import Tensor, nn

from project.nn import Encoder, SequenceClassifier
from project.nn.contract import d_model_of


class Broken(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.linear = nn.Linear(8, 8)
        if fault != "no width":
            self.d_model = 8

    def forward(self, x_BTD: Tensor, padding_mask_BT: Tensor) -> object:
        return {
            "narrow": lambda: x_BTD[..., :4],
            "shorter": lambda: x_BTD[:, 1:],
            "tuple": lambda: (x_BTD, None),
            "fails": lambda: self.linear(x_BTD[..., :4]),
        }[self.fault]()


class WithoutMask(nn.Module):
    d_model = 8

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (Broken("no width"), r"Broken has d_model None"),
        (Broken("narrow"), r"Broken made \(3, 2, 4\) of \(3, 2, 8\)"),
        (Broken("shorter"), r"Broken made \(3, 1, 8\) of \(3, 2, 8\)"),
        (Broken("tuple"), r"Broken made tuple of \(3, 2, 8\)"),
        (Broken("fails"), r"Broken fails on \(3, 2, 8\): mat1 and mat2"),
        (WithoutMask(), r"WithoutMask fails on \(3, 2, 8\): .*takes 2 positional arguments but 3 were given"),
    ],
    ids=lambda value: getattr(value, "fault", None),
)
def test_what_is_wrong_is_said_with_the_contract(encoder: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*; an encoder has d_model, a number, and maps \(B, T, d_model\)"):
        SequenceClassifier(encoder, vocab_size=10, num_classes=2)


@pytest.mark.parametrize("training", [True, False])
def test_a_whole_encoder_is_left_as_it_was(training: bool) -> None:
    encoder = Encoder(8, 1, 2).train(training)
    state = torch.get_rng_state()
    assert d_model_of(encoder) == 8
    assert all(module.training is training for module in encoder.modules())
    assert torch.equal(torch.get_rng_state(), state)
