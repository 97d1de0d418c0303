"""One step of the way back: a node, the gradients of its outputs, and where those of its inputs go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from sanderling.core.errors import ModelError
from sanderling.workshop.learning.draft import Draft, Shape

Rule = Callable[["Step"], None]
RULES: dict[str, Rule] = {}


def gradient(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the backward rule of operators."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


@dataclass
class Step:
    """What a rule works on.

    Attributes:
        draft: nodes are written to it.
        node: of the forward pass.
        gradients: of the node's outputs, None where nothing flows back.
        wanted: positions of the inputs whose gradient is asked for.
        given: the rule's answers, by position.
    """

    draft: Draft
    node: onnx.NodeProto
    gradients: tuple[str | None, ...]
    wanted: frozenset[int]
    given: dict[int, str] = field(default_factory=dict)

    @property
    def g(self) -> str:
        """Gradient of the first output."""
        found = self.gradients[0]
        assert found is not None
        return found

    @property
    def y(self) -> str:
        """The first output."""
        return str(self.node.output[0])

    def x(self, place: int = 0) -> str:
        """An input."""
        return str(self.node.input[place])

    def has(self, place: int) -> bool:
        """Whether the node has that input."""
        return len(self.node.input) > place and bool(self.node.input[place])

    def shape(self, place: int = 0) -> Shape:
        """Shape of an input."""
        return self.draft.shape(self.x(place))

    @property
    def out_shape(self) -> Shape:
        """Shape of the first output."""
        return self.draft.shape(self.y)

    def give(self, place: int, gradient: str) -> None:
        """Answer with the gradient of an input, which has that input's shape."""
        self.given[place] = gradient

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Write a node with one output."""
        return self.draft.op(kind, *inputs, **attributes)

    def mul(self, left: str, right: str) -> str:
        """Elementwise product."""
        return self.draft.op("Mul", left, right)

    def scaled(self, value: str, factor: float) -> str:
        """Product with a number."""
        return value if factor == 1 else self.draft.op("Mul", value, self.draft.number(factor))

    def where(self, condition: str, value: str) -> str:
        """The value where the condition holds, else 0: as a product, for which engines are ten times as fast."""
        return self.draft.op("Mul", value, self.draft.op("Cast", condition, to=1))

    def summed(self, value: str, axes: Sequence[int], *, keep: bool) -> str:
        """Sum over axes."""
        return self.draft.op("ReduceSum", value, self.draft.integers(axes), keepdims=int(keep))

    def refuse(self, why: str) -> ModelError:
        """The error that names what has no backward rule here."""
        return ModelError(
            f"operator {self.node.op_type} ('{self.node.name or self.y}') has no gradient here: {why}; "
            "train layers behind it (--trainable head), or rewrite the module"
        )


def reduced_to(step: Step, value: str, got: Shape, wanted: Shape) -> str:
    """Sum what was broadcast from ``wanted`` to ``got``."""
    if got == wanted:
        return value
    lead = len(got) - len(wanted)
    inner = [lead + axis for axis, size in enumerate(wanted) if size == 1 and got[lead + axis] != 1]
    if not lead and not inner:
        return value
    if not inner:
        return step.summed(value, range(lead), keep=False)
    total = step.summed(value, [*range(lead), *inner], keep=True)
    return step.op("Squeeze", total, step.draft.integers(range(lead))) if lead else total


def dynamic_axes(shape: Shape) -> list[int]:
    """Positions of the axes whose size is not known."""
    return [axis for axis, size in enumerate(shape) if isinstance(size, str)]


def shape_of(step: Step, name: str) -> str:
    """The shape of a value as an int64 vector, a constant where it can be."""
    shape = step.draft.shape(name)
    if not dynamic_axes(shape):
        return step.draft.integers(int(size) for size in shape)
    return step.op("Shape", name)


def reshaped(step: Step, value: str, like: str) -> str:
    """The same elements in the shape of another value."""
    shape = step.draft.shape(like)
    if len(dynamic_axes(shape)) <= 1:
        return step.op("Reshape", value, step.draft.integers(-1 if isinstance(size, str) else size for size in shape))
    return step.op("Reshape", value, step.op("Shape", like))


def spread(step: Step, value: str, like: str, filled: Sequence[int]) -> str:
    """Broadcast a value to the shape of another, along the axes ``filled``, where it has size 1."""
    shape = step.draft.shape(like)
    if any(isinstance(shape[axis], str) for axis in filled):
        return step.op("Expand", value, step.op("Shape", like))
    target = [int(shape[axis]) if axis in filled else 1 for axis in range(len(shape))]
    return step.op("Expand", value, step.draft.integers(target))


def fixed(step: Step, shape: Shape, axes: Sequence[int]) -> list[int]:
    """Sizes of axes that must be known.

    Raises:
        ModelError: one of them is dynamic.
    """
    sizes = []
    for axis in axes:
        size = shape[axis]
        if isinstance(size, str):
            raise step.refuse(f"axis {axis} has the dynamic size '{size}'")
        sizes.append(size)
    return sizes


def static(step: Step, place: int, what: str) -> np.ndarray:
    """Content of an input that must be constant.

    Raises:
        ModelError: it is computed.
    """
    array = step.draft.known(step.x(place))
    if array is None:
        raise step.refuse(f"its {what} is computed, not constant")
    return array


def positive(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front."""
    return [int(axis) % rank for axis in axes]
