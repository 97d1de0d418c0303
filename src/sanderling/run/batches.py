"""Rows of several callers as one call: joined into a buffer, filled up to a profile, and given back to each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import EngineError, ModelError, TensorError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.model.rows import has_rows


class TensorPool:
    """Buffers for batches, used again; at most ``size`` of each shape and dtype are kept. Usable from several threads.

    Attributes:
        held_bytes: of the buffers that are kept and not in use.
    """

    def __init__(self, size: int) -> None:
        self.held_bytes = 0
        self._size = size
        self._free: dict[tuple[tuple[int, ...], np.dtype[Any]], list[Array]] = {}
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """A buffer with any content."""
        dtype = np.dtype(dtype)
        with self._lock:
            kept = self._free.get((shape, dtype))
            if kept:
                buffer = kept.pop()
                self.held_bytes -= buffer.nbytes
                return buffer
        return np.empty(shape, dtype)

    def give_back(self, buffer: Array) -> None:
        """Keep a buffer for later, unless there are enough."""
        with self._lock:
            kept = self._free.setdefault((buffer.shape, buffer.dtype), [])
            if len(kept) < self._size:
                kept.append(buffer)
                self.held_bytes += buffer.nbytes

    def clear(self) -> int:
        """Drop all buffers; returns their bytes."""
        with self._lock:
            freed, self.held_bytes = self.held_bytes, 0
            self._free.clear()
        return freed


class Rows:
    """How a model's calls are put together from rows.

    Attributes:
        batched: whether rows of several callers may share a call.
        fixed: rows that every call has; 0 where any number runs.
        accepted: what a caller may bring: any number of rows where calls of a fixed size are filled up.
        returned: what it gets for that.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, profiles: Sequence[int]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.fixed = _fixed_rows((*inputs, *outputs))
        try:
            free = has_rows(inputs, outputs)
        except ModelError:
            free = False
        self.batched = free or (self.fixed > 1 and self.fixed in profiles)
        if any(spec.dtype == "str" for spec in inputs):  # the length of strings is a part of an array's dtype
            self.batched = False
        if free:
            self.fixed = 0
        self.accepted, self.returned = (self._any_rows(specs) for specs in (self.inputs, self.outputs))

    def count(self, feeds: Feeds) -> int:
        """Rows that a caller brings; 1 where rows are not told apart."""
        return len(feeds[self.inputs[0].name]) if self.batched else 1

    def check_count(self, feeds: Feeds) -> int:
        """Rows that a caller brings, of which there must be some, and no more than one call has.

        Raises:
            TensorError: there are none, or too many.
        """
        count = self.count(feeds)
        if count == 0 or (self.batched and 0 < self.fixed < count):
            spec = self.inputs[0]
            most = f" and at most {self.fixed}, which every call has" if self.fixed else ""
            raise TensorError(f"input '{spec.name}' has {count} rows: expected at least 1{most}; {spec}")
        return count

    def join(self, feeds: Sequence[Feeds], call_rows: int, pool: TensorPool) -> tuple[dict[str, Array], int]:
        """One call's arrays with the rows of all, filled up with zeros.

        Returns:
            Buffers, to be given back to the pool, and the bytes that were copied.
        """
        joined: dict[str, Array] = {}
        copied = 0
        for spec in self.inputs:
            parts = [each[spec.name] for each in feeds]
            buffer = pool.take((call_rows, *parts[0].shape[1:]), parts[0].dtype)
            at = 0
            for part in parts:
                buffer[at : at + len(part)] = part
                at += len(part)
                copied += part.nbytes
            buffer[at:] = 0
            joined[spec.name] = buffer
        return joined, copied

    def split(self, outputs: Feeds, counts: Sequence[int]) -> list[dict[str, Array]]:
        """Each caller's own rows of every output, as views.

        Raises:
            EngineError: an output has fewer rows.
        """
        ends = list(accumulate(counts))
        for name, array in outputs.items():
            if len(array) < ends[-1]:
                raise EngineError(
                    f"output '{name}' has {len(array)} rows after a call with {ends[-1]}: no caller's own"
                )
        return [
            {name: array[end - count : end] for name, array in outputs.items()}
            for count, end in zip(counts, ends, strict=True)
        ]

    def _any_rows(self, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        if not (self.batched and self.fixed):
            return specs
        return tuple(spec.model_copy(update={"shape": ("rows", *spec.shape[1:])}) for spec in specs)


def _fixed_rows(specs: Sequence[TensorSpec]) -> int:
    """The size of the first axis, where all tensors have the same fixed one; else 0."""
    sizes = {spec.shape[0] if spec.shape else 0 for spec in specs}
    only = sizes.pop() if len(sizes) == 1 else 0
    return only if isinstance(only, int) else 0
