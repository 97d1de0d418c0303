"""What FP16 can hold: its largest value, its smallest ones, and the nodes of a graph that go beyond."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from sanderling.model.graph import initializer_array

LARGEST = 65_504.0
SMALLEST_NORMAL = 2.0**-14
SMALLEST = 2.0**-24  # half of it or less becomes 0


def _weight_peaks(model: onnx.ModelProto) -> dict[str, float]:
    """Largest finite absolute value of each FP32 initialiser; FP16 has infinity, which masks use."""
    peaks = {}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = initializer_array(tensor)
            finite = np.abs(array[np.isfinite(array)])
            peaks[tensor.name] = float(finite.max()) if finite.size else 0.0
    return peaks


def overflowing_nodes(model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Nodes that read or write a value beyond FP16's largest, with the reason.

    Args:
        model: FP32 graph with named nodes.
        ranges: lowest and highest value of each tensor on the calibration data.
    """
    peaks = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()} | _weight_peaks(model)
    found = {}
    for node in model.graph.node:
        names = [name for name in (*node.input, *node.output) if peaks.get(name, 0.0) > LARGEST]
        if names:
            found[node.name] = f"'{names[0]}' reaches {peaks[names[0]]:.3g}, FP16 ends at {LARGEST:.0f}"
    return found
