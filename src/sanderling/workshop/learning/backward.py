"""The way back through a graph: gradients of a sum with respect to parameters, as further nodes.

Source: reverse accumulation, Griewank and Walther 2008, "Evaluating Derivatives", chapter 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from sanderling.core.errors import ModelError
from sanderling.workshop.learning.draft import Draft, integer, needed
from sanderling.workshop.learning.gradients import private
from sanderling.workshop.learning.gradients.step import RULES, Rule, Step

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_NO_SLOPE = frozenset(
    {"Shape", "Size", "EyeLike", "Range", "NonZero", "OneHot", "TopK", "ArgMax", "ArgMin", "IsNaN", "IsInf", "Sign"}
    | {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor", "Floor", "Ceil", "Round"}
)


def dependents(nodes: Sequence[onnx.NodeProto], sources: Sequence[str]) -> set[str]:
    """Every value that changes smoothly with one of these, themselves included."""
    reached = set(sources)
    for node in nodes:
        if reached.intersection(node.input) and not _is_flat(node):
            reached.update(node.output)
    return reached


def _is_flat(node: onnx.NodeProto) -> bool:
    """Whether a node's output has no slope anywhere: comparisons, shapes, whole numbers."""
    if node.op_type == "Cast":
        return integer(node, "to", onnx.TensorProto.FLOAT) not in _FLOATS
    return node.op_type in _NO_SLOPE


def write_backward(draft: Draft, loss: str, parameters: Sequence[str]) -> dict[str, str]:
    """Write the nodes that compute ∂loss/∂parameter.

    Args:
        draft: with the forward pass; nodes are added.
        loss: scalar value.
        parameters: values.

    Returns:
        The gradient's value for each parameter that the loss depends on.

    Raises:
        ModelError: an operator on the way has no rule; the message names all such operators.
    """
    return _way_back(draft, loss, parameters, frozenset())


def write_private_backward(draft: Draft, loss: str, parameters: Sequence[str]) -> dict[str, str]:
    """The same, but each sample's own gradient, (N, *shape) for a parameter of that shape.

    Args:
        draft: with the forward pass; nodes are added.
        loss: scalar value, the sum of losses of which each depends on one sample.
        parameters: values.

    Raises:
        ModelError: an operator has no such rule.
    """
    return _way_back(draft, loss, parameters, _made_by(draft, parameters))


def _way_back(draft: Draft, loss: str, parameters: Sequence[str], alone: frozenset[str]) -> dict[str, str]:
    """Reverse accumulation; the gradients of ``alone``, values that parameters alone make, keep the batch in front."""
    moving = dependents(draft.nodes, parameters)
    path = [node for node in needed(draft.nodes, [loss]) if moving.intersection(node.output)]
    _refuse_unknown(path, alone)
    flowing: dict[str, list[str]] = {loss: [draft.constant(np.ones((), np.float32))]}
    for node in reversed(path):
        arrived = tuple(_joined(draft, flowing, name) for name in node.output)
        if not any(arrived):
            continue
        wanted = frozenset(place for place, name in enumerate(node.input) if name in moving)
        own = frozenset(place for place in wanted if node.input[place] in alone)
        for rules, places in ((RULES, wanted - own), (_private_rules(node, alone), own)):
            if places:
                step = Step(draft, node, arrived, places)
                rules[node.op_type](step)
                for place, gradient in step.given.items():
                    flowing.setdefault(node.input[place], []).append(gradient)
    found = {name: _joined(draft, flowing, name) for name in parameters}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def _made_by(draft: Draft, parameters: Sequence[str]) -> frozenset[str]:
    """Values that depend on parameters and constants alone."""
    own, fixed = set(parameters), set(draft.initializers)
    for node in draft.nodes:
        read = {name for name in node.input if name}
        if read <= own | fixed:
            (own if read & own else fixed).update(node.output)
    return frozenset(own)


def _private_rules(node: onnx.NodeProto, alone: frozenset[str]) -> dict[str, Rule]:
    return private.ALONE if node.output[0] in alone else private.MEETING


def _joined(draft: Draft, flowing: dict[str, list[str]], name: str) -> str | None:
    """One gradient of everything that flows back to a value."""
    parts = flowing.get(name)
    if not parts:
        return None
    if len(parts) > 1:
        flowing[name] = parts = [draft.op("Sum", *parts)]
    return parts[0]


def _refuse_unknown(path: Sequence[onnx.NodeProto], alone: frozenset[str]) -> None:
    unknown: dict[str, str] = {}
    for node in path:
        own = alone.intersection(node.input)
        rules = _private_rules(node, alone) if own else RULES
        if node.op_type not in rules or node.op_type not in RULES or node.domain not in ("", "ai.onnx"):
            unknown.setdefault(node.op_type, node.name or node.output[0])
    if unknown:
        named = ", ".join(f"{kind} ('{place}')" for kind, place in sorted(unknown.items()))
        what = "no gradient of each sample" if alone else "no gradient"
        raise ModelError(
            f"{what} is known here for {named}: train layers behind it (--trainable head or REGEX), or replace "
            "it in the module"
        )
