"""Where the channels are: second, as in the ONNX graph, or last, as TFLite's convolutions want them.

A tensor is kept in the layout in which it was computed, and turned where an operator needs the other one. Operators
that do not care take the layout for which the fewest elements have to be turned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sanderling.run.litert.values import Value

_FEWEST_AXES = 3  # rows, channels, and one more


class Layout(Enum):
    """Order of a tensor's axes."""

    GRAPH = "as the ONNX graph has it"
    CHANNELS_LAST = "rows, space, channels"


def order(rank: int, layout: Layout) -> tuple[int, ...]:
    """The graph's axes, in the order in which ``layout`` has them."""
    if layout is Layout.GRAPH or rank < _FEWEST_AXES:
        return tuple(range(rank))
    return (0, *range(2, rank), 1)


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes another."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def arranged(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """A shape of the graph, in ``layout``."""
    return tuple(shape[axis] for axis in order(len(shape), layout))


def place_of(axis: int, rank: int, layout: Layout) -> int:
    """Where ``layout`` has an axis of the graph, which may be counted from the end."""
    return order(rank, layout).index(axis % rank)


def turn(rank: int, source: Layout, target: Layout) -> tuple[int, ...]:
    """Permutation that brings a tensor from one layout to another."""
    found = order(rank, source)
    return tuple(found.index(axis) for axis in order(rank, target))


def moves_nothing(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether a permutation leaves the elements where they are in memory: only axes of size 1 change places."""
    kept = [axis for axis in permutation if shape[axis] != 1]
    return kept == sorted(kept)


def cheapest(values: Iterable[Value]) -> Layout:
    """The layout in which operators that do not care read these values."""
    missing = dict.fromkeys(Layout, 0)
    known = False
    for value in values:
        if value.constant is None:
            known = known or Layout.CHANNELS_LAST in value.forms
            for layout in Layout:
                missing[layout] += 0 if layout in value.forms else math.prod(value.shape)
    cheaper = missing[Layout.CHANNELS_LAST] <= missing[Layout.GRAPH]
    return Layout.CHANNELS_LAST if known and cheaper else Layout.GRAPH
