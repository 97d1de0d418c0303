"""In which order blocks go back to float: the most noise away for the least computation first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sanderling.model.cost import GraphCost
from sanderling.workshop.quantize.blocks import Block
from sanderling.workshop.quantize.sensitivity import Sensitivity

_BYTES_LIKE_MACS = 2  # a light block costs what it moves


@dataclass(frozen=True)
class Step:
    """A point on the way from all INT8 to all float.

    Attributes:
        float_blocks: that are float here; each step has those of the one before.
        noise: predicted share of the outputs' energy.
        macs_int8_share: of the multiply–accumulates of all heavy blocks, in [0, 1].
    """

    float_blocks: frozenset[str]
    noise: float
    macs_int8_share: float


def find_path(blocks: Sequence[Block], sensitivity: Sensitivity, cost: GraphCost) -> list[Step]:
    """Steps from every block in INT8 to every block in float.

    Args:
        blocks: that INT8 takes.
        sensitivity: noise of each tensor and weight by itself.
        cost: of the graph's nodes.
    """
    search = _Search(blocks, sensitivity, cost)
    steps = [search.step()]
    while len(steps[-1].float_blocks) < len(blocks):
        search.take_best()
        steps.append(search.step())
    return steps


class _Search:
    """The state of a greedy search: which blocks are float already."""

    def __init__(self, blocks: Sequence[Block], sensitivity: Sensitivity, cost: GraphCost) -> None:
        self._sensitivity = sensitivity
        self._names = {block.name for block in blocks}
        self._makers = {name: block.name for block in blocks for name in block.outputs}
        self._readers: dict[str, list[str]] = {}  # per tensor, the blocks among its readers
        for block in blocks:
            for name in block.inputs:
                self._readers.setdefault(name, []).append(block.name)
        self._touching: dict[str, list[str]] = {
            block.name: [name for name in dict.fromkeys((*block.inputs, *block.outputs)) if name in sensitivity.tensors]
            for block in blocks
        }
        nodes = {node.name: node for node in cost.nodes}
        self._macs = {block.name: nodes[block.name].macs if block.name in nodes else 0 for block in blocks}
        self._costs = {
            block.name: max(self._macs[block.name], _BYTES_LIKE_MACS * nodes[block.name].output_bytes, 1)
            if block.name in nodes
            else 1
            for block in blocks
        }
        self._heavy_macs = max(sum(node.macs for node in cost.nodes), 1)
        self._always_float_macs = self._heavy_macs - sum(self._macs.values())
        self._float: set[str] = set()
        self._moves = self._possible_moves()

    def step(self) -> Step:
        """Where the search is."""
        noise = sum(self._tensor_noise(name, self._float) for name in self._sensitivity.tensors)
        noise += sum(self._sensitivity.weights.get(name, 0.0) for name in self._names - self._float)
        restored = self._always_float_macs + sum(self._macs[name] for name in self._float)
        return Step(frozenset(self._float), noise, 1 - restored / self._heavy_macs)

    def take_best(self) -> None:
        """Put the blocks back that take away most noise for their cost."""
        self._moves = [move for move in self._moves if not move <= self._float]
        best = max(self._moves, key=self._worth)
        self._float |= best

    def _possible_moves(self) -> list[frozenset[str]]:
        """A block by itself; the two ends of an edge; a tensor's maker with all of its readers."""
        moves = {frozenset({name}) for name in self._names}
        for tensor, readers in self._readers.items():
            maker = {self._makers[tensor]} if tensor in self._makers else set()
            moves |= {frozenset({reader} | maker) for reader in readers}
            moves.add(frozenset(maker.union(readers)))
        return sorted(moves, key=sorted)

    def _worth(self, move: frozenset[str]) -> float:
        added = move - self._float
        after = self._float | added
        tensors = {name for block in added for name in self._touching[block]}
        gain = sum(self._tensor_noise(name, self._float) - self._tensor_noise(name, after) for name in tensors)
        gain += sum(self._sensitivity.weights.get(name, 0.0) for name in added)
        return gain / sum(self._costs[name] for name in added)

    def _tensor_noise(self, tensor: str, floats: set[str]) -> float:
        """Noise that a tensor adds: all of it when INT8 makes it, else what its INT8 readers see, and no more."""
        noise = self._sensitivity.tensors[tensor]
        if tensor in self._makers and self._makers[tensor] not in floats:
            return noise.whole
        seen = sum(noise.readers.get(reader, 0.0) for reader in self._readers.get(tensor, ()) if reader not in floats)
        return min(seen, noise.whole)
