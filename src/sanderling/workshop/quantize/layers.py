"""How far each tensor of an INT8 graph is from FP32's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from sanderling.core.statistics import sqnr_db
from sanderling.measure.samples import Samples
from sanderling.workshop.evidence import LayerError
from sanderling.workshop.quantize.histogram import Histogram, open_tensors
from sanderling.workshop.quantize.qdq import Scheme

_SAMPLES = 4


def layer_errors(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    scheme: Scheme,
    histograms: Mapping[str, Histogram],
    samples: Samples,
) -> list[LayerError]:
    """SQNR of the tensors that are stored in eight bits, in FP32's order, over a few calibration samples.

    Args:
        model: FP32.
        quantized: the same graph with Q/DQ nodes, original tensor names kept.
        scheme: that the graph was quantised by.
        histograms: observed range of each tensor.
        samples: the first four are used.
    """
    stored = _dequantized(quantized)
    operators = {name: node.op_type for node in model.graph.node for name in node.output}
    names = [name for name in operators if name in stored and name in histograms]
    exact, rough = open_tensors(model, names), open_tensors(quantized, [stored[name] for name in names])
    signal, noise = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for feeds in samples.pick(np.arange(min(_SAMPLES, len(samples)))).batches(1):
        expected, got = exact.run(feeds), rough.run(feeds)
        for name in names:
            signal[name] += float(np.square(expected[name], dtype=np.float64).sum())
            noise[name] += float(np.square(expected[name].astype(np.float64) - got[stored[name]]).sum())
    exact.close()
    rough.close()
    return [
        LayerError(
            tensor=name,
            operator=operators[name],
            sqnr_db=sqnr_db(signal[name], noise[name]),
            low=histograms[name].low,
            high=histograms[name].high,
            clipped_share=histograms[name].share_outside(scheme.ranges[name]),
            outlier_ratio=histograms[name].outlier_ratio(),
        )
        for name in names
    ]


def _dequantized(quantized: onnx.ModelProto) -> dict[str, str]:
    """Per original tensor, the tensor that holds what its eight bits stand for.

    The quantiser drops a Relu or Clip whose bounds the range enforces; only after Q and DQ is the value right.
    """
    sources = {node.output[0]: node.input[0] for node in quantized.graph.node if node.op_type == "QuantizeLinear"}
    stored = {
        sources[node.input[0]]: node.output[0]
        for node in quantized.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in sources
    }
    outputs = {value.name for value in quantized.graph.output}  # their own names are those of the dequantised values
    return {name if name in outputs else source: name for source, name in stored.items()}
