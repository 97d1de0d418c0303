"""Copies between a caller's arrays and an engine: made where they cannot be avoided, and counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from sanderling.core.errors import EngineError
from sanderling.core.tensor import Array, Feeds, TensorSpec


class CopyCount:
    """Bytes that an executable copied, counted from several threads."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Count one copy."""
        with self._lock:
            self.total += size_bytes


def contiguous(feeds: Feeds, count: CopyCount) -> Feeds:
    """The same feeds where all are C-contiguous, else with counted copies of those that are not."""
    if all(array.flags.c_contiguous for array in feeds.values()):
        return feeds
    return {name: array if array.flags.c_contiguous else copied(array, count) for name, array in feeds.items()}


def copied(array: Array, count: CopyCount) -> Array:
    """A counted copy, C-contiguous."""
    count.add(array.nbytes)
    return np.array(array, order="C")


def usual(array: Array) -> Array:
    """The same memory, of the type that NumPy makes for 64 bits: it has two, and ONNX Runtime returns the other one."""
    return array.view(array.dtype.str) if array.dtype.char in "qQ" else array


def write_results(results: Mapping[str, Array], outputs: Feeds, engine: str, count: CopyCount) -> dict[str, Array]:
    """Copy an engine's results to the caller's arrays, counted; returns these.

    Raises:
        EngineError: a result has another shape than the array for it.
    """
    for name, result in results.items():
        check_shape(name, result.shape, outputs[name], engine)
    for name, result in results.items():
        np.copyto(outputs[name], result)
        count.add(result.nbytes)
    return {name: outputs[name] for name in results}


def check_shape(name: str, made: tuple[int, ...], given: Array, engine: str) -> None:
    """Check that an output fits the caller's array.

    Raises:
        EngineError: it has another shape.
    """
    if made != given.shape:
        raise EngineError(f"{engine} makes output '{name}' of shape {made}: the array given for it has {given.shape}")


def row_count(feeds: Feeds, inputs: Sequence[TensorSpec], engine: str) -> int:
    """How many rows all inputs have, for an engine that runs row by row.

    Raises:
        EngineError: they have not equally many.
    """
    count, *others = {len(feeds[spec.name]) for spec in inputs}
    if others:
        raise EngineError(
            f"{engine} runs row by row: inputs have {sorted([count, *others])} rows, and must have equally many"
        )
    return count


def row(arrays: Feeds, index: int) -> dict[str, Array]:
    """One row of all arrays, where they lie."""
    return {name: array[index : index + 1] for name, array in arrays.items()}


def result_arrays(specs: Sequence[TensorSpec], rows: int, outputs: Feeds | None, engine: str) -> dict[str, Array]:
    """Arrays that results are written to: the caller's, or new ones.

    Raises:
        EngineError: one of the caller's has another shape.
    """
    if outputs is None:
        return {spec.name: np.empty(spec.concrete_shape(rows), spec.dtype) for spec in specs}
    for spec in specs:
        check_shape(spec.name, spec.concrete_shape(rows), outputs[spec.name], engine)
    return {spec.name: outputs[spec.name] for spec in specs}


def address_of(array: Array) -> int:
    """Where an array's first element lies in this process."""
    return int(array.__array_interface__["data"][0])
