"""How a mesh of processes shares the weights of a network: FSDP2 along one of its sides, tensor parallelism the other.

Notable:
- along the data-parallel side each process keeps a slice of every weight, and a layer is gathered only while it is used
  (Rajbhandari et al., "ZeRO", 2020; torch's fully_shard);
- along the tensor-parallel side each process keeps some of the heads and a slice of the feed-forward size: the first
  map of a pair is cut by columns, the second by rows, and one sum closes it (Shoeybi et al., "Megatron-LM", 2019);
- processes side by side in a tensor-parallel row see the same batch, and draw the same dropout from the same seed.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from project.nn.encoder import EncoderLayer


def shard(network: nn.Module, mesh: DeviceMesh) -> None:
    """Share out the weights of a network, in place; one whose weights are shared out already stays as it is.

    Args:
        network: any; its layers of the class `EncoderLayer` are gathered one by one and, alone, cut for tensor
            parallelism. It is to be entered through its own `__call__`.
        mesh: with the dimensions "data_parallel" and "tensor_parallel".

    Raises:
        ValueError: the tensor-parallel size divides neither heads nor feed-forward size, or no layer can be cut.
    """
    if any(isinstance(parameter, DTensor) for parameter in network.parameters()):
        return
    data, tensor = mesh["data_parallel"], mesh["tensor_parallel"]
    layers = [module for module in network.modules() if isinstance(module, EncoderLayer)]
    if tensor.size() > 1:
        check_sizes(layers, tensor.size())
        for layer in layers:
            parallelize_module(layer, tensor, plan(layer))
    for module in (*layers, network):  # from the inside out
        fully_shard(module, mesh=data)


def plan(layer: EncoderLayer) -> dict[str, ParallelStyle]:
    """By columns into the heads and into the feed-forward size, by rows out of them."""
    styles: dict[str, ParallelStyle] = {
        "attention.in_projection": ColwiseParallel(),  # its rows lie head by head: a slice of them is whole heads
        "attention.out_projection": RowwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    if layer.feed_forward.gate is not None:
        styles["feed_forward.gate"] = ColwiseParallel()
    return styles


def check_sizes(layers: list[EncoderLayer], size: int) -> None:
    if not layers:
        raise ValueError(
            f"tensor_parallel_size {size} needs an encoder of project.nn.EncoderLayer; other layers take 1"
        )
    for layer in layers:
        num_heads = layer.attention.out_projection.in_features // layer.attention.head_size
        for name, value in {"num_heads": num_heads, "d_ff": layer.feed_forward.down.in_features}.items():
            if value % size:
                raise ValueError(f"tensor_parallel_size {size} must divide the encoder's {name} {value}")
