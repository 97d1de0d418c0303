"""What ``.ms`` does not take of a graph, found before anything is converted."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import resources

import onnx

from sanderling.core.errors import ModelError, first_line
from sanderling.core.tensor import TensorSpec
from sanderling.model.activations import COMPOSED
from sanderling.model.graph import all_nodes, input_specs, output_specs
from sanderling.model.lowering import lower
from sanderling.workshop.targets.base import Refusal
from sanderling.workshop.targets.ms.writing import tflite_program

_TAKEN = ("float32", "int32", "int64")
_HELD = "int64"
_NAMED = re.compile(
    r"operator (?P<operator>[\w.]+) \('(?P<node>[^']*)'\)(?: cannot be lowered)?:? ?(?P<reason>.*)", re.DOTALL
)
_OWN_DOMAINS = ("", "ai.onnx")
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")


def refusals(model: onnx.ModelProto) -> tuple[Refusal, ...]:
    """Each input, output and operator that is not taken as it is; what the export rewrites exactly is marked so."""
    found = list(_tensors(model))
    if any(node.op_type in _QUANTIZED for node in model.graph.node):
        return (*found, *_quantized(model))
    return (*found, *_plain(model))


def _tensors(model: onnx.ModelProto) -> Iterator[Refusal]:
    try:
        given, returned = input_specs(model), output_specs(model)
    except ModelError as error:
        yield Refusal("graph", (model.graph.name,), first_line(error))
        return
    for kind, specs in (("input", given), ("output", returned)):
        yield from _dtypes(kind, specs)
    dynamic = tuple(spec.name for spec in given if spec.dynamic_axes)
    if dynamic:
        reason = "a .ms for accelerators has fixed shapes"
        yield Refusal("input", dynamic, reason, "they become those of the golden vectors", automatic=True)


def _dtypes(kind: str, specs: Iterable[TensorSpec]) -> Iterator[Refusal]:
    for spec in specs:
        if spec.dtype not in _TAKEN:
            reason = f"it is {spec.dtype}, and only {', '.join(_TAKEN)} go in and out"
            yield Refusal(kind, (spec.name,), reason, "leave the conversion to the application")
    held = tuple(spec.name for spec in specs if spec.dtype == _HELD)
    if held:
        yield Refusal(kind, held, "it is int64", "it is held as int32, which every value must fit", automatic=True)


def _plain(model: onnx.ModelProto) -> Iterator[Refusal]:
    """Of a float graph, which is lowered and read by the converter as ONNX."""
    if any(tensor.data_type == tensor.FLOAT16 for tensor in model.graph.initializer):
        halves = tuple(tensor.name for tensor in model.graph.initializer if tensor.data_type == tensor.FLOAT16)
        rewrite = "the package's FP32 variant is written, with weights in 16 bits"
        yield Refusal("weight", halves, "it is float16, and the converter reads float32", rewrite, automatic=True)
        yield from _unknown(model, rewritten=frozenset(COMPOSED))
        return
    try:
        lowered = lower(model, "mindspore")
    except ModelError as error:
        told = _told(error, model)
        yield told
        rest = _unknown(model, rewritten=frozenset(COMPOSED))
        yield from (refusal for refusal in rest if refusal.operator != told.operator)
        return
    yield from _rewritten(model, lowered)
    yield from _unknown(lowered)


def _quantized(model: onnx.ModelProto) -> Iterator[Refusal]:
    """Of an INT8 graph, which is written as TFLite and read by the converter as that."""
    from sanderling.run.litert.graph import ContradictionError
    from sanderling.run.litert.operators import WRITERS

    specs = input_specs(model)
    unknown = defaultdict(list)
    for node in all_nodes(model.graph):
        if node.domain not in _OWN_DOMAINS:
            unknown[f"{node.domain}.{node.op_type}"].append(node)
    for operator, nodes in unknown.items():
        yield Refusal(operator, _names(nodes), "it is of a foreign domain")
    if unknown:
        return
    try:
        tflite_program(model, {spec.name: spec.concrete_shape() for spec in specs})
    except ModelError as error:
        if isinstance(error, ContradictionError) and any(axis for spec in specs for axis in spec.dynamic_axes):
            return  # sizes of 1 do not fit this graph; those of the golden vectors may
        told = _told(error, model)
        yield told
        missing = {node.op_type for node in model.graph.node} - WRITERS.keys() - {told.operator}
        for operator in sorted(missing):
            nodes = [node for node in model.graph.node if node.op_type == operator]
            yield Refusal(operator, _names(nodes), "it may have no exact form in eight bits")


def _unknown(model: onnx.ModelProto, rewritten: frozenset[str] = frozenset()) -> Iterator[Refusal]:
    """Operators that the converter's reader of ONNX does not have."""
    known = _readable()
    strange = defaultdict(list)
    for node in all_nodes(model.graph):
        own = node.domain in _OWN_DOMAINS
        if not own or (node.op_type not in known and node.op_type not in rewritten):
            strange[node.op_type if own else f"{node.domain}.{node.op_type}"].append(node)
    for operator, nodes in sorted(strange.items()):
        yield Refusal(operator, _names(nodes), "MindSpore's converter 2.0.0 does not read it")


def _rewritten(model: onnx.ModelProto, lowered: onnx.ModelProto) -> Iterator[Refusal]:
    """What the lowering replaced by other operators."""
    makers = {name: node.op_type for node in lowered.graph.node for name in node.output}
    replaced = defaultdict(list)
    for node in model.graph.node:
        made = makers.get(node.output[0]) if node.output else None
        if made not in (None, node.op_type):
            replaced[node.op_type].append(node)
    for operator, nodes in sorted(replaced.items()):
        yield Refusal(
            operator, _names(nodes), "the converter reads it not, or wrongly", "simpler operators", automatic=True
        )


def _told(error: ModelError, model: onnx.ModelProto) -> Refusal:
    """An error of the lowering as a refusal."""
    match = _NAMED.search(str(error))
    if match is None:
        return Refusal("graph", (model.graph.name,), first_line(error))
    return Refusal(match["operator"], (match["node"],), match["reason"] or first_line(error))


def _names(nodes: Iterable[onnx.NodeProto]) -> tuple[str, ...]:
    return tuple(node.name or node.output[0] for node in nodes)


@functools.cache
def _readable() -> frozenset[str]:
    """Operators that the converter's reader of ONNX has: what version 2.0.0 said of a graph with one of each."""
    return frozenset(resources.files(__package__).joinpath("onnx_operators.txt").read_text("utf-8").split())
