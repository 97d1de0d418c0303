"""Reductions."""

from __future__ import annotations

from functools import partial

import numpy as np

from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import Layout, arranged, cheapest, order
from sanderling.run.litert.lowering import Lowering, Writer
from sanderling.run.litert.values import Value

_IN_CODES = ("MEAN",)


def reduce(lowering: Lowering, node: Node, code: str) -> None:
    """Along the axes that are given, or all."""
    rank = len(lowering.value(node.inputs[0]).shape)
    axes = lowering.argument(node, "axes", 1)
    if axes is None or not axes.size:
        if node.attributes.get("noop_with_empty_axes", 0):
            lowering.set_value(node.outputs[0], lowering.value(node.inputs[0]))
            return
        axes = np.arange(rank)
    keep = bool(node.attributes.get("keepdims", 1))
    along(lowering, node, code, tuple(sorted({int(axis) % rank for axis in axes.ravel()})), keep=keep)


def global_pool(lowering: Lowering, node: Node, code: str) -> None:
    """Over all of space."""
    rank = len(node.shapes[0])
    along(lowering, node, code, tuple(range(2, rank)), keep=True)


def along(lowering: Lowering, node: Node, code: str, axes: tuple[int, ...], *, keep: bool) -> None:
    """Reduce along axes of the graph, in whichever layout the input has, if the output's axes stay in order."""
    value, ending = lowering.value(node.inputs[0]), lowering.ending(node)
    quantization = ending.quantization if code in _IN_CODES and value.quantization else None
    if quantization is None:
        value = lowering.real(node.inputs[0])
    layout = cheapest([value])
    rest = [axis for axis in order(len(value.shape), layout) if axis not in axes]
    if not keep and rest != sorted(rest):
        layout = Layout.GRAPH
    tensor = lowering.tensor(value, layout)
    found = order(len(value.shape), layout)
    places = [place for place, axis in enumerate(found) if axis in axes]
    out = layout if keep else Layout.GRAPH
    shape = arranged(node.shapes[0], out)
    result = lowering.emit(
        code,
        [tensor, lowering.ints(places)],
        shape,
        ("ReducerOptions", {"keepDims": keep}),
        dtype=value.dtype,
        quantization=quantization,
    )
    if ending.activation != "NONE":
        result = lowering.like(ending.activation, [result], shape)
    lowering.define(ending.name, node.shapes[0], result, out)


def norm(lowering: Lowering, node: Node) -> None:
    """The root of the sum of squares."""
    value = lowering.real(node.inputs[0])
    squares: Tensor = lowering.like("MUL", [lowering.tensor(value)] * 2, value.shape, ("MulOptions", {}))
    inner = Value(value.name, value.shape, value.dtype, forms={Layout.GRAPH: squares})
    axes = lowering.argument(node, "axes", 1)
    rank = len(value.shape)
    places = sorted({int(axis) % rank for axis in (np.arange(rank) if axes is None else axes.ravel())})
    keep = bool(node.attributes.get("keepdims", 1))
    total = lowering.emit(
        "SUM",
        [lowering.tensor(inner), lowering.ints(places)],
        node.shapes[0],
        ("ReducerOptions", {"keepDims": keep}),
        dtype=value.dtype,
    )
    lowering.define(node.outputs[0], node.shapes[0], lowering.like("SQRT", [total], node.shapes[0]))


def arg_max(lowering: Lowering, node: Node, code: str) -> None:
    """Where the largest or smallest is, the first of equal ones."""
    if node.attributes.get("select_last_index", 0):
        raise node.refused("the last of equal ones has no exact form")
    value = lowering.real(node.inputs[0])
    axis = node.attributes.get("axis", 0) % len(value.shape)
    shape = [size for place, size in enumerate(value.shape) if place != axis]
    option = "ArgMaxOptions" if code == "ARG_MAX" else "ArgMinOptions"
    tensors = [lowering.tensor(value), lowering.ints(np.array(axis))]
    found = lowering.emit(code, tensors, shape, (option, {"outputType": 4}), dtype="int64")  # 4 is INT64
    lowering.define(node.outputs[0], node.shapes[0], lowering.reshape(found, node.shapes[0]))


_CODES = {
    "ReduceMax": "REDUCE_MAX", "ReduceMean": "MEAN", "ReduceMin": "REDUCE_MIN", "ReduceProd": "REDUCE_PROD",
    "ReduceSum": "SUM",
}  # fmt: skip
WRITERS: dict[str, Writer] = {
    **{operator: partial(reduce, code=code) for operator, code in _CODES.items()},
    "ArgMax": partial(arg_max, code="ARG_MAX"),
    "ArgMin": partial(arg_max, code="ARG_MIN"),
    "GlobalAveragePool": partial(global_pool, code="MEAN"),
    "GlobalMaxPool": partial(global_pool, code="REDUCE_MAX"),
    "ReduceL2": norm,
}
