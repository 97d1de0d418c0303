"""How an executable hands tensors to its worker through memory that both see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sanderling.core.tensor import Array, Feeds
from sanderling.run.shared_memory import Arena, Place, describe, layout_for, offered

COPIES = "copies"  # name of the block that results are copied to, where the caller gave no arrays
_LENT = "lent"
Attach = Callable[[dict[str, Any]], None]  # sends a block's description to the worker; raises Unshared if it is refused


class Exchange:
    """Two blocks: buffers that were lent to callers, and room for what has to be copied. For one call at a time.

    Each is replaced by a larger one where it is too small. They are apart, so that a call never writes to buffers that
    it was not given, and moves none.
    """

    def __init__(self) -> None:
        self._lent: Arena | None = None
        self._copies: Arena | None = None
        self._result_bytes: dict[str, int] = {}  # the most that each output took

    def lend(self, inputs: Mapping[str, int], outputs: Mapping[str, int], attach: Attach) -> Arena:
        """The buffers, with room for tensors of these sizes in bytes.

        Raises:
            Unshared: there is no such memory.
        """
        self._lent = self._roomy(self._lent, _LENT, inputs, outputs, attach)
        return self._lent

    def place(self, feeds: Feeds, outputs: Feeds | None, attach: Attach) -> tuple[dict[str, Any], int]:
        """Bring inputs where the worker sees them; returns what it is told, and how many bytes were copied.

        Raises:
            Unshared: there is no such memory.
        """
        inside = self._lent_inputs(feeds)
        loose = {name: array for name, array in feeds.items() if name not in inside}
        told = [describe(name, feeds[name], place, _LENT) for name, place in inside.items()]
        written = {} if outputs is None else self._lent_outputs(outputs)
        needed = self._result_bytes if outputs is None else _sizes(outputs, written)
        if loose or needed:
            self._copies = copies = self._roomy(self._copies, COPIES, _sizes(loose), needed, attach)
            for name, array in loose.items():
                place = copies.layout.inputs[name]
                np.copyto(copies.view(place, array.dtype, array.shape), array)
                told.append(describe(name, array, place, COPIES))
        header: dict[str, Any] = {"inputs": told}
        if outputs is not None:
            header["outputs"] = [describe(name, outputs[name], place, _LENT) for name, place in written.items()]
            header["outputs"] += [describe(name, outputs[name], self._copied_output(name), COPIES) for name in needed]
        return header, sum(array.nbytes for array in loose.values())

    def take(self, outputs: Feeds) -> int:
        """Bring results to the caller's arrays where they are not there; returns how many bytes were copied."""
        written = self._lent_outputs(outputs)
        away = {name: array for name, array in outputs.items() if name not in written}
        for name, array in away.items():
            np.copyto(array, self._view_of_output(name, array.dtype, array.shape))
        return sum(array.nbytes for array in away.values())

    def results(self, answer: Mapping[str, Any], sent: Feeds) -> dict[str, Array]:
        """Results of a call without arrays for them: copies of those in memory, and those that were sent.

        Raises:
            KeyError, TypeError, ValueError: the answer makes no sense.
        """
        found = dict(sent)
        if answer["outputs"]:
            block = self._known_copies().block
            found |= {item["name"]: block.array(item).copy() for item in answer["outputs"]}
        for name, array in found.items():
            self._result_bytes[name] = max(array.nbytes, self._result_bytes.get(name, 0))
        return found

    def _lent_inputs(self, feeds: Feeds) -> dict[str, Place]:
        return {} if self._lent is None else _lying(self._lent, self._lent.layout.inputs, feeds)

    def _lent_outputs(self, outputs: Feeds) -> dict[str, Place]:
        return {} if self._lent is None else _lying(self._lent, self._lent.layout.outputs, outputs)

    def _known_copies(self) -> Arena:
        if self._copies is None:
            raise ValueError("it names shared memory, and there is none")
        return self._copies

    def _copied_output(self, name: str) -> Place:
        return self._known_copies().layout.outputs[name]

    def _view_of_output(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        return self._known_copies().view(self._copied_output(name), dtype, shape)

    def _roomy(
        self,
        arena: Arena | None,
        name: str,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        attach: Attach,
    ) -> Arena:
        """The same arena if tensors of these sizes have room, else a larger one that the worker has attached."""
        if arena is not None and arena.layout.holds(inputs, outputs):
            return arena
        before = (arena.layout.inputs, arena.layout.outputs) if arena is not None else ({}, {})
        layout = layout_for(_largest(before[0], inputs), _largest(before[1], outputs))
        room = {key: (place.offset, place.capacity_bytes) for key, place in layout.outputs.items()}
        with offered(layout.size_bytes) as (block, path):
            attach({"block": name, "path": path, "size_bytes": layout.size_bytes, "room": room})
        return Arena(name, block, layout)


def _lying(arena: Arena, places: Mapping[str, Place], arrays: Feeds) -> dict[str, Place]:
    """Places of the arrays that are at theirs."""
    return {name: places[name] for name, array in arrays.items() if arena.lies_at(places[name], array)}


def _sizes(arrays: Feeds, apart: Mapping[str, Place] | None = None) -> dict[str, int]:
    return {name: array.nbytes for name, array in arrays.items() if name not in (apart or {})}


def _largest(places: Mapping[str, Place], sizes: Mapping[str, int]) -> dict[str, int]:
    kept = {name: place.capacity_bytes for name, place in places.items()}
    return {name: max(kept.get(name, 0), sizes.get(name, 0)) for name in {**kept, **sizes}}
