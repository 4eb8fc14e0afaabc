"""Cut a classifier by its layers into the stages of a pipeline; what a stage keeps, keeps its name."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from project.nn.classifier import SequenceClassifier

FIRST = ("embedding", "dropout", "encoder.position")
LAST = ("encoder.norm", "pooling", "head")


class PassOn(nn.Module):
    """Stands for a part that another stage holds: hands on its first input."""

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        return x


def cut(network: SequenceClassifier, stage: int, stages: int) -> Callable[[], None]:
    """Leave in a network, in place, what one stage computes.

    The first stage maps tokens to hidden states (B, T, D), the last hidden states to logits (B, C), one between them
    hidden states to hidden states; all take the padding mask as second argument.

    Returns:
        Undoes it.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    count = len(list(network.encoder.get_submodule("layers").children()))
    if count < stages:
        raise ValueError(f"an encoder of {count} layers cannot be cut into {stages} stages; use fewer devices")
    mine = range(count * stage // stages, count * (stage + 1) // stages)
    names = [f"encoder.layers.{i}" for i in range(count) if i not in mine]
    names += [*FIRST] if stage > 0 else []
    names += [*LAST] if stage < stages - 1 else []
    whole, scale = {name: network.get_submodule(name) for name in names}, network.embedding_scale

    def undo() -> None:
        network.embedding_scale = scale
        for name, module in whole.items():
            network.set_submodule(name, module.train(network.training))

    network.embedding_scale = scale if stage == 0 else 1.0
    for name in names:
        network.set_submodule(name, PassOn())
    return undo
