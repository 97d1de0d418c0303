"""The exact GELU, ``x * (1 + erf(x / sqrt 2)) / 2``, in the forms in which exporters write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sanderling.run.litert.graph import Graph, Node

_HALVED = ""  # stands for a division by two
_TOLERANCE = 1e-6  # of constants, which are rounded to float32


@dataclass(frozen=True)
class Chain:
    """A GELU: from ``source`` to ``name``, in the place of ``nodes``."""

    source: str
    name: str
    nodes: tuple[Node, ...]


def find_gelu(graph: Graph, erf: Node, scalar: Callable[[str], float | None]) -> Chain | None:
    """The GELU that an Erf is part of; None where there is none, or where a part of it is used elsewhere.

    Args:
        scalar: the number that a name stands for, None if it is no constant of one element.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    source = _argument(makers, erf, scalar)
    shifted = _only_reader(graph, erf)
    if source is None or shifted is None or shifted.operator != "Add" or _other(shifted, erf.outputs[0], scalar) != 1:
        return None
    nodes = [shifted]
    factors: list[str] = []  # what is multiplied to ``1 + erf``, until it is x and a half
    last = shifted
    while len(nodes) <= 3 and not _is_half_of(source, factors, makers, scalar):
        product = _only_reader(graph, last)
        if product is None or product.operator not in ("Mul", "Div"):
            return None
        factor = next((name for name in product.inputs if name != last.outputs[0]), "")
        if product.operator == "Div" and (scalar(factor) != 2 or product.inputs[1] != factor):
            return None
        factors.append(_HALVED if product.operator == "Div" else factor)
        nodes.append(product)
        last = product
    complete = _is_half_of(source, factors, makers, scalar)
    return Chain(source, last.outputs[0], tuple(nodes)) if complete else None


def _argument(makers: Mapping[str, Node], erf: Node, scalar: Callable[[str], float | None]) -> str | None:
    """x, where Erf reads ``x / sqrt 2``."""
    scaled = makers.get(erf.inputs[0])
    if scaled is None or scaled.operator not in ("Mul", "Div"):
        return None
    wanted = math.sqrt(2) if scaled.operator == "Div" else math.sqrt(0.5)
    names = scaled.inputs if scaled.operator == "Mul" else scaled.inputs[:0:-1]
    for name in names:
        number = scalar(name)
        if number is not None and math.isclose(number, wanted, rel_tol=_TOLERANCE):
            return scaled.inputs[0] if name == scaled.inputs[1] else scaled.inputs[1]
    return None


def _is_half_of(
    source: str, factors: Sequence[str], makers: Mapping[str, Node], scalar: Callable[[str], float | None]
) -> bool:
    """Whether the product of ``factors`` is ``source / 2``."""
    names: list[str] = []
    for factor in factors:
        maker = makers.get(factor)
        inner = maker.inputs if factor != source and maker and maker.operator == "Mul" else (factor,)
        names.extend(inner)
    halves = [name for name in names if name == _HALVED or scalar(name) == 0.5]
    return sorted(names) == sorted([source, *halves]) and len(halves) == 1


def _other(node: Node, name: str, scalar: Callable[[str], float | None]) -> float | None:
    return next((scalar(other) for other in node.inputs if other != name), None)


def _only_reader(graph: Graph, node: Node) -> Node | None:
    readers = graph.readers[node.outputs[0]]
    return readers[0] if len(readers) == 1 and node.outputs[0] not in graph.outputs else None
