"""An ensemble is the mean of its members' logits, and trains each on its own."""

import torch
from torch import nn

from project.nn import Encoder, Ensemble, SequenceClassifier


def make_ensemble() -> Ensemble:
    torch.manual_seed(0)
    return Ensemble([SequenceClassifier(Encoder(16, 1, 2, max_length=8), 20, 3) for _ in range(3)])


def make_input() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(20, (4, 6)), torch.ones(4, 6, dtype=torch.bool).tril(3)


def test_it_answers_with_the_mean_of_unlike_members() -> None:
    ensemble, inputs = make_ensemble().eval(), make_input()
    each = [member(*inputs) for member in ensemble.members]
    torch.testing.assert_close(ensemble(*inputs), (each[0] + each[1] + each[2]) / 3)
    assert (each[0] - each[1]).abs().max() > 1e-3


def test_a_members_gradient_is_that_of_training_it_alone() -> None:
    ensemble, (tokens, mask) = make_ensemble().train(), make_input()
    for dropout in [part for part in ensemble.modules() if type(part).__name__ == "Dropout"]:
        dropout.eval()
    labels = torch.tensor([0, 1, 2, 0])
    logits_MBC = ensemble(tokens, mask)
    assert logits_MBC.shape == (3, 4, 3)
    nn.functional.cross_entropy(logits_MBC.flatten(0, 1), labels.repeat(3), reduction="sum").backward()
    member = ensemble.members[1]
    together = [p.grad.clone() for p in member.parameters()]
    member.zero_grad()
    nn.functional.cross_entropy(member(tokens, mask), labels, reduction="sum").backward()
    for a, b in zip(together, member.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=0, atol=1e-6)


def test_it_scripts_and_exports_with_dynamic_sizes() -> None:
    ensemble, inputs = make_ensemble().eval(), make_input()
    torch.testing.assert_close(torch.jit.script(ensemble)(*inputs), ensemble(*inputs))
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("sequence", min=1, max=8)}
    exported = torch.export.export(ensemble, inputs, dynamic_shapes=(sizes, sizes)).module()
    one = (inputs[0][:1, :1], inputs[1][:1, :1])
    torch.testing.assert_close(exported(*one), ensemble(*one))
