"""Make the variants of a graph: FP32 as it is, FP16, the best of several INT8, and weights in few bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress
from sanderling.measure.samples import Samples
from sanderling.model.graph import opset_of
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.optimize.half import to_half
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.quantize.histogram import Observation, observe
from sanderling.workshop.quantize.recipe import Quantized, quantize
from sanderling.workshop.quantize.weight_only import is_transformer, to_weight_only

_WEIGHT_BITS = {Precision.INT8_WEIGHTS: 8, Precision.INT4_WEIGHTS: 4}
_OLDEST_PER_CHANNEL_OPSET = 13


@dataclass(frozen=True)
class Made:
    """A variant's graph, which of its heavy nodes stayed float, and for INT8 how it was made."""

    precision: Precision
    model: onnx.ModelProto
    float_nodes: tuple[str, ...] = ()
    quantized: Quantized | None = None


def make_variants(
    model: onnx.ModelProto, calibration: Samples | None, options: BuildOptions, progress: Progress
) -> Iterator[Made]:
    """Yield FP32 first, then each further precision that was asked for and can be made.

    Raises:
        OptionError: INT8 was asked for by name, and there is no calibration data.
    """
    yield Made(Precision.FP32, model)
    wanted = options.precisions or _suiting(model)
    if Precision.INT8 in wanted and calibration is None:
        if options.precisions is not None:
            raise OptionError("--precision int8 needs --calibration DIR|FILE.npz: ranges come from real data")
        reason = "INT8 needs --calibration DIR|FILE.npz"
        progress.event(Event(kind="variant-skipped", subject="int8", reason=reason))
    if not {Precision.FP16, Precision.INT8}.isdisjoint(wanted):
        yield from _observed(model, calibration, wanted, options, progress)
    for precision in (precision for precision in _WEIGHT_BITS if precision in wanted):
        yield from _guarded(partial(_weight_only, model, precision, options, progress), precision, progress)


def _suiting(model: onnx.ModelProto) -> tuple[Precision, ...]:
    """Every precision; those that change weights alone only where most of the bytes are such weights."""
    worthwhile = is_transformer(model)
    return tuple(precision for precision in Precision if worthwhile or precision not in _WEIGHT_BITS)


def _observed(
    model: onnx.ModelProto,
    calibration: Samples | None,
    wanted: Collection[Precision],
    options: BuildOptions,
    progress: Progress,
) -> Iterator[Made]:
    """The precisions that are made by what flows through the graph."""
    seen = _observe(model, calibration, options, progress)
    if Precision.FP16 in wanted:
        yield from _guarded(lambda: _fp16(model, seen, progress), Precision.FP16, progress)
    if Precision.INT8 in wanted and calibration is not None:
        yield from _guarded(lambda: _int8(model, seen, calibration, options, progress), Precision.INT8, progress)


def _observe(
    model: onnx.ModelProto, calibration: Samples | None, options: BuildOptions, progress: Progress
) -> Observation:
    if calibration is None:
        reason = "no calibration data: only weights are checked against FP16's range"
        progress.event(Event(kind="fp16-unproved", subject="fp16", reason=reason))
        return Observation({}, {})
    return observe(model, calibration, threads=options.threads, progress=progress)


def _guarded(make: Callable[[], Made], precision: Precision, progress: Progress) -> Iterator[Made]:
    """Yield the variant if it can be made and loads; otherwise say why it is missing."""
    try:
        made = make()
        engine().load(made.model.SerializeToString(), EngineOptions()).close()
    except (ModelError, EngineError) as error:
        progress.event(Event(kind="variant-skipped", subject=precision, reason=str(error)))
        return
    yield made


def _fp16(model: onnx.ModelProto, seen: Observation, progress: Progress) -> Made:
    progress.stage("convert to FP16")
    try:
        half, kept = to_half(model, seen.ranges, progress)
    except Exception as error:
        raise ModelError(f"FP16 conversion failed: {type(error).__name__}: {first_line(error)}") from error
    return Made(Precision.FP16, half, float_nodes=kept)


def _int8(
    model: onnx.ModelProto, seen: Observation, calibration: Samples, options: BuildOptions, progress: Progress
) -> Made:
    if opset_of(model) < _OLDEST_PER_CHANNEL_OPSET:
        raise ModelError(f"per-channel INT8 needs opset {_OLDEST_PER_CHANNEL_OPSET}: the graph has {opset_of(model)}")
    best = quantize(model, seen, calibration, threads=options.threads, seed=options.seed, progress=progress)
    return Made(Precision.INT8, best.graph, float_nodes=float_nodes(best.graph), quantized=best)


def _weight_only(model: onnx.ModelProto, precision: Precision, options: BuildOptions, progress: Progress) -> Made:
    bits = _WEIGHT_BITS[precision]
    progress.stage(f"store weights in {bits} bits")
    made = to_weight_only(model, bits=bits, group_size=options.group_size, embeddings=not options.float_embeddings)
    return Made(precision, made, float_nodes=float_nodes(made))


def float_nodes(quantized: onnx.ModelProto) -> tuple[str, ...]:
    """Heavy nodes that do not read dequantised values, so that they run in float."""
    dequantized = {node.output[0] for node in quantized.graph.node if node.op_type == "DequantizeLinear"}
    heavy = ("Conv", "ConvTranspose", "MatMul", "Gemm")
    return tuple(
        node.name
        for node in quantized.graph.node
        if node.op_type in heavy and not {node.input[0], node.input[1]} <= dequantized
    )
