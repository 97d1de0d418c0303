"""FP16: weights and computation in half precision, except where the values do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from sanderling.core.progress import Event, Progress
from sanderling.model.graph import initializer_array, sorted_nodes

LARGEST = 65_504.0


def overflowing_nodes(model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Nodes that read or write a value beyond FP16's largest, with the reason.

    Args:
        model: FP32 graph with named nodes.
        ranges: lowest and highest value of each tensor on the calibration data.
    """
    peaks = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = initializer_array(tensor)
            finite = np.abs(array[np.isfinite(array)])  # FP16 has infinity, which masks use
            peaks[tensor.name] = float(finite.max()) if finite.size else 0.0
    found = {}
    for node in model.graph.node:
        names = [name for name in (*node.input, *node.output) if peaks.get(name, 0.0) > LARGEST]
        if names:
            found[node.name] = f"'{names[0]}' reaches {peaks[names[0]]:.3g}, FP16 ends at {LARGEST:.0f}"
    return found


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
