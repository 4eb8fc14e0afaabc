"""int8, one function a method. All are dynamic: activations are quantized while running, so none needs calibration."""

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload


def onnx_dynamic(source: Path, path: Path) -> None:
    """ONNX Runtime's: matrix products and the embedding, signed, a scale per output channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    root.addFilter(quiet := lambda record: "pre-processing" not in record.getMessage())  # the exporter has done it
    try:
        quantize_dynamic(source, path, ["MatMul", "Gemm", "Gather"], per_channel=True, weight_type=QuantType.QInt8)
    finally:
        root.removeFilter(quiet)


def eager_dynamic(network: nn.Module, inputs: Sequence[Tensor]) -> nn.Module:
    """torch's first, on modules: linear layers and embeddings. Deprecated; its successor is torchao's, below."""
    from torch.ao.quantization import (
        float_qparams_weight_only_qconfig,
        per_channel_dynamic_qconfig,
        quantize_dynamic,
    )

    methods = {nn.Linear: per_channel_dynamic_qconfig, nn.Embedding: float_qparams_weight_only_qconfig}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated
        quantized: nn.Module = quantize_dynamic(
            network, {name: methods[type(module)] for name, module in called(network, inputs).items()}
        )
    return quantized


def torchao_dynamic(network: nn.Module, inputs: Sequence[Tensor]) -> nn.Module:
    """torchao's, on a copy: linear layers with a scale per output channel and, by `Int8Embedding`, embeddings."""
    for name in ("torchao", "torch.utils._pytree"):  # of kernels for other machines, and of torch's own changes
        logging.getLogger(name).setLevel(logging.ERROR)
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    network = copy.deepcopy(network)
    modules = called(network, inputs)
    for name, module in modules.items():
        if isinstance(module, nn.Embedding):
            network.set_submodule(name, Int8Embedding(module))
    quantize_(
        network, Int8DynamicActivationInt8WeightConfig(), lambda _, name: isinstance(modules.get(name), nn.Linear)
    )
    return network


def torchao_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """torchao's operators in terms of torch's own, so that a program runs without torchao."""
    from torch._inductor.decomposition import decompositions

    return {
        operator: function
        for operator, function in decompositions.items()
        if isinstance(operator, OpOverload) and operator.namespace == "torchao"
    }


def called(network: nn.Module, inputs: Sequence[Tensor]) -> dict[str, nn.Module]:
    """Linear layers and embeddings that the network calls, by name: others only lend their weight, and keep it."""
    names: dict[str, nn.Module] = {}
    hooks = [
        module.register_forward_pre_hook(lambda module, _, name=name: names.update({name: module}))
        for name, module in network.named_modules()
        if type(module) in (nn.Linear, nn.Embedding)
    ]
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()
    return names


class Int8Embedding(nn.Module):
    """An embedding with a scale a row. torchao's would restore the whole table in every call."""

    table: Tensor
    scale: Tensor

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        scale_V1 = embedding.weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        self.register_buffer("table", (embedding.weight / scale_V1).round().to(torch.int8))
        self.register_buffer("scale", scale_V1)

    @property
    def weight(self) -> Tensor:
        """The whole table, for a network that uses it once more, as its last layer."""
        return self.table * self.scale

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.table[tokens_BT] * self.scale[tokens_BT]
