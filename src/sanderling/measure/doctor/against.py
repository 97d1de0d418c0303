"""Compare a graph with another of the same names: which weights differ, and from which layer on outputs do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.errors import ModelError
from sanderling.core.statistics import sqnr_db
from sanderling.core.tensor import Array
from sanderling.measure.doctor.findings import Finding, advice, fault, named_first, warning
from sanderling.measure.doctor.ranges import float_names, run_open
from sanderling.model.graph import initializer_array

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_SAME, _SAME_HALF = 1e-6, 2e-3
_FEW_SHARE, _FEW = 0.1, 3
_HALF_TINY = 2.0**-14


@dataclass(frozen=True)
class Kinship:
    """How two graphs are related.

    Attributes:
        other: the other's name, in words.
        allowed_db: least SQNR of a layer that counts as the same; what two precisions allow.
        expected: whether layers below that are to be expected (INT8), so that they are only told.
    """

    other: str
    allowed_db: float = 80.0
    expected: bool = False


def check_weights_against(model: onnx.ModelProto, other: onnx.ModelProto, kinship: Kinship) -> list[Finding]:
    """Name the weights that differ. A few of many are damage; many are another training.

    Raises:
        ModelError: no weight has the same name and shape in both.
    """
    own, theirs = _weights(model), _weights(other)
    shared = [name for name in own if name in theirs and own[name].shape == theirs[name].shape]
    if not shared:
        raise ModelError(f"no weight of {kinship.other} has the name and shape of one here: nothing can be compared")
    apart = {name: distance(own[name], theirs[name]) for name in shared}
    differing = {
        name: far for name, far in apart.items() if far > (_SAME_HALF if _half(own[name], theirs[name]) else _SAME)
    }
    if not differing:
        return []
    if len(differing) > max(_FEW, _FEW_SHARE * len(shared)):
        worst = max(differing.values())
        evidence = (
            f"{len(differing)} of {len(shared)} weights differ from {kinship.other}, by up to {100 * worst:.3g} %"
        )
        remedy = "these are two trainings, or two exports; compare with the model that this one was made from"
        subject = named_first(list(differing), limit=3)
        return [warning("weights-differ", subject, evidence, remedy, weights=len(differing))]
    return [
        fault(
            "weights-differ",
            name,
            f"{_told(own[name], theirs[name])} differ from {kinship.other}, by {100 * far:.3g} % of their size; "
            f"{len(shared) - len(differing)} other weights are the same",
            "one of the two files is damaged: take the one whose golden vectors hold, or export again",
            distance=far,
        )
        for name, far in sorted(differing.items(), key=lambda pair: -pair[1])
    ]


def check_layers_against(
    model: onnx.ModelProto, other: onnx.ModelProto, feeds: Mapping[str, Array], kinship: Kinship
) -> list[Finding]:
    """Name the first layer whose output differs, of those that both graphs have by name."""
    types, theirs = float_names(model), float_names(other)
    produced = {name: node for node in model.graph.node for name in node.output}
    names = [name for name in types if name in theirs and name in produced]
    if not names:
        return []
    expected = next(run_open(model, [feeds], {name: types[name] for name in names}))
    stored = _dequantized(other)
    got = next(run_open(other, [feeds], {stored.get(name, name): theirs[name] for name in names}))
    for name in names:
        ratio = _layer_db(expected[name], got[stored.get(name, name)])
        if ratio < kinship.allowed_db:
            node = produced[name]
            evidence = (
                f"'{name}' ({node.op_type}) is the first of {len(names)} layers to differ from {kinship.other}: "
                f"SQNR {ratio:.1f} dB, {kinship.allowed_db:.0f} dB are to be expected"
            )
            remedy = "keep this node and those before it in float" if kinship.expected else "look at this node first"
            make = advice if kinship.expected else warning
            return [make("layer-diverges", node.name or name, evidence, remedy, sqnr_db=ratio)]
    return []


def distance(own: Array, other: Array) -> float:
    """Size of the difference over the size of the larger, in [0, 2]; infinite where only one is finite."""
    if np.array_equal(own, other, equal_nan=True):
        return 0.0
    x, y = own.astype(np.float64), other.astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("inf")
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(x), np.linalg.norm(y)))


def _layer_db(expected: Array, got: Array) -> float:
    x, y = expected.astype(np.float64), got.astype(np.float64)
    if x.shape != y.shape:
        return -np.inf
    both = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~both], y[~both], equal_nan=True):
        return -np.inf
    return sqnr_db(float(np.square(x[both]).sum()), float(np.square(x[both] - y[both]).sum()))


def _dequantized(model: onnx.ModelProto) -> dict[str, str]:
    """Per tensor that is stored in eight bits, the tensor that holds what they stand for.

    A quantiser drops a Relu or Clip whose bounds the range enforces: only after Q and DQ is the value right.
    """
    sources = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return {
        sources[node.input[0]]: node.output[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in sources
    }


def _told(own: Array, other: Array) -> str:
    """How many of the elements differ, and whether they lie in few output channels."""
    changed = ~np.isclose(own.astype(np.float64), other.astype(np.float64), rtol=1e-2, atol=_HALF_TINY, equal_nan=True)
    text = f"{int(changed.sum())} of {own.size} elements"
    if own.ndim < 2 or not changed.any():
        return text
    rows = np.flatnonzero(changed.reshape(len(own), -1).any(axis=1))
    return f"{text} in {len(rows)} of {len(own)} channels ({named_first([str(row) for row in rows])})"


def _half(own: Array, other: Array) -> bool:
    return np.float16 in (own.dtype.type, other.dtype.type)


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {
        tensor.name: initializer_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type in _FLOATS and np.prod(tensor.dims) > 1
    }
