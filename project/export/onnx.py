"""ONNX, one file, read with ONNX Runtime alone."""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from project.export.artifacts import Array, Contents, digest

if TYPE_CHECKING:
    from onnx import ModelProto

    from project.export.source import Source

OPSET = 20  # ONNX Runtime fails to run attention masks of later ones


def unsupported() -> str | None:
    """Nothing stands in the way."""
    return None


def write(source: "Source", path: Path) -> None:
    import onnx
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # of operators of packages that are not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            source.program,
            (),
            path,
            dynamo=True,
            external_data=False,  # a second file gets lost
            opset_version=OPSET,
            input_names=list(source.spec.inputs),
            output_names=source.spec.outputs,
            verbose=False,
        )
    model = onnx.load(path)
    _name_dimensions(model, [i.shape for i in source.interface.inputs])
    for node in model.graph.node:
        del node.metadata_props[:]  # where in the source it comes from, with the paths of this machine
    onnx.save(model, path)


def write_int8(source: "Source", path: Path) -> None:
    from project.export.quantize import onnx_dynamic

    published, own = path.with_name("model.onnx"), path.with_suffix(".float32")
    try:
        if not published.exists():
            write(source, own)
        onnx_dynamic(published if published.exists() else own, path)
    finally:
        own.unlink(missing_ok=True)


def _name_dimensions(model: "ModelProto", shapes: list[list[str | int]]) -> None:
    """Replace the exporter's symbols (s21) by the names that the task gave (batch)."""
    names = {
        dimension.dim_param: name
        for value, shape in zip(model.graph.input, shapes, strict=True)
        for dimension, name in zip(value.type.tensor_type.shape.dim, shape, strict=True)
        if dimension.dim_param
    }
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]


class Reader:
    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.path = path
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.session.get_inputs()]

    def run(self, inputs: list[Array]) -> list[Array]:
        return self.session.run(None, dict(zip(self.names, inputs, strict=True)))

    def contents(self) -> Contents:
        import onnx

        model = onnx.load(self.path)
        weights = {digest(onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
        nodes = [node.op_type for owner in (model.graph, *model.functions) for node in owner.node]
        random = [n for n in nodes if n in ("Dropout", "Bernoulli", "Multinomial") or n.startswith("Random")]
        shapes = [
            [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        ]
        return Contents(weights, random, shapes)


def read(path: Path, threads: int) -> Reader:
    return Reader(path, threads)
