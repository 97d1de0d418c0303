"""Whether data stays inside the ranges that an INT8 variant was calibrated for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.tensor import Array
from sanderling.measure.doctor.findings import Finding, named_first, warning
from sanderling.measure.doctor.ranges import float_names, run_open
from sanderling.model.graph import initializer_array

_CLIPPED_SHARE = 0.01
_MORE_THAN_GOLDEN = 5.0
_BOUNDS = ("Relu", "Clip")


@dataclass(frozen=True)
class Clipped:
    """How much of a tensor lies outside its quantisation range.

    Attributes:
        low: lowest value that eight bits stand for.
        high: highest value.
        share: of values outside, by more than half a step.
        lowest: value seen.
        highest: value seen.
    """

    low: float
    high: float
    share: float
    lowest: float
    highest: float


def check_calibration(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    calls: Sequence[Mapping[str, Array]],
    golden: Sequence[Mapping[str, Array]],
) -> list[Finding]:
    """Compare FP32's tensors on data with the INT8 variant's ranges, and with what was clipped when it was built.

    Args:
        model: FP32.
        quantized: the same with Q/DQ nodes.
        calls: data.
        golden: inputs of the golden vectors, empty when there are none.
    """
    clipped = clipped_shares(model, quantized, calls)
    before = clipped_shares(model, quantized, golden) if golden else {}
    bad = {
        name: entry
        for name, entry in clipped.items()
        if entry.share > _CLIPPED_SHARE
        and entry.share > _MORE_THAN_GOLDEN * (before[name].share if name in before else 0.0)
    }
    if not bad:
        return []
    worst = sorted(bad, key=lambda name: -bad[name].share)
    entry = bad[worst[0]]
    evidence = (
        f"{len(bad)} of {len(clipped)} tensors leave their INT8 range for more than {100 * _CLIPPED_SHARE:.0f} % of "
        f"their values; '{worst[0]}' for {100 * entry.share:.1f} %: it goes from {entry.lowest:.3g} to "
        f"{entry.highest:.3g}, eight bits stand for {entry.low:.3g} to {entry.high:.3g}"
    )
    numbers = {"tensors": len(bad), "share": entry.share, "low": entry.lowest, "high": entry.highest}
    remedy = "if this data is what the model meets, build again with it as --calibration; else look at the inputs"
    return [warning("recalibrate", named_first(worst), evidence, remedy, **numbers)]


def clipped_shares(
    model: onnx.ModelProto, quantized: onnx.ModelProto, calls: Sequence[Mapping[str, Array]]
) -> dict[str, Clipped]:
    """Per tensor of the FP32 graph that the other stores in eight bits, the share of its values outside the range."""
    ranges = quantization_ranges(quantized)
    bounded = _behind_bounds(model)
    types = float_names(model)
    watched = {bounded.get(name, name): span for name, span in ranges.items() if bounded.get(name, name) in types}
    outside = dict.fromkeys(watched, 0)
    seen = dict.fromkeys(watched, 0)
    ends = dict.fromkeys(watched, (np.inf, -np.inf))
    for arrays in run_open(model, calls, {name: types[name] for name in watched}):
        for name, array in arrays.items():
            low, high = watched[name]
            margin = (high - low) / 510
            outside[name] += int(((array < low - margin) | (array > high + margin)).sum())
            seen[name] += array.size
            ends[name] = (min(ends[name][0], float(array.min())), max(ends[name][1], float(array.max())))
    return {name: Clipped(*watched[name], outside[name] / seen[name], *ends[name]) for name in watched if seen[name]}


def quantization_ranges(quantized: onnx.ModelProto) -> dict[str, tuple[float, float]]:
    """Lowest and highest value that eight bits stand for, by the tensor that a QuantizeLinear with one scale reads."""
    weights = {tensor.name: tensor for tensor in quantized.graph.initializer}
    found = {}
    for node in quantized.graph.node:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3:
            continue
        if node.input[1] not in weights or node.input[2] not in weights:
            continue
        scale, zero = initializer_array(weights[node.input[1]]), initializer_array(weights[node.input[2]])
        if scale.size == 1 and zero.dtype.kind in "iu":
            limits = np.iinfo(zero.dtype)
            step, middle = float(scale.reshape(())), int(zero.reshape(()))
            found[node.input[0]] = ((limits.min - middle) * step, (limits.max - middle) * step)
    return found


def _behind_bounds(model: onnx.ModelProto) -> dict[str, str]:
    """Per tensor that only a Relu or Clip reads, that node's output: a quantiser lets the range do its work."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    returned = {value.name for value in model.graph.output}
    return {
        name: nodes[0].output[0]
        for name, nodes in readers.items()
        if len(nodes) == 1 and nodes[0].op_type in _BOUNDS and nodes[0].input[0] == name and name not in returned
    }
