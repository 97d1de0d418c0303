"""Correct biases for what rounding the weights does to each output channel's mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from sanderling.core.tensor import Array
from sanderling.model.graph import initializer_array
from sanderling.workshop.quantize.weights import (
    QuantizedWeight,
    group_count,
    is_transposed,
    output_axis,
    round_to_nearest,
)

Means = Mapping[str, npt.NDArray[np.float64]]


def observed_inputs(model: onnx.ModelProto) -> list[str]:
    """Names of the tensors whose channel means the correction needs: the inputs of convolutions and Gemm."""
    names = {node.input[0]: None for node in model.graph.node if node.op_type in ("Conv", "Gemm")}
    return list(names)


def channel_mean(array: Array) -> npt.NDArray[np.float64]:
    """Mean over everything but axis 1 of an array of shape (N, C, …), shape (C,)."""
    axes = tuple(axis for axis in range(array.ndim) if axis != 1)
    mean: npt.NDArray[np.float64] = array.mean(axis=axes, dtype=np.float64)
    return mean


def correct_biases(
    model: onnx.ModelProto,
    means: Means,
    weights: Mapping[str, QuantizedWeight] | None = None,
    *,
    nodes: Collection[str] | None = None,
) -> onnx.ModelProto:
    """Return the graph with biases that cancel the mean error of rounded weights.

    A convolution with weight error ΔW shifts its output's mean by ΔW·E[x]; that is subtracted from its bias.
    Padding is ignored, as in the source.

    Args:
        model: simplified FP32 graph; it is left alone.
        means: per tensor of ``observed_inputs``, its channel means on the calibration data, shape (C,).
        weights: eight-bit weights by node; the others are rounded to nearest.
        nodes: names of those whose weights are rounded; None for all.

    Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction", ICCV 2019,
    equation 17.
    """
    corrected = onnx.ModelProto()
    corrected.CopyFrom(model)
    tensors = {tensor.name: tensor for tensor in corrected.graph.initializer}
    uses = [name for node in corrected.graph.node for name in node.input]
    for node in corrected.graph.node:
        if node.op_type not in ("Conv", "Gemm") or node.input[0] not in means or node.input[1] not in tensors:
            continue
        if nodes is not None and node.name not in nodes:
            continue
        weight = initializer_array(tensors[node.input[1]])
        rounded = (weights or {}).get(node.name) or round_to_nearest(weight, axis=output_axis(node, weight))
        shift = _shift(node, rounded.dequantized().astype(np.float64) - weight, means[node.input[0]])
        if shift is not None:
            _subtract(corrected.graph, node, tensors, uses, shift)
    return corrected


def _shift(
    node: onnx.NodeProto, error: npt.NDArray[np.float64], mean: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64] | None:
    """Mean shift of each output channel by a weight's error, shape (C_out,); None where the node has another form."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Gemm":
        if attributes.get("transA") and attributes["transA"].i:
            return None
        transposed = is_transposed(node)
        alpha = attributes["alpha"].f if "alpha" in attributes else 1.0
        product: npt.NDArray[np.float64] = alpha * (error @ mean if transposed else mean @ error)
        return product
    summed = error.reshape(*error.shape[:2], -1).sum(axis=2)
    groups = group_count(node)
    grouped = summed.reshape(groups, -1, summed.shape[1])  # (groups, C_out / groups, C_in / groups)
    shift: npt.NDArray[np.float64] = np.einsum("goi,gi->go", grouped, mean.reshape(groups, -1)).reshape(-1)
    return shift


def _subtract(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    weights: dict[str, onnx.TensorProto],
    uses: Sequence[str],
    shift: npt.NDArray[np.float64],
) -> None:
    """Subtract ``shift`` from the node's bias; a missing or shared bias becomes one of its own."""
    old = node.input[2] if len(node.input) > 2 else ""
    if old and old not in weights:
        return  # a computed bias
    bias = np.zeros(len(shift), np.float32) if not old else initializer_array(weights[old])
    if bias.shape != shift.shape:
        return  # a Gemm whose C is broadcast another way
    attributes = {attribute.name: attribute.f for attribute in node.attribute}
    beta = attributes.get("beta", 1.0) if node.op_type == "Gemm" else 1.0
    if beta == 0.0:
        return
    name = old if old and uses.count(old) == 1 else f"{node.output[0]}_bias"
    tensor = onnx.numpy_helper.from_array((bias - shift / beta).astype(np.float32), name)
    if name == old:
        weights[old].CopyFrom(tensor)
        return
    graph.initializer.append(tensor)
    del node.input[2:]
    node.input.append(name)
