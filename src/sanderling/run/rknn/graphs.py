"""ONNX graphs as Rockchip's toolkit takes them: of fixed shapes, with codes that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.rows import check_rows, has_rows, with_rows
from sanderling.run.rknn.log import raised

if TYPE_CHECKING:
    import onnx

_SCALED, _MIDDLES = ("QuantizeLinear", "DequantizeLinear"), {"uint8": 128, "int8": 0}
_DTYPES = ("float32", "int32", "int64", "bool")


@dataclass(frozen=True)
class NetGraph:
    """An ONNX graph that the toolkit may take.

    Attributes:
        fed: inputs that something reads; the toolkit drops the others, and takes the rest by position.
        by_row: its first axis is dynamic, and rows do not read each other.
        called: what messages call it.
    """

    proto: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    fed: tuple[str, ...]
    by_row: bool
    called: str


def read_net(model: Path | bytes) -> NetGraph:
    """Read a graph with its weights, and check what can be known before it is built.

    Raises:
        ModelError: the graph is invalid, or has inputs, outputs or dynamic axes that the toolkit does not take.
    """
    import onnx

    from sanderling.model.graph import input_specs, output_specs, used_names

    called = called_name(model)
    try:
        proto = onnx.load(model, format="protobuf") if isinstance(model, Path) else onnx.load_from_string(model)
        onnx.checker.check_model(proto)
    except Exception as error:
        raise ModelError(f"rknn does not take {called}: {raised(error)}") from error
    inputs, outputs = input_specs(proto), output_specs(proto)
    used = used_names(proto.graph)
    fed = tuple(spec.name for spec in inputs if spec.name in used)
    kept = [value for value in proto.graph.input if value.name in fed]
    try:
        _check_ends(proto, inputs, outputs)
        by_row = has_rows(inputs, outputs)
        if by_row:
            check_rows(proto)
    except ModelError as error:
        raise ModelError(f"rknn does not take {called}: {error}") from error
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return NetGraph(_with_kept_codes(with_rows(proto, 1)), inputs, outputs, fed, by_row, called)


def called_name(model: Path | bytes) -> str:
    """What messages call a graph."""
    return str(model) if isinstance(model, Path) else "the model"


def _check_ends(proto: onnx.ModelProto, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Refuse inputs and outputs that the toolkit drops, mixes up or ends the process on."""
    for spec in (*inputs, *outputs):
        if spec.dtype not in _DTYPES:
            raise ModelError(f"'{spec.name}' is {spec.dtype}, and only {', '.join(_DTYPES)} goes in and out")
        if not spec.shape:
            raise ModelError(f"'{spec.name}' is a scalar, and only tensors with axes go in and out")
    moving = {spec.name for spec in inputs}
    computed = set()
    for node in proto.graph.node:
        if not moving.isdisjoint(node.input):
            moving.update(node.output)
            computed.update(node.output)
    for spec in outputs:
        if spec.name not in computed:
            raise ModelError(f"output '{spec.name}' is computed from no input, and the toolkit drops it")


def _with_kept_codes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Move 8-bit zero points out of the middle of their type, where the toolkit would change codes and steps.

    There it makes 127 steps of the 128 below the middle, and rounds all codes again. One lower it keeps them: weights
    move with their zero point, and what activations give up is the lowest code.
    """
    held = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type not in _SCALED or node.input[1] not in held:
            continue
        if len(node.input) < 3:  # the toolkit looks for one
            kind = _array(held[node.input[0]]).dtype if node.input[0] in held else np.dtype("uint8")
            zeros = np.zeros(_array(held[node.input[1]]).shape, kind)
            node.input.append(_held(proto, held, f"{node.input[1]}:zero:{kind}", zeros))
        if node.input[2] not in held:
            continue
        zero = _array(held[node.input[2]])
        middle = _MIDDLES.get(zero.dtype.name)
        if middle is None or np.any(zero != middle):
            continue
        if node.input[0] in held:
            codes = _array(held[node.input[0]])
            lower = np.maximum(codes, np.iinfo(codes.dtype).min + 1) - np.ones((), codes.dtype)
            node.input[0] = _held(proto, held, f"{node.input[0]}:lower", lower)
        node.input[2] = _held(proto, held, f"{node.input[2]}:lower", zero - np.ones((), zero.dtype))
    return proto


def _held(proto: onnx.ModelProto, held: dict[str, onnx.TensorProto], name: str, array: Array) -> str:
    """Name of an initialiser with these values, which several nodes may share."""
    if name not in held:
        import onnx

        held[name] = onnx.numpy_helper.from_array(array, name)
        proto.graph.initializer.append(held[name])
    return name


def _array(tensor: onnx.TensorProto) -> Array:
    from sanderling.model.graph import initializer_array

    return initializer_array(tensor)
