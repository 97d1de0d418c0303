"""Whether an INT8 variant's numbers are in a ``.ms``: codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from sanderling.core.tensor import Array
from sanderling.workshop.targets.ms.reader import MsModel, MsTensor

if TYPE_CHECKING:
    import onnx

_Weight = tuple[bytes, bytes]  # how often it has each code, and its scales
_CODES = "int8"
_WEIGHTED = ("Conv2DFusion", "Conv2dTransposeFusion", "FullConnection", "MatMulFusion")  # the second input is it
_UNSIGNED_SHIFT = 128  # between uint8 in the graph and int8 in the file


def kept_weights(model: onnx.ModelProto, file: MsModel) -> float:
    """Share of a graph's eight-bit weights that a ``.ms`` has: as many of each code, and the same scales in order.

    The others became float: a layer whose output is float has no eight-bit kernel.

    Args:
        model: with QuantizeLinear and DequantizeLinear.
        file: the ``.ms``, which may order a weight's axes in another way.
    """
    held, wanted = set(_held_weights(file)), _weights(model)
    return _share([weight in held for weight in wanted])


def own_weights(model: onnx.ModelProto, file: MsModel) -> float:
    """Share of a ``.ms``'s eight-bit weights that are the graph's; arguments as above."""
    wanted = set(_weights(model))
    return _share([weight in wanted for weight in _held_weights(file)])


def own_activations(model: onnx.ModelProto, file: MsModel) -> float:
    """Share of a ``.ms``'s eight-bit activations that have a scale and zero point of the graph's.

    Args:
        model: with QuantizeLinear and DequantizeLinear.
        file: the ``.ms``.
    """
    known = {(float(scale[0]), int(zero_point[0])) for codes, scale, zero_point in _quantized(model) if scale.size == 1}
    found = [tensor for tensor in file.tensors if not tensor.data and tensor.dtype == _CODES and tensor.scales]
    own = [(float(_scales(tensor)[0]), tensor.scales[0].zero_point) in known for tensor in found]
    return _share(own)


def _held_weights(file: MsModel) -> list[_Weight]:
    tensors = [file.tensors[node.inputs[1]] for node in file.nodes if node.operator in _WEIGHTED]
    held = [tensor for tensor in tensors if tensor.data and tensor.dtype == _CODES]
    return [_weight(np.frombuffer(tensor.data, np.int8), _scales(tensor)) for tensor in held]


def _weights(model: onnx.ModelProto) -> list[_Weight]:
    return [_weight(codes, scale) for codes, scale, _ in _quantized(model) if codes is not None and codes.ndim > 1]


def _quantized(model: onnx.ModelProto) -> Iterator[tuple[Array | None, Array, Array]]:
    """Codes (None where they are computed), scales and zero points of all that is dequantised, as int8."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear" or not {*node.input[1:]} <= constants.keys():
            continue
        scale = numpy_helper.to_array(constants[node.input[1]]).astype(np.float32).ravel()
        zeros = [numpy_helper.to_array(constants[name]) for name in node.input[2:]]
        shift = _UNSIGNED_SHIFT if not zeros or zeros[0].dtype == np.uint8 else 0
        zero_point = zeros[0].astype(np.int64).ravel() if zeros else np.zeros(scale.size, np.int64)
        codes = numpy_helper.to_array(constants[node.input[0]]) if node.input[0] in constants else None
        yield (None if codes is None else (codes.astype(np.int64) - shift)), scale, zero_point - shift


def _weight(codes: Array, scale: Array) -> _Weight:
    counts = np.bincount(codes.astype(np.int64).ravel() + _UNSIGNED_SHIFT, minlength=256)
    return counts.tobytes(), scale.tobytes()


def _scales(tensor: MsTensor) -> Array:
    return np.array([one.scale for one in tensor.scales], np.float32)


def _share(holds: list[bool]) -> float:
    return sum(holds) / len(holds) if holds else 1.0
