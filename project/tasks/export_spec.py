"""What an exporter must know of a task's network."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class ExportSpec:
    """How `network` is called.

    Attributes:
        inputs: example tensors, named as in a batch, in the order of the network's arguments. No dimension that varies
            has size 1: torch.export would take it for fixed.
        dynamic: name of each dimension that varies, by input: {"tokens": {0: "batch", 1: "sequence"}}. One is "batch".
        outputs: names of what the network returns, in order.
        max_sizes: the largest size of a dimension, where there is one.
        num_ids: for an input of ids, how many there are; an id lies below.
    """

    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, str]]
    outputs: list[str]
    max_sizes: dict[str, int] = field(default_factory=dict)
    num_ids: dict[str, int] = field(default_factory=dict)
