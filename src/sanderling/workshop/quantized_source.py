"""A source that was quantised elsewhere: the float graph to compare it with, and its INT8 variant as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Feeds
from sanderling.model.graph import read_graph
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.export.source import Exported
from sanderling.workshop.optimize.names import name_nodes
from sanderling.workshop.optimize.passes import Pass, clear_metadata, deduplicate
from sanderling.workshop.optimize.simplify import simplify
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.quantize.foreign import comparable, dequantized
from sanderling.workshop.quantize.qdq import is_quantized
from sanderling.workshop.variants import Made, float_nodes

_EXACT_PASSES = (
    Pass("onnx-ir: duplicates and dead nodes", deduplicate),
    Pass("onnx-ir: exporter's notes", clear_metadata),
)


def divided(
    exported: Exported, options: BuildOptions, progress: Progress
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    """The float graph, and the quantised one where the source is one.

    Raises:
        OptionError: a reference for a float source, or a precision that a quantised source cannot give.
        ModelError: the reference does not fit, or there is none and the graph does not say what it was.
    """
    quantized = is_quantized(exported.model)
    if options.reference is not None and not quantized:
        raise OptionError(f"--reference is for quantised sources: {exported.source.name} is a float model")
    if not quantized:
        return exported.model, None
    other = sorted(set(options.precisions or ()) - {Precision.FP32, Precision.INT8})
    if other:
        raise OptionError(
            f"--precision {','.join(other)} cannot be made of {exported.source.name}, which is quantised already: "
            "build from the float model"
        )
    reference = _reference(exported, options, progress)
    return reference, comparable(exported.model, reference)


def int8_as_it_is(
    reference: onnx.ModelProto, quantized: onnx.ModelProto, probes: Sequence[Feeds], progress: Progress
) -> Iterator[Made]:
    """Yield the float graph and the quantised one, on which only exact passes are run.

    Raises:
        ModelError: the engine does not run the quantised graph.
    """
    yield Made(Precision.FP32, reference)
    try:
        engine().load(quantized.SerializeToString(), EngineOptions()).close()
    except EngineError as error:
        raise ModelError(f"the quantised graph does not load: {first_line(error)}") from error
    same, _ = simplify(quantized, probes, progress, passes=_EXACT_PASSES)
    name_nodes(same)
    yield Made(Precision.INT8, same, float_nodes=float_nodes(same))


def _reference(exported: Exported, options: BuildOptions, progress: Progress) -> onnx.ModelProto:
    if exported.reference is not None:
        return exported.reference
    if options.reference is not None:
        reference = read_graph(options.reference)
        if is_quantized(reference):
            raise ModelError(f"--reference {options.reference.name} is quantised itself: give the float model")
        return reference
    reason = (
        f"{exported.source.name} holds no float model: fp32 is its graph without rounding, so drops do not tell what "
        "quantisation cost the model that it was made from; give that as --reference FLOAT.onnx"
    )
    progress.event(Event(kind="reference-reconstructed", subject="fp32", reason=reason))
    return dequantized(exported.model)
