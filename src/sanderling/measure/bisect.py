"""Find the first node whose output an engine computes differently."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from pydantic import BaseModel, ConfigDict

from sanderling.core.progress import Progress, Silent
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, Feeds
from sanderling.model.graph import float_tensors, read_graph, with_outputs
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.run.session import check_one_graph

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


class Bisection(BaseModel):
    """Where two engines part.

    Attributes:
        node: name of the first node whose output diverges; None when none does.
        error: relative error of its output.
        worst: largest relative error over all tensors compared.
        tensors: how many were compared.
    """

    model_config = ConfigDict(frozen=True)

    engine: str
    variant: str
    node: str | None
    op_type: str | None
    tensor: str | None
    error: float | None
    tolerance: float
    worst: float
    tensors: int


def bisect(
    path: str | Path,
    *,
    engine_name: str,
    variant: str | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Bisection:
    """Compare every float tensor of a variant between an engine and ONNX Runtime without optimisation.

    Of a quantised variant the tensors that it stores in integers are compared.

    The graph returns its inner tensors for this, so fusions across them are off: a fault of a fusion shows as outputs
    that differ in ``tune`` while nothing diverges here.

    Args:
        path: the package.
        engine_name: the engine that is looked at.
        variant: id; the chosen one by default.
        tolerance: of the relative error; the variant's golden tolerance by default.
        progress: told about each step.

    Raises:
        OptionError: an unknown engine or variant.
        ModelError: the engine does not take the graph.
    """
    progress = progress or Silent()
    package = Package.open(path)
    check_one_graph(package)
    chosen = package.variant(variant)
    allowed = package.manifest.golden.tolerance[chosen.id] if tolerance is None else tolerance
    model = onnx.shape_inference.infer_shapes(read_graph(package.file(chosen.file)))
    return bisect_graph(
        model,
        package.golden().call(0),
        engine_name=engine_name,
        variant=chosen.id,
        tolerance=allowed,
        progress=progress,
    )


def bisect_graph(
    model: onnx.ModelProto,
    feeds: Feeds,
    *,
    engine_name: str,
    variant: str,
    tolerance: float,
    progress: Progress,
) -> Bisection:
    """Compare every float tensor of a graph, its shapes inferred, between an engine and ONNX Runtime; see ``bisect``.

    Raises:
        OptionError: an unknown engine.
        ModelError: the engine does not take the graph.
    """
    produced = {name: node for node in model.graph.node for name in node.output}
    names = _compared(model, produced)
    data = with_outputs(model, names).SerializeToString()
    progress.stage(f"run {len(names)} tensors on both engines")
    expected = _run(data, "onnxruntime", feeds, Optimization.NONE)
    got = _run(data, engine_name, feeds, Optimization.ALL)
    errors = {name: relative_error(expected[name], got[name]) for name in names if name in expected and name in got}
    first = next((name for name, error in errors.items() if error > tolerance), None)
    node = _maker(first, produced) if first else None
    return Bisection(
        engine=engine_name,
        variant=variant,
        node=(node.name or first) if node else None,
        op_type=node.op_type if node else None,
        tensor=first,
        error=errors[first] if first else None,
        tolerance=tolerance,
        worst=max(errors.values(), default=0.0),
        tensors=len(errors),
    )


def _compared(model: onnx.ModelProto, produced: Mapping[str, onnx.NodeProto]) -> list[str]:
    """Float tensors that nodes make; of a quantised graph those that it stores in integers, and its outputs.

    Between an operator and its rounding an integer kernel has no float tensor to show.
    """
    names = [name for name in float_tensors(model) if name in produced]
    stored = {name for name in names if produced[name].op_type == _DEQUANTIZE and produced[name].input[0] in produced}
    returned = {value.name for value in model.graph.output}
    return [name for name in names if name in stored or name in returned] if stored else names


def _maker(tensor: str, produced: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto:
    """The node that computed a tensor before it was rounded; the rounding itself where it rounds an input."""
    node = produced[tensor]
    while node.op_type in (_QUANTIZE, _DEQUANTIZE) and node.input[0] in produced:
        node = produced[node.input[0]]
    return node


def _run(data: bytes, name: str, feeds: Feeds, optimization: Optimization) -> dict[str, Array]:
    found = engine(name)
    options = EngineOptions(optimization=optimization, compute=found.devices()[0].computes[0])
    executable = found.load(data, options)
    try:
        return executable.run(feeds)
    finally:
        executable.close()
