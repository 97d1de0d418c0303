"""Per-layer analysis of a Q/DQ net on Rockchip's simulator, which the toolkit's own analysis refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from sanderling.core.tensor import Array
from sanderling.model.graph import output_specs
from sanderling.run.rknn.toolkit import LayerError

_SEEN = ":seen"


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that also returns every quantised activation, dequantised once more beside its reader.

    A tensor that the graph itself reads cannot be returned: the toolkit then fails.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    held = {tensor.name for tensor in model.graph.initializer}
    made = {output: node for node in model.graph.node for output in node.output}
    shapes = onnx.shape_inference.infer_shapes(model).graph.value_info
    known = {value.name: value for value in shapes}
    returned = {spec.name for spec in output_specs(model)}
    for node in model.graph.node:
        name = node.output[0]
        if node.op_type != "DequantizeLinear" or node.input[0] in held or name in returned or name not in known:
            continue
        if made[node.input[0]].input[0] in {value.name for value in model.graph.input}:
            continue  # an input's own codes
        twin, value = copy.graph.node.add(), copy.graph.output.add()
        twin.CopyFrom(node)
        twin.name, twin.output[0] = f"{node.name}{_SEEN}", f"{name}{_SEEN}"
        value.CopyFrom(known[name])
        value.name = twin.output[0]
    return copy


def compare(model: onnx.ModelProto, expected: Mapping[str, Array], got: Mapping[str, Array]) -> tuple[LayerError, ...]:
    """Cosine similarity of each tensor that ``opened`` returns, in graph order, named by the node that computes it."""
    readers = {node.output[0]: node for node in model.graph.node}
    layers = []
    for name, array in expected.items():
        computed = _computed(readers, name.removesuffix(_SEEN))
        layers.append(LayerError(computed.output[0], computed.op_type, cosine(array, got[name])))
    order = {node.output[0]: place for place, node in enumerate(model.graph.node)}
    return tuple(sorted(layers, key=lambda layer: order[layer.name]))


def cosine(expected: Array, got: Array) -> float:
    """Cosine similarity in [-1, 1]; of two zeros 1."""
    x, y = np.ravel(expected).astype(np.float64), np.ravel(got).astype(np.float64)
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / length if length else float(np.array_equal(x, y))


def worst(layers: Sequence[LayerError], count: int = 3) -> tuple[LayerError, ...]:
    """The layers that lose most by themselves, or where the net has lost most where that is not known."""
    return tuple(sorted(layers, key=lambda layer: layer.entire if layer.single is None else layer.single)[:count])


def _computed(makers: Mapping[str, onnx.NodeProto], name: str) -> onnx.NodeProto:
    """The node whose result a tensor holds, Q/DQ left out."""
    node = makers[name]
    while node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[0] in makers:
        node = makers[node.input[0]]
    return node
