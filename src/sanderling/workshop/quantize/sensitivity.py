"""What quantising one tensor, or one weight, does to the model's outputs.

The float graph runs once over a few samples. Then each tensor is rounded by itself, and only what follows it runs
again. The noise of different tensors nearly adds up: the search for mixed precision builds on that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from sanderling.core.progress import Progress
from sanderling.core.tensor import Array
from sanderling.measure.samples import Samples
from sanderling.model.cost import graph_cost
from sanderling.model.graph import all_nodes, float_tensors, initializer_array, input_specs
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.quantize.blocks import Block
from sanderling.workshop.quantize.qdq import Scheme, parameters, quantized_blocks
from sanderling.workshop.quantize.tails import Tail, Values, record
from sanderling.workshop.quantize.thresholds import Range
from sanderling.workshop.quantize.weights import output_axis, round_to_nearest

_LEAST_SAMPLES, _MOST_SAMPLES = 2, 16
_RECORDED_BYTES = 512 << 20
_MOST_MACS = 8e11  # of all runs together: a minute or so on two cores
_MOST_CHANNELS = 256


@dataclass(frozen=True)
class TensorNoise:
    """Noise at the outputs when one tensor alone is rounded, as a share of the outputs' energy.

    Attributes:
        whole: every reader gets the rounded tensor, and so does an output that it is.
        readers: only that reader does.
        span: range that the eight bits cover.
        method: that chose the range.
    """

    whole: float
    readers: Mapping[str, float]
    span: Range
    method: str


@dataclass(frozen=True)
class Sensitivity:
    """Noise at the outputs, tensor by tensor and weight by weight.

    Attributes:
        tensors: by name of the tensor that INT8 would store.
        weights: by block.
        samples: that it was measured on.
    """

    tensors: dict[str, TensorNoise]
    weights: dict[str, float]
    samples: int

    @property
    def ranges(self) -> dict[str, Range]:
        """The range that does least for each tensor."""
        return {name: noise.span for name, noise in self.tensors.items()}


def measure_sensitivity(
    model: onnx.ModelProto,
    spans: Mapping[str, Mapping[str, Range]],
    scheme: Scheme,
    samples: Samples,
    *,
    threads: int,
    progress: Progress,
) -> Sensitivity:
    """Round each tensor and each weight of a graph by itself, and compare the outputs.

    Args:
        model: simplified FP32 graph with named nodes and without subgraphs.
        spans: per tensor, the ranges to try by method.
        scheme: its blocks are measured, with its weights.
        samples: calibration data; at most 16 are used, fewer when the graph is large: by its tensors' bytes and its
            multiply–accumulates, not by the clock, so that the same inputs give the same package.
        threads: of one call.
        progress: told about each tensor.
    """
    blocks = quantized_blocks(model, scheme)
    tensors = list(dict.fromkeys(name for block in blocks for name in (*block.inputs, *block.outputs)))
    runs = sum(len(set(spans[name].values())) for name in tensors) / 2  # on average, half of the graph follows
    affordable = int(_MOST_MACS / max(runs * graph_cost(model).macs, 1))
    values = _recorded(model, samples, affordable, threads)
    known = values[0].keys()
    progress.stage("measure sensitivity", len(tensors))
    found: dict[str, TensorNoise] = {}
    weights: dict[str, float] = {}
    makers = {block.outputs[0]: block for block in blocks if block.weight}
    for name in tensors:
        with Tail(model, name, known, threads) as tail:
            found[name] = _tensor_noise(tail, name, spans[name], values)
            if name in makers:
                weights[makers[name].name] = _weight_noise(model, tail, makers[name], scheme, values, threads)
        progress.advance()
    return Sensitivity(found, weights, min(len(samples), sum(_rows(call, model) for call in values)))


def has_subgraphs(model: onnx.ModelProto) -> bool:
    """Whether nodes hold graphs of their own (If, Loop, Scan), whose tensors cannot be rounded one by one."""
    return len(list(all_nodes(model.graph))) > len(model.graph.node)


def round_tensor(array: Array, span: Range) -> npt.NDArray[np.float32]:
    """What uint8 over a range makes of float32 values."""
    scale, zero_point = parameters(span)
    steps = np.clip(np.round(array / scale) + np.float32(zero_point), 0, 255)
    return ((steps - np.float32(zero_point)) * scale).astype(np.float32, copy=False)


def _recorded(model: onnx.ModelProto, samples: Samples, affordable: int, threads: int) -> list[Values]:
    """The float graph's tensors on as many samples as fit into memory and time: one call where the batch is dynamic."""
    tensors = float_tensors(model)
    first = record(model, tensors, [samples.one(0)], threads)
    bytes_each = sum(array.nbytes for array in first[0].values())
    fitting = min(_MOST_SAMPLES, len(samples), _RECORDED_BYTES // max(bytes_each, 1))
    count = max(1, min(fitting, max(affordable, _LEAST_SAMPLES)))
    spread = samples.pick(np.linspace(0, len(samples) - 1, count).round().astype(np.int64))
    dynamic = all(0 in spec.dynamic_axes for spec in input_specs(model)) and not samples.whole
    return record(model, tensors, list(spread.batches(count if dynamic else 1)), threads)


def _rows(call: Values, model: onnx.ModelProto) -> int:
    spec = input_specs(model)[0]
    return len(call[spec.name]) if 0 in spec.dynamic_axes else 1


def _tensor_noise(tail: Tail, name: str, spans: Mapping[str, Range], values: Sequence[Values]) -> TensorNoise:
    by_span: dict[Range, float] = {}
    for span in dict.fromkeys(spans.values()):
        by_span[span] = _noise(tail, name, [round_tensor(call[name], span) for call in values], None, values)
    method = min(spans, key=lambda key: by_span[spans[key]])
    span = spans[method]
    rounded = [round_tensor(call[name], span) for call in values]
    if len(tail.readers) == 1 and not tail.is_output:
        return TensorNoise(by_span[span], {tail.readers[0]: by_span[span]}, span, method)
    readers = {reader: _noise(tail, name, rounded, [reader], values) for reader in tail.readers}
    return TensorNoise(by_span[span], readers, span, method)


def _weight_noise(
    model: onnx.ModelProto, tail: Tail, block: Block, scheme: Scheme, values: Sequence[Values], threads: int
) -> float:
    """Noise of a block whose weight alone is in eight bits."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.name in (block.name, block.activation)]
    array = initializer_array(constants[block.weight])
    weight = scheme.weights.get(block.name) or round_to_nearest(array, axis=output_axis(nodes[0], array))
    names = {name for node in nodes for name in node.input if name in constants}
    initializers = [constants[name] for name in names - {block.weight}]
    initializers.append(onnx.numpy_helper.from_array(weight.dequantized(), block.weight))
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info(block.inputs[0], onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(block.outputs[0], onnx.TensorProto.FLOAT, None)],
        initializers,
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import)
    alone.ir_version = model.ir_version
    executable = engine().load(alone.SerializeToString(), EngineOptions(threads=threads))
    made = [executable.run({block.inputs[0]: call[block.inputs[0]]})[block.outputs[0]] for call in values]
    executable.close()
    return _noise(tail, block.outputs[0], made, None, values)


def _noise(
    tail: Tail, name: str, replacements: Sequence[Array], readers: Sequence[str] | None, values: Sequence[Values]
) -> float:
    """Share of the outputs' energy that differs, the mean over outputs that depend on the tensor or are it.

    Args:
        readers: that get the replacement; None for all of them, and for the output that the tensor may be.
    """
    replaced = tail.readers if readers is None else readers
    shares: dict[str, list[tuple[Array, Array]]] = {output: [] for output in tail.outputs}
    for call, array in zip(values, replacements, strict=True):
        for output, got in tail.run(call, dict.fromkeys(replaced, array)).items():
            shares[output].append((call[output], got))
    noises = [_noise_of([a for a, _ in pairs], [b for _, b in pairs]) for pairs in shares.values()]
    if tail.is_output and readers is None:
        noises.append(_noise_of([call[name] for call in values], replacements))
    return float(np.mean(noises)) if noises else 0.0


def _noise_of(expected: Sequence[Array], got: Sequence[Array]) -> float:
    """Σ(r − q)² / Σr². A map of several kinds of numbers (boxes beside scores) is judged channel by channel."""
    signal, noise = np.float64(0), np.float64(0)
    for r, q in zip(expected, got, strict=True):
        x, y, finite = r.astype(np.float64), q.astype(np.float64), np.isfinite(r)
        x, difference = np.where(finite, x, 0), np.subtract(x, y, out=np.zeros(x.shape), where=finite)
        by_channel = r.ndim > 2 and r.shape[1] <= _MOST_CHANNELS
        axes = tuple(axis for axis in range(r.ndim) if axis != 1) if by_channel else None
        signal, noise = signal + np.square(x).sum(axis=axes), noise + np.square(difference).sum(axis=axes)
    share = noise / np.maximum(signal, 1e-30)
    return float(np.mean(np.where(np.isfinite(share), share, 1e30)))
