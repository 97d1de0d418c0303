"""Make the variants of a graph: FP32 as it is, FP16, and the best of several INT8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress
from sanderling.core.statistics import sqnr_db
from sanderling.measure.samples import Samples
from sanderling.model.graph import opset_of
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.evidence import Candidate, Quantization
from sanderling.workshop.optimize.half import to_half
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.quantize.bias import correct_biases
from sanderling.workshop.quantize.histogram import Observation, observe
from sanderling.workshop.quantize.layers import layer_errors
from sanderling.workshop.quantize.qdq import to_int8
from sanderling.workshop.quantize.thresholds import METHODS

_SELECTION_SAMPLES = 128
_OLDEST_PER_CHANNEL_OPSET = 13


@dataclass(frozen=True)
class Made:
    """A variant's graph, and which of its nodes stayed float and why it was made this way."""

    precision: Precision
    model: onnx.ModelProto
    float_nodes: tuple[str, ...] = ()
    quantization: Quantization | None = None


def make_variants(
    model: onnx.ModelProto, calibration: Samples | None, options: BuildOptions, progress: Progress
) -> Iterator[Made]:
    """Yield FP32 first, then each further precision that was asked for and can be made.

    Raises:
        OptionError: INT8 was asked for by name, and there is no calibration data.
    """
    yield Made(Precision.FP32, model)
    wanted = options.precisions or tuple(Precision)
    if Precision.INT8 in wanted and calibration is None:
        if options.precisions is not None:
            raise OptionError("--precision int8 needs --calibration DIR|FILE.npz: ranges come from real data")
        reason = "INT8 needs --calibration DIR|FILE.npz"
        progress.event(Event(kind="variant-skipped", subject="int8", reason=reason))
    if wanted == (Precision.FP32,):
        return
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
    selection = calibration.pick(np.arange(min(len(calibration), _SELECTION_SAMPLES)))
    recipes = [(method, True) for method in METHODS] + [("minmax", False)]
    progress.stage("quantise to INT8", len(recipes))
    corrected = correct_biases(model, seen.means)
    reference = _outputs(model, selection, options.threads)
    best: onnx.ModelProto | None = None
    tried: list[Candidate] = []
    for method, correct in recipes:
        ranges = {name: METHODS[method](histogram) for name, histogram in seen.histograms.items()}
        try:
            quantized = to_int8(corrected if correct else model, ranges)
        except Exception as error:
            raise ModelError(f"INT8 conversion failed: {type(error).__name__}: {first_line(error)}") from error
        score = _score_db(reference, _outputs(quantized, selection, options.threads))
        if not tried or score > max(candidate.sqnr_db for candidate in tried):
            best = quantized
        tried.append(Candidate(method=method, bias_correction=correct, sqnr_db=score, kept=False))
        progress.advance()
    assert best is not None
    chosen = max(range(len(tried)), key=lambda index: tried[index].sqnr_db)
    tried[chosen] = tried[chosen].model_copy(update={"kept": True})
    layers = layer_errors(model, best, seen.histograms, selection)
    return Made(
        Precision.INT8,
        best,
        float_nodes=float_nodes(best),
        quantization=Quantization(samples=len(calibration), candidates=tuple(tried), layers=tuple(layers)),
    )


def _outputs(model: onnx.ModelProto, samples: Samples, threads: int) -> list[np.ndarray]:
    """Every output of every sample, flattened: one float array a sample."""
    executable = engine().load(model.SerializeToString(), EngineOptions(threads=threads))
    rows = []
    for feeds in samples.batches(1):
        arrays = executable.run(feeds).values()
        rows.append(np.concatenate([array.astype(np.float64).ravel() for array in arrays]))
    executable.close()
    return rows


def _score_db(reference: list[np.ndarray], outputs: list[np.ndarray]) -> float:
    signal = sum(float(np.square(row).sum()) for row in reference)
    noise = sum(float(np.square(row - other).sum()) for row, other in zip(reference, outputs, strict=True))
    return sqnr_db(signal, noise)


def float_nodes(quantized: onnx.ModelProto) -> tuple[str, ...]:
    """Heavy nodes that do not read dequantised values, so that they run in float."""
    dequantized = {node.output[0] for node in quantized.graph.node if node.op_type == "DequantizeLinear"}
    heavy = ("Conv", "ConvTranspose", "MatMul", "Gemm")
    return tuple(
        node.name
        for node in quantized.graph.node
        if node.op_type in heavy and not {node.input[0], node.input[1]} <= dequantized
    )
