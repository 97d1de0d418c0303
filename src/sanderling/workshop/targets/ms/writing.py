"""One variant of a package as one ``.ms``.

Float graphs are lowered and given to the converter as ONNX. It takes no QuantizeLinear, so an INT8 variant goes by way
of TFLite: ``run/litert`` writes its codes, scales and zero points there, channels last and with the activations that
eight bits enforce, and the converter keeps all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.core.errors import ModelError
from sanderling.core.files import replacing
from sanderling.workshop.targets.ms.converter import Converter
from sanderling.workshop.targets.ms.standins import restored, stand_in

if TYPE_CHECKING:
    import onnx

    from sanderling.run.litert.flatbuffer import Program
    from sanderling.run.litert.graph import Node

Shapes = Mapping[str, tuple[int, ...]]
_WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
_ONE_AXIS_RANK = 3
_UNREAD = ("SELECT_V2", "SIGN")  # operators of TFLite that the converter does not know


def write_float(model: onnx.ModelProto, target: Path, shapes: Shapes, converter: Converter, *, half: bool) -> None:
    """Write a float32 graph.

    Args:
        model: a checked graph with its weights in memory; it is left alone.
        target: the ``.ms``.
        shapes: of every input.
        converter: that writes.
        half: keep weights in 16 bits.

    Raises:
        ModelError: an operator has no form in ``.ms``.
        EngineError: the converter crashed or took too long.
    """
    from sanderling.model.lowering import lower

    lowered = lower(model, "mindspore")
    for value in lowered.graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            axis.dim_value = size
    del lowered.graph.value_info[:]
    _convert(lowered.SerializeToString(deterministic=True), ".onnx", target, converter, half=half)


def write_int8(model: onnx.ModelProto, target: Path, shapes: Shapes, converter: Converter) -> None:
    """Write a graph with QuantizeLinear and DequantizeLinear, with its codes; arguments and errors as above."""
    from sanderling.run.litert.flatbuffer import serialize

    program = tflite_program(model, shapes)
    count = stand_in(program)
    with replacing(target) as temporary:
        written = temporary.with_name("converted.ms")
        _convert(serialize(program), ".tflite", written, converter, half=False)
        temporary.write_bytes(restored(written.read_bytes(), count))


def tflite_program(model: onnx.ModelProto, shapes: Shapes) -> Program:
    """An INT8 graph as a TFLite program that the converter reads.

    Raises:
        ModelError: an operator has no exact form in TFLite, or one that the converter does not know.
    """
    from sanderling.run.litert.graph import read_fixed
    from sanderling.run.litert.lowering import Lowering
    from sanderling.run.litert.operators import WRITERS
    from sanderling.workshop.targets.ms.rewriting import rewrite

    graph = read_fixed(model, shapes, WRITERS)
    for node in graph.nodes:
        _check_space(node)
    program = Lowering(graph).run(WRITERS)
    for operation in program.used():
        approximate = bool(operation.options and operation.options[1].get("approximate"))
        if operation.code in _UNREAD or approximate:
            told = f"MindSpore's converter does not read TFLite's {operation.code}"
            raise ModelError(f"operator {operation.origin}: {told}")
    for tensor, value in zip(program.outputs, model.graph.output, strict=True):
        tensor.name = value.name
    rewrite(program)
    return program


def _check_space(node: Node) -> None:
    """Refuse convolutions and poolings that the converter does not read in TFLite, or the runtime does not load."""
    if node.operator in _WINDOWED and len(node.shapes[0]) == _ONE_AXIS_RANK:
        raise node.refused("MindSpore's converter does not read it with one axis of space, in eight-bit graphs")
    groups = node.attributes.get("group", 1)
    if node.operator == "Conv" and groups > 1 and node.shapes[0][1] != groups:
        told = f"MindSpore Lite does not take its {groups} groups with {node.shapes[0][1]} output channels"
        raise node.refused(f"{told}, in eight-bit graphs: only one channel a group")


def _convert(data: bytes, suffix: str, target: Path, converter: Converter, *, half: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="sanderling-mindspore-") as scratch:
        source = Path(scratch) / f"model{suffix}"
        source.write_bytes(data)
        converter.convert(source, target, half=half)
