"""Observe a graph's tensors on data: how far each goes, and how much of it lies outside a given range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from sanderling.core.tensor import Array
from sanderling.model.graph import with_outputs
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


@dataclass(frozen=True)
class Observed:
    """What a graph's float tensors did.

    Attributes:
        ranges: lowest and highest finite value by tensor, in graph order.
        not_finite: share of NaN and +inf by tensor, where there are any; a mask's -inf is none.
        negative_infinity: tensors that hold -inf.
        origin: of the data, in words.
    """

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    not_finite: dict[str, float] = field(default_factory=dict)
    negative_infinity: set[str] = field(default_factory=set)
    origin: str = ""


def observe_ranges(model: onnx.ModelProto, calls: Sequence[Mapping[str, Array]], origin: str) -> Observed:
    """Run the graph without optimisation and note every float tensor's range.

    Raises:
        ModelError: the graph does not load.
        EngineError: it does not run.
    """
    seen = Observed(origin=origin)
    bad: dict[str, list[float]] = {}
    for arrays in run_open(model, calls, float_names(model)):
        for name, array in arrays.items():
            finite = array[np.isfinite(array)]
            if finite.size:
                low, high = seen.ranges.get(name, (np.inf, -np.inf))
                seen.ranges[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
            if (array == -np.inf).any():
                seen.negative_infinity.add(name)
            bad.setdefault(name, []).append(float((np.isnan(array) | (array == np.inf)).mean()) if array.size else 0.0)
    seen.not_finite.update({name: float(np.mean(shares)) for name, shares in bad.items() if any(shares)})
    return seen


def float_names(model: onnx.ModelProto) -> dict[str, int]:
    """Inputs and node outputs of 32 or 16 bits, with their ONNX type; unknown types are left out."""
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initializers]
    names += [name for node in model.graph.node for name in node.output if name]
    return {name: types[name] for name in names if types.get(name) in _FLOATS}


def run_open(
    model: onnx.ModelProto, calls: Sequence[Mapping[str, Array]], tensors: Mapping[str, int]
) -> Iterator[dict[str, Array]]:
    """Yield ``tensors`` (by name, with their ONNX type) of every call, inputs included."""
    produced = {name for node in model.graph.node for name in node.output}
    open_graph = with_outputs(model, [name for name in tensors if name in produced])
    executable = engine().load(open_graph.SerializeToString(), EngineOptions(optimization=Optimization.NONE, lean=True))
    try:
        for feeds in calls:
            arrays = {**feeds, **executable.run(feeds)}
            yield {name: arrays[name] for name in tensors if name in arrays}
    finally:
        executable.close()
