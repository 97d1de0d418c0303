"""Round weights so that a layer's output changes least, instead of each weight to its nearest step.

The error of one weight is made good by those that are not rounded yet, as far as their inputs move together: that
needs the second moments of what the layer reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from sanderling.core.progress import Progress
from sanderling.core.tensor import Array
from sanderling.measure.samples import Samples
from sanderling.model.graph import initializer_array
from sanderling.workshop.quantize.histogram import observed, open_tensors
from sanderling.workshop.quantize.weights import (
    LARGEST,
    Float,
    QuantizedWeight,
    channel_scale,
    group_count,
    output_axis,
)

Moments = npt.NDArray[np.float64]
_POSITIONS = 48  # of each sample and layer: neighbours in a picture say nearly the same
_WIDEST = 2400  # inputs of one output channel; the cost of wider layers grows with the cube, and they lose little
_PASS_BYTES = 256 << 20
_DAMPING = 0.01
_BLOCK_COLUMNS = 64
_MOST_SAMPLES = 64
_SAMPLES_A_PRODUCT = 8


def round_weights(
    model: onnx.ModelProto, samples: Samples, *, threads: int, seed: int, progress: Progress
) -> dict[str, QuantizedWeight]:
    """Eight-bit weights of every convolution, Gemm and MatMul with a constant weight of moderate width.

    Args:
        model: simplified FP32 graph with named nodes.
        samples: calibration data; at most 64 are used, and positions of each are drawn at random.
        threads: of one call.
        seed: of the choice of positions.
        progress: told about each sample.

    Returns:
        By node name; wide layers and other operators are missing, and are rounded to nearest.
    """
    weights = {tensor.name: initializer_array(tensor) for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if _rounds(node, weights)]
    samples = samples.pick(np.linspace(0, len(samples) - 1, min(len(samples), _MOST_SAMPLES)).round().astype(np.int64))
    passes = list(_passes(layers, weights))
    progress.stage("round weights by second moments", len(samples) * len(passes))
    rounded = {}
    for batch in passes:
        moments = _moments(model, batch, weights, samples, threads=threads, seed=seed, progress=progress)
        for node in batch:
            rounded[node.name] = _rounded(node, weights[node.input[1]], moments.pop(node.name))
    return rounded


def round_rows(rows: npt.NDArray[np.float64], moments: Moments, scale: npt.NDArray[np.float64]) -> Array:
    """Round the rows of a matrix so that their products with the inputs change least.

    The way there is greedy: a row that it leaves further off than rounding to nearest would is rounded to nearest.

    Args:
        rows: float64, shape (G, M, K): G groups of M output channels.
        moments: float64, shape (G, K, K): E[x xᵀ] of each group's inputs.
        scale: float64, shape (G, M), > 0: real units per step.

    Returns:
        int8, shape (G, M, K), in [-127, 127].

    Source: Frantar et al., "GPTQ", ICLR 2023, algorithm 1; columns in the order of falling E[x²].
    """
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    sorted_moments = np.take_along_axis(np.take_along_axis(moments, order[:, :, None], 1), order[:, None, :], 2)
    damping = _DAMPING * diagonal.mean(axis=1) + 1e-12
    size = rows.shape[2]
    inverse = np.linalg.inv(sorted_moments + damping[:, None, None] * np.eye(size))
    upper = np.linalg.cholesky(inverse).transpose(0, 2, 1)
    left = np.take_along_axis(rows, order[:, None, :], 2)
    steps = np.empty(rows.shape, np.int8)
    for start in range(0, size, _BLOCK_COLUMNS):  # what a block owes to the columns behind it is settled at once
        end = min(start + _BLOCK_COLUMNS, size)
        errors = np.empty((*rows.shape[:2], end - start))
        for column in range(start, end):
            values = left[:, :, column]
            rounded = np.clip(np.round(values / scale), -LARGEST, LARGEST)
            steps[:, :, column] = rounded
            error = (values - rounded * scale) / upper[:, None, column, column]
            left[:, :, column + 1 : end] -= error[:, :, None] * upper[:, None, column, column + 1 : end]
            errors[:, :, column - start] = error
        left[:, :, end:] -= errors @ upper[:, start:end, end:]
    result = np.empty_like(steps)
    np.put_along_axis(result, np.broadcast_to(order[:, None, :], steps.shape), steps, 2)
    nearest = np.clip(np.round(rows / scale[:, :, None]), -LARGEST, LARGEST).astype(np.int8)
    better = _product_error(rows, result, moments, scale) < _product_error(rows, nearest, moments, scale)
    return np.where(better[:, :, None], result, nearest)


def _product_error(
    rows: npt.NDArray[np.float64], steps: Array, moments: Moments, scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """E[(w·x − q·x)²] of each row, shape (G, M)."""
    difference = rows - steps * scale[:, :, None]
    error: npt.NDArray[np.float64] = ((difference @ moments) * difference).sum(axis=2)
    return error


def _rounds(node: onnx.NodeProto, weights: Mapping[str, Array]) -> bool:
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in weights or node.input[0] in weights:
        return False
    weight = weights[node.input[1]]
    if weight.dtype != np.float32 or not np.isfinite(weight).all():
        return False
    if node.op_type == "Conv":
        padded_by_name = any(attribute.name == "auto_pad" and attribute.s != b"NOTSET" for attribute in node.attribute)
        return weight.ndim == 4 and math.prod(weight.shape[1:]) <= _WIDEST and not padded_by_name
    return weight.ndim == 2 and weight.size // weight.shape[output_axis(node, weight)] <= _WIDEST


def _passes(layers: Sequence[onnx.NodeProto], weights: Mapping[str, Array]) -> Iterator[list[onnx.NodeProto]]:
    """Layers whose moments fit into memory together."""
    batch: list[onnx.NodeProto] = []
    used = 0
    for node in layers:
        groups, width = group_count(node), _width(node, weights[node.input[1]])
        needed = 8 * groups * width * width
        if batch and used + needed > _PASS_BYTES:
            yield batch
            batch, used = [], 0
        batch.append(node)
        used += needed
    if batch:
        yield batch


def _moments(
    model: onnx.ModelProto,
    layers: Sequence[onnx.NodeProto],
    weights: Mapping[str, Array],
    samples: Samples,
    *,
    threads: int,
    seed: int,
    progress: Progress,
) -> dict[str, Moments]:
    """E[x xᵀ] of what each layer reads, per group, over samples and positions drawn at random."""
    generator = np.random.default_rng(seed)
    tensors = list(dict.fromkeys(node.input[0] for node in layers))
    executable = open_tensors(model, tensors, threads)
    held: dict[str, list[npt.NDArray[np.float32]]] = {node.name: [] for node in layers}
    moments: dict[str, Moments] = {node.name: np.zeros(1) for node in layers}
    for outputs in observed(executable, tensors, samples):
        for node in layers:
            held[node.name].append(_columns(node, outputs[node.input[0]], weights[node.input[1]], generator))
            if len(held[node.name]) == _SAMPLES_A_PRODUCT:
                moments[node.name] = moments[node.name] + _products(held[node.name])
                held[node.name] = []
        progress.advance()
    for name, left in held.items():
        if left:
            moments[name] = moments[name] + _products(left)
    executable.close()
    return moments


def _products(columns: Sequence[npt.NDArray[np.float32]]) -> Moments:
    """Sum over samples of the mean of x xᵀ over their vectors, for each group: shape (G, K, K)."""
    x = np.concatenate([part / np.float32(np.sqrt(part.shape[1])) for part in columns], axis=1)
    # With one group, NumPy sees that both factors are the same, and does half the work.
    products = (x[0].T @ x[0])[None] if len(x) == 1 else x.transpose(0, 2, 1) @ x
    moments: Moments = products.astype(np.float64)
    return moments


def _columns(node: onnx.NodeProto, x: Array, weight: Array, generator: np.random.Generator) -> npt.NDArray[np.float32]:
    """Some of the vectors that a layer multiplies with its weight, shape (G, positions, K)."""
    if node.op_type != "Conv":
        if node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute):
            x = x.T
        rows = x.reshape(-1, x.shape[-1])
        chosen = generator.permutation(len(rows))[:_POSITIONS]
        return rows[chosen][None]
    taken = _patches(node, x[generator.integers(len(x))], weight.shape[2:], generator)  # (C, positions, kh * kw)
    groups = group_count(node)
    channels, positions, taps = taken.shape
    shaped = taken.reshape(groups, channels // groups, positions, taps).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(shaped.reshape(groups, positions, -1))


def _patches(node: onnx.NodeProto, image: Array, kernel: Sequence[int], generator: np.random.Generator) -> Array:
    """What the kernel covers at some positions of an image (C, H, W): shape (C, positions, kh * kw)."""
    attributes = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    strides, dilations = attributes.get("strides") or [1, 1], attributes.get("dilations") or [1, 1]
    pads = attributes.get("pads") or [0, 0, 0, 0]
    padded = np.pad(image, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    spans = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    sizes = [(padded.shape[axis + 1] - spans[axis]) // strides[axis] + 1 for axis in (0, 1)]
    chosen = generator.permutation(sizes[0] * sizes[1])[:_POSITIONS]
    rows, columns = chosen // sizes[1] * strides[0], chosen % sizes[1] * strides[1]
    return np.stack(
        [
            padded[:, rows + i * dilations[0], columns + j * dilations[1]]
            for i in range(kernel[0])
            for j in range(kernel[1])
        ],
        axis=2,
    )


def _rounded(node: onnx.NodeProto, weight: Float, moments: Moments) -> QuantizedWeight:
    axis = output_axis(node, weight)
    scale = channel_scale(weight, axis=axis)
    matrix = np.moveaxis(weight, axis, 0)
    groups = group_count(node)
    rows = matrix.reshape(groups, matrix.shape[0] // groups, -1).astype(np.float64)
    steps = round_rows(rows, moments, scale.reshape(groups, -1).astype(np.float64))
    values = np.moveaxis(steps.reshape(matrix.shape), 0, axis)
    return QuantizedWeight(np.ascontiguousarray(values), scale, axis)


def _width(node: onnx.NodeProto, weight: Array) -> int:
    return int(weight.size // weight.shape[output_axis(node, weight)])
