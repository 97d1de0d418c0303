"""Even out the ranges of channels that share one scale, by moving factors between the weights around them.

A convolution's output channel divided by s, and what reads it multiplied by s, leave the graph's results as they are,
through Relu and Add too. Not through a Clip at 6: to scale what it bounds would move the bound, and channels that are
quiet on the calibration data are not always quiet (EfficientNet-Lite0 fell to 8 dB on other photos).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sanderling.core.tensor import Array
from sanderling.model.graph import initializer_array, subgraph_names
from sanderling.workshop.quantize.weights import group_count, is_transposed

Extremes = Mapping[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
_STRENGTH = 0.5  # of a full equalisation, which would move all unevenness into the weights
_SMALLEST = 0.02  # of the widest channel: a dead channel is not blown up
_SAME_CHANNELS = ("Relu", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity")


@dataclass(frozen=True)
class ScaleGroup:
    """Tensors whose channels must be divided by the same factors.

    Attributes:
        tensors: in the graph's order.
        stored: those that INT8 stores: what a Relu replaces is left out.
        makers: convolutions and Gemm that make one of them.
        readers: convolutions and Gemm that read one of them.
    """

    tensors: tuple[str, ...]
    stored: tuple[str, ...]
    makers: tuple[str, ...]
    readers: tuple[str, ...]


def equalize(model: onnx.ModelProto, extremes: Extremes) -> onnx.ModelProto:
    """Return the graph with evened channels; it computes the same.

    Args:
        model: simplified FP32 graph with named nodes; it is left alone.
        extremes: per tensor of ``scaled_tensors``, lowest and highest value of each channel, shape (C,).

    Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction", ICCV 2019,
    section 4.1; here the ranges of activations are evened, as weights have a scale for each channel.
    """
    equal = onnx.ModelProto()
    equal.CopyFrom(model)
    tensors = {tensor.name: tensor for tensor in equal.graph.initializer}
    nodes = {node.name: node for node in equal.graph.node}
    for group in scale_groups(model):
        if all(name in extremes for name in group.stored):
            factors = _factors(group, extremes)
            for name in group.makers:
                _divide_outputs(nodes[name], tensors, factors)
            for name in group.readers:
                _multiply_inputs(nodes[name], tensors, factors)
    return equal


def scaled_tensors(model: onnx.ModelProto) -> list[str]:
    """Tensors whose channel extremes ``equalize`` needs."""
    return [name for group in scale_groups(model) for name in group.stored]


def scale_groups(model: onnx.ModelProto) -> list[ScaleGroup]:
    """Every group of tensors whose channels can be scaled without changing results."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    parents: dict[str, str] = {}
    blocked = {value.name for value in (*graph.input, *graph.output)}
    blocked |= subgraph_names(graph)
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(blocked)
    for node in graph.node:
        if node.op_type in _SAME_CHANNELS and not any(name in constants for name in node.input):
            for name in node.input[: 2 if node.op_type == "Add" else 1]:
                parents[_root(parents, name)] = _root(parents, node.output[0])
        elif _scalable(node, constants, uses):
            _root(parents, node.input[0])
            _root(parents, node.output[0])
        else:
            blocked.update(name for name in (*node.input, *node.output) if name not in constants)
    members: dict[str, list[str]] = {}
    for name in (name for node in graph.node for name in node.output if name in parents):
        members.setdefault(_root(parents, name), []).append(name)
    broken = {_root(parents, name) for name in blocked if name in parents}
    groups = [_group(graph, names) for root, names in members.items() if root not in broken]
    return [group for group in groups if _has_one_shape(graph, group, constants)]


def _group(graph: onnx.GraphProto, names: Sequence[str]) -> ScaleGroup:
    inside = set(names)
    replaced = {node.input[0] for node in graph.node if node.op_type == "Relu" and node.output[0] in inside}
    return ScaleGroup(
        tensors=tuple(names),
        stored=tuple(name for name in names if name not in replaced),
        makers=tuple(n.name for n in graph.node if n.op_type in ("Conv", "Gemm") and n.output[0] in inside),
        readers=tuple(n.name for n in graph.node if n.op_type in ("Conv", "Gemm") and n.input[0] in inside),
    )


def _has_one_shape(graph: onnx.GraphProto, group: ScaleGroup, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether all tensors have as many channels and axes: an Add may spread one channel over many."""
    kinds = set()
    for node in graph.node:
        if node.name in (*group.makers, *group.readers):
            dims = constants[node.input[1]].dims
            made = dims[0 if node.op_type == "Conv" or is_transposed(node) else 1]
            read = dims[1] * group_count(node) if node.op_type == "Conv" else math.prod(dims) // made
            kinds |= {(len(dims), made)} if node.name in group.makers else set()
            kinds |= {(len(dims), read)} if node.name in group.readers else set()
    return len(kinds) == 1


def _root(parents: dict[str, str], name: str) -> str:
    parents.setdefault(name, name)
    while parents[name] != name:
        parents[name] = parents[parents[name]]
        name = parents[name]
    return name


def _scalable(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], uses: Mapping[str, int]) -> bool:
    """Whether the channels of what the node reads and makes can be scaled in its own weight and bias."""
    if node.op_type not in ("Conv", "Gemm") or node.input[0] in constants:
        return False
    if any(name not in constants or uses[name] > 1 for name in node.input[1:] if name):
        return False
    if node.op_type == "Gemm":
        plain = {attribute.name: attribute for attribute in node.attribute}
        return not ("transA" in plain and plain["transA"].i) and not ("beta" in plain and plain["beta"].f != 1.0)
    return True


def _factors(group: ScaleGroup, extremes: Extremes) -> npt.NDArray[np.float64]:
    """What to divide each channel by, shape (C,)."""
    reach = np.max([np.maximum(-low, high) for low, high in (extremes[name] for name in group.stored)], axis=0)
    reach = reach.astype(np.float64)
    reach = np.maximum(reach, max(reach.max() * _SMALLEST, 1e-12))
    factors: npt.NDArray[np.float64] = (reach / np.exp(np.log(reach).mean())) ** _STRENGTH
    return factors


def _divide_outputs(
    node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto], factors: npt.NDArray[np.float64]
) -> None:
    weight = initializer_array(tensors[node.input[1]])
    along_rows = node.op_type == "Conv" or is_transposed(node)
    shape = [-1, *[1] * (weight.ndim - 1)] if along_rows else [1, -1]
    _set(tensors[node.input[1]], weight / factors.reshape(shape))
    if len(node.input) > 2 and node.input[2]:
        _set(tensors[node.input[2]], initializer_array(tensors[node.input[2]]) / factors)


def _multiply_inputs(
    node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto], factors: npt.NDArray[np.float64]
) -> None:
    weight = initializer_array(tensors[node.input[1]])
    if node.op_type == "Gemm":
        _set(tensors[node.input[1]], weight * (factors if is_transposed(node) else factors[:, None]))
        return
    parts = weight.reshape(group_count(node), -1, *weight.shape[1:])  # (groups, C_out / groups, C_in / groups, k...)
    scaled = parts * factors.reshape(len(parts), 1, -1, *[1] * (weight.ndim - 2))
    _set(tensors[node.input[1]], scaled.reshape(weight.shape))


def _set(tensor: onnx.TensorProto, value: Array) -> None:
    tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float32), tensor.name))
