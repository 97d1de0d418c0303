"""Look at a language model's graph: its operators are the engine's own, which ONNX's checker does not know."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx

from sanderling.core.errors import ModelError, first_line
from sanderling.model.graph import opset_of, weight_bytes
from sanderling.model.text import OFFSETS, RESIDUAL

_PRODUCTS = ("MatMul", "DynamicQuantizeMatMul", "MatMulNBits")


@dataclass(frozen=True)
class TextProduct:
    """A product with a constant weight: its multiply–accumulates for one token, and the bytes that it reads for it."""

    name: str
    op_type: str
    macs: int
    weight_bytes: int


@dataclass(frozen=True)
class TextGraph:
    """What is known of a language model's graph without running it.

    Attributes:
        parameters: numbers that the weights of the products stand for.
    """

    opset: int
    operators: dict[str, int]
    products: tuple[TextProduct, ...]
    parameters: int
    weight_bytes: int


def read_text_graph(path: Path) -> TextGraph:
    """Read a variant's graph; its weights stay on disk.

    Raises:
        ModelError: it is no ONNX file.
    """
    try:
        model = onnx.load(path, load_external_data=False, format="protobuf")
    except Exception as error:
        raise ModelError(f"{path} is not an ONNX file, or is cut short: {first_line(error)}") from error
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= _cast(model.graph, constants)
    products = tuple(
        TextProduct(node.name, node.op_type, macs, _read_bytes(node, constants))
        for node in model.graph.node
        if node.op_type in _PRODUCTS and not node.name.startswith(RESIDUAL) and (macs := _macs(node, constants))
    )
    return TextGraph(
        opset=opset_of(model),
        operators=dict(Counter(node.op_type for node in model.graph.node).most_common()),
        products=products,
        parameters=sum(product.macs for product in products),
        weight_bytes=sum({_place(tensor): weight_bytes(tensor) for tensor in constants.values()}.values()),
    )


def _cast(graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto]) -> dict[str, onnx.TensorProto]:
    """Constants under the names that they have behind a Cast, as weights in 16 bits are read."""
    return {
        node.output[0]: constants[node.input[0]]
        for node in graph.node
        if node.op_type == "Cast" and node.input[0] in constants
    }


def _place(tensor: onnx.TensorProto) -> str:
    """Where its bytes lie: the head's and the embedding's are the same."""
    where = {entry.key: entry.value for entry in tensor.external_data}
    return f"{where['location']}:{where.get('offset', 0)}" if where else tensor.name


def _read_bytes(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> int:
    return sum(weight_bytes(constants[name]) for name in node.input if name in constants)


def _macs(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> int:
    if node.op_type == "MatMulNBits":
        given = {attribute.name: attribute.i for attribute in node.attribute}
        means = given["K"] // (given["block_size"] + 1) if node.input[0].startswith(OFFSETS) else 0
        return int((given["K"] - means) * given["N"])
    tensor = constants.get(node.input[1])
    return math.prod(tensor.dims) if tensor is not None else 0
