"""Whether a graph's values and epsilons fit FP16."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from sanderling.measure.doctor.findings import Finding, advice, fault, named_first, warning
from sanderling.measure.doctor.ranges import Observed, float_names
from sanderling.model.graph import initializer_array
from sanderling.model.half import LARGEST, SMALLEST, SMALLEST_NORMAL, overflowing_nodes

_NORMALIZATIONS = (
    "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
)  # fmt: skip
_ROOTS = ("Sqrt", "Reciprocal", "Pow", "Div")
_DEFAULT_EPSILON = 1e-5
_LOWEST = -1e37
_HALF = (onnx.TensorProto.FLOAT16,)


def check_overflow(
    model: onnx.ModelProto, seen: Observed, *, variant_wrong: str | None, half_target: str | None
) -> list[Finding]:
    """Values beyond FP16's largest, on data and in weights.

    Args:
        model: FP32 graph, or one with FP16 tensors, whose infinities are then the finding.
        seen: its tensors' ranges.
        variant_wrong: what the FP16 variant makes infinite on this data; None when nothing, or without one.
        half_target: a target that computes in FP16, by name.
    """
    broken = _infinities(model, seen)
    if broken:
        return broken
    found = []
    masks = _masks(model, seen)
    for name, reason in overflowing_nodes(model, seen.ranges).items():
        node = next(node for node in model.graph.node if node.name == name)
        ends = [end for tensor in (*node.input, *node.output) for end in seen.ranges.get(tensor, (0.0, 0.0))]
        numbers = {"peak": max(map(abs, ends), default=0.0), "fp16_largest": LARGEST}
        evidence = f"{reason} (on {seen.origin})"
        if not masks.isdisjoint((*node.input, *node.output)):
            remedy = "a mask: FP16 makes it -inf, which is right unless it covers a whole row; -1e4 is safe"
            found.append(warning("fp16-overflow", name, evidence, remedy, **numbers))
        elif variant_wrong is not None:
            remedy = "build the FP16 variant again with such data as --calibration: the node then stays FP32"
            found.append(fault("fp16-overflow", name, f"{evidence}; {variant_wrong}", remedy, **numbers))
        elif half_target is not None:
            remedy = f"keep the node in FP32 on {half_target}, or scale its weights down and the next ones up"
            evidence = f"{evidence}; {half_target} computes in FP16"
            found.append(fault("fp16-overflow", name, evidence, remedy, **numbers))
        else:
            remedy = "right in FP32; keep the node in FP32 where the rest runs in FP16 (a build does)"
            found.append(warning("fp16-overflow", name, evidence, remedy, **numbers))
    return found


def wrong_in_half(seen: Observed, half: onnx.ModelProto, seen_half: Observed) -> str | None:
    """The first tensor that an FP16 variant makes infinite where FP32 does not, in words; None without one.

    An engine may compute in FP32 between two roundings and hide it: what counts is what FP16 stores.

    Args:
        seen: of the FP32 graph.
        half: the FP16 variant.
        seen_half: of the variant, on the same data.
    """
    types = float_names(half)
    for name in (name for node in half.graph.node for name in node.output):
        lost = name in seen_half.not_finite and name not in seen.not_finite
        low = seen.ranges.get(name, (_LOWEST, 0.0))[0]
        sunk = name in seen_half.negative_infinity - seen.negative_infinity and low > _LOWEST
        if types.get(name) in _HALF and (lost or sunk):
            return f"'{name}' of the FP16 variant is not finite"
    return None


def check_finite(model: onnx.ModelProto, seen: Observed, *, real: bool) -> list[Finding]:
    """The first node whose output is NaN or +inf in the graph's own precision.

    Args:
        model: the graph.
        seen: its tensors.
        real: whether the inputs were data; random ones may lie outside what the model is defined for.
    """
    node = next((node for node in model.graph.node if seen.not_finite.keys() & {*node.output}), None)
    if node is None:
        return []
    name = next(name for name in node.output if name in seen.not_finite)
    ends = any(value.name in seen.not_finite for value in model.graph.output)
    share = seen.not_finite[name]
    evidence = f"{100 * share:.3g} % of '{name}' ({node.op_type}) is NaN or infinite on {seen.origin}"
    evidence += ", and so are outputs" if ends else "; outputs are finite"
    make = fault if real and ends else warning
    remedy = "look at this node's inputs: a division by 0, a logarithm or root of a negative number, an overflow"
    return [make("not-finite", node.name, evidence, remedy, share=share)]


def check_epsilons(model: onnx.ModelProto, *, half_target: str | None) -> list[Finding]:
    """Epsilons of normalisations that FP16 turns into 0, or cannot hold at full precision."""
    zero: list[Finding] = []
    small: dict[str, float] = {}
    halves = {tensor.name for tensor in model.graph.initializer if tensor.data_type in _HALF}
    for name, epsilon, source in epsilons(model):
        if epsilon < SMALLEST:
            evidence = f"epsilon is {epsilon:.1e}: FP16's smallest number is {SMALLEST:.1e}, so it becomes 0 there"
            remedy = "raise it to 1e-5 and check the outputs, or keep the node in FP32"
            numbers = {"epsilon": epsilon, "fp16_smallest": SMALLEST}
            certain = half_target is not None or source in halves
            zero.append((fault if certain else warning)("fp16-epsilon", name, evidence, remedy, **numbers))
        elif epsilon < SMALLEST_NORMAL:
            small[name] = epsilon
    if small:
        lowest = min(small.values())
        evidence = (
            f"{len(small)} epsilons from {lowest:.1e}: below {SMALLEST_NORMAL:.1e} FP16 numbers are subnormal, which "
            "some processors take for 0"
        )
        remedy = "keep these nodes in FP32 where the FP16 outputs are not finite"
        zero.append(advice("fp16-epsilon-subnormal", named_first(list(small)), evidence, remedy, epsilon=lowest))
    return zero


def epsilons(model: onnx.ModelProto) -> Iterator[tuple[str, float, str]]:
    """Node, epsilon and the tensor that holds it ("" for an attribute) of every normalisation.

    Besides the operators themselves, ``Add`` or ``Max`` of a small constant before a root or a division.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    scalars = {tensor.name: tensor for tensor in model.graph.initializer if int(np.prod(tensor.dims)) == 1}
    for node in model.graph.node:
        if node.op_type in _NORMALIZATIONS:
            written = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), None)
            yield node.name, _DEFAULT_EPSILON if written is None else float(written), ""
        elif node.op_type in ("Add", "Max", "Clip") and any(
            reader.op_type in _ROOTS for reader in readers.get(node.output[0], [])
        ):
            for name in node.input[1:2] if node.op_type == "Clip" else node.input:
                value = _scalar(scalars.get(name))
                if value is not None and 0 <= value < SMALLEST_NORMAL:
                    yield node.name, value, name


def _masks(model: onnx.ModelProto, seen: Observed) -> set[str]:
    """Tensors that hold numbers near float32's lowest, and none beyond FP16's largest: what attention masks add."""
    spans = dict(seen.ranges)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = initializer_array(tensor)
            spans[tensor.name] = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    return {name for name, (low, high) in spans.items() if low < _LOWEST and high <= LARGEST}


def _scalar(tensor: onnx.TensorProto | None) -> float | None:
    if tensor is None or tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
        return None
    return float(initializer_array(tensor).reshape(()))


def _infinities(model: onnx.ModelProto, seen: Observed) -> list[Finding]:
    """The first FP16 tensor that is not finite on data."""
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    for node in model.graph.node:
        for name in node.output:
            if name in seen.not_finite and types.get(name) in _HALF:
                share = seen.not_finite[name]
                evidence = f"'{name}' is FP16, and {100 * share:.3g} % of it is NaN or infinite on {seen.origin}"
                remedy = "keep the node in FP32, or scale its weights down and the next ones up"
                return [fault("fp16-overflow", node.name, evidence, remedy, share=share, fp16_largest=LARGEST)]
    return []
