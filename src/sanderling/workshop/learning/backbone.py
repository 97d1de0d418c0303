"""Frozen weights in fewer bytes, unfolded where they are read: a float adapter on a backbone in 16 or 8 bits.

Source: Dettmers et al. 2023, "QLoRA", section 3; here with one scale a row instead of blocks of four bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.tensor import Array
from sanderling.model.learning import Backbone
from sanderling.workshop.learning.draft import Draft

_PREFIX = "frozen."
_LEAST_ELEMENTS = 256
_HEAVY = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Transpose")
_USE = ".use"
_STORED = ".stored"
_SCALE = ".scale"


def compress(draft: Draft, backbone: Backbone, trained: Collection[str]) -> dict[str, Array]:
    """Round large frozen weights to what fewer bytes can hold; every graph computes with the rounded ones.

    Args:
        draft: whose initialisers ``frozen.NAME`` are replaced.
        backbone: ``fp16`` or ``int8``; ``fp32`` changes nothing.
        trained: parameters that stay as they are.

    Returns:
        Rounded float32 weights by parameter name.
    """
    if backbone == "fp32":
        return {}
    rounded = {}
    for value in _large_weights(draft):
        name = value.removeprefix(_PREFIX)
        if name not in trained:
            rounded[name] = draft.initializers[value] = unfolded(stored(draft.initializers[value], backbone))
    return rounded


def stored(array: Array, backbone: Backbone) -> tuple[Array, Array | None]:
    """A weight in fewer bytes: float16, or int8 with a float32 scale for each index of its first axis."""
    if backbone == "fp16":
        limit = float(np.finfo(np.float16).max)
        return np.clip(array, -limit, limit).astype(np.float16), None
    flat = np.abs(array.reshape(len(array), -1)).max(1)
    scale = np.maximum(flat / 127, np.finfo(np.float32).tiny).astype(np.float32)
    wide = scale.reshape(-1, *[1] * (array.ndim - 1))
    return np.clip(np.rint(array / wide), -127, 127).astype(np.int8), scale


def unfolded(pair: tuple[Array, Array | None]) -> Array:
    """The float32 weight that a stored one stands for."""
    values, scale = pair
    if scale is None:
        return values.astype(np.float32)
    return values.astype(np.float32) * scale.reshape(-1, *[1] * (values.ndim - 1))


def _large_weights(draft: Draft) -> list[str]:
    read = {name for node in draft.nodes if node.op_type in _HEAVY for name in node.input}
    return [
        name
        for name, array in draft.initializers.items()
        if name.startswith(_PREFIX)
        and name in read
        and array.dtype == np.float32
        and array.ndim >= 2
        and array.size >= _LEAST_ELEMENTS
    ]


def fold_in(model: onnx.ModelProto, rounded: Mapping[str, Array], backbone: Backbone) -> onnx.ModelProto:
    """Let a graph read compressed weights: each reader unfolds its weight just before it needs it.

    The weights are initialisers that are inputs as well, so that no engine unfolds them once and for all while it
    loads; and every reader has its own node, so that nothing unfolded lives from the way forth to the way back.

    Args:
        model: changed in place.
        rounded: from ``compress``.
        backbone: as there.
    """
    if not rounded:
        return model
    graph = model.graph
    tensors = {tensor.name for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    uses: dict[str, int] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in tensors and name.removeprefix(_PREFIX) in rounded:
                uses[name] = uses.get(name, 0) + 1
                own = f"{name}{_USE}{uses[name]}"
                nodes.append(_unfold(graph, own, rounded[name.removeprefix(_PREFIX)], backbone))
                node.input[place] = own
        nodes.append(node)
    _replace(graph.node, nodes)
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in uses])
    return model


def _unfold(graph: onnx.GraphProto, own: str, weight: Array, backbone: Backbone) -> onnx.NodeProto:
    """Add the stored weight under a name of this use, and return the node that unfolds it."""
    values, scale = stored(weight, backbone)
    _add(graph, f"{own}{_STORED}", values)
    if scale is None:
        return helper.make_node("Cast", [f"{own}{_STORED}"], [own], name=own, to=onnx.TensorProto.FLOAT)
    _add(graph, f"{own}{_SCALE}", scale)
    return helper.make_node("DequantizeLinear", [f"{own}{_STORED}", f"{own}{_SCALE}"], [own], name=own, axis=0)


def _add(graph: onnx.GraphProto, name: str, array: Array) -> None:
    tensor = numpy_helper.from_array(array, name)
    graph.initializer.append(tensor)
    graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(array.shape)))


def to_float(model: onnx.ModelProto) -> None:
    """Undo ``fold_in``: float32 initialisers ``frozen.NAME`` again; changed in place."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    names: dict[str, str] = {}
    plain: dict[str, Array] = {}
    kept = []
    for node in graph.node:
        first = node.input[0] if node.input else ""
        if node.op_type in ("Cast", "DequantizeLinear") and first.endswith(_STORED):
            name = node.output[0].rpartition(_USE)[0]
            scale = numpy_helper.to_array(tensors[node.input[1]]) if len(node.input) > 1 else None
            plain[name] = unfolded((numpy_helper.to_array(tensors[first]), scale))
            names[node.output[0]] = name
            continue
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        kept.append(node)
    gone = {f"{use}{end}" for use in names for end in (_STORED, _SCALE)}
    _replace(graph.node, kept)
    _replace(graph.input, [value for value in graph.input if value.name not in gone])
    unfold = [numpy_helper.from_array(array, name) for name, array in plain.items()]
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in gone] + unfold)


def _replace(field: Any, values: Sequence[Any]) -> None:  # noqa: ANN401 - repeated fields of any message
    copies = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(copies)
