"""FP16: weights and computation in half precision, except where the values do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from sanderling.core.progress import Event, Progress
from sanderling.model.graph import sorted_nodes
from sanderling.model.half import overflowing_nodes


def to_half(
    model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], progress: Progress
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Convert to FP16 with ONNX Runtime's converter; inputs and outputs keep their dtype.

    Returns:
        The graph, and the names of the nodes that stay FP32 because they overflow.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    blocked = overflowing_nodes(model, ranges)
    for name, reason in blocked.items():
        progress.event(Event(kind="kept-fp32", subject=name, reason=reason))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    half: onnx.ModelProto = convert_float_to_float16(copy, keep_io_types=True, node_block_list=list(blocked))
    _join_kept(half)
    return sorted_nodes(half), tuple(blocked)


def _join_kept(half: onnx.ModelProto) -> None:
    """Let a value pass between two nodes that stay FP32 without a detour through FP16, where it would overflow."""
    narrowed = {node.output[0]: node.input[0] for node in half.graph.node if _casts_to(node, onnx.TensorProto.FLOAT16)}
    for node in half.graph.node:
        if _casts_to(node, onnx.TensorProto.FLOAT) and node.input[0] in narrowed:
            node.input[0] = narrowed[node.input[0]]


def _casts_to(node: onnx.NodeProto, dtype: int) -> bool:
    return node.op_type == "Cast" and any(
        attribute.name == "to" and attribute.i == dtype for attribute in node.attribute
    )
