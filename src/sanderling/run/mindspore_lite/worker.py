"""A process for one ``.ms``: `python -m sanderling.run.mindspore_lite.worker`.

The runtime is old native code, with libraries inside that other packages bring in other versions; whatever happens to
it happens here. It reads no ONNX and imports nothing that does.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.copies import CopyCount, contiguous, write_results
from sanderling.run.engines.base import DeviceKind, Placement
from sanderling.run.mindspore_lite.log import first_error
from sanderling.run.mindspore_lite.native import Bridge, NativeGraph
from sanderling.run.worker import main

Shapes = tuple[tuple[int, ...], ...]
_LOG_BYTES = 1 << 20


class RuntimeExecutable:
    """A ``.ms`` with the names, dtypes and sizes that the runtime gives it.

    It is loaded once for every set of input shapes, as a graph that was resized before may compute wrong numbers or
    write outside its memory: a transposition that only renamed the axes of one row keeps doing so with three.
    """

    def __init__(self, load: Callable[[], NativeGraph], kept: int) -> None:
        self._load = load
        self._most = kept
        self._copied = CopyCount()
        self._graphs: OrderedDict[Shapes, NativeGraph] = OrderedDict()
        graph = load()
        self._fresh: NativeGraph | None = graph  # not run yet: only then may it be resized
        self._fed = graph.inputs()
        self._own: Shapes = tuple(tensor.shape for tensor in self._fed)
        self.inputs = tuple(_spec(tensor.name, tensor.dtype, tensor.shape) for tensor in self._fed)
        self.outputs = tuple(_spec(tensor.name, tensor.dtype, ()) for tensor in graph.outputs())
        self.placement = Placement("cpu", {DeviceKind.CPU: 1.0})

    @property
    def copied_bytes(self) -> int:
        """All bytes that went in and out: the runtime has memory of its own."""
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once, with the shapes of ``feeds``.

        Raises:
            EngineError: an input does not fit the runtime's dtype, or execution failed.
        """
        _LOG.begin()
        feeds = contiguous(feeds, self._copied)
        arrays = [_fitting(feeds[tensor.name], tensor.dtype, tensor.name) for tensor in self._fed]
        try:
            results = self._graph_for(tuple(array.shape for array in arrays)).run(arrays)
        except (EngineError, ModelError) as error:
            raise EngineError(f"{error}: {_LOG.reason()}") from error
        self._copied.add(sum(array.nbytes for array in (*arrays, *results)))
        named = dict(zip((spec.name for spec in self.outputs), results, strict=True))
        return named if outputs is None else write_results(named, outputs, "mindspore", self._copied)

    def close(self) -> None:
        """Free all graphs."""
        if self._fresh:
            self._fresh.close()
        while self._graphs:
            self._graphs.popitem()[1].close()

    def _graph_for(self, shapes: Shapes) -> NativeGraph:
        """The graph for these shapes; the one not used for longest gives way when there are too many."""
        if shapes not in self._graphs:
            while len(self._graphs) >= self._most:
                self._graphs.popitem(last=False)[1].close()
            graph, self._fresh = self._fresh or self._load(), None
            if shapes != self._own:
                graph.resize(shapes)
            self._graphs[shapes] = graph
        self._graphs.move_to_end(shapes)
        return self._graphs[shapes]


def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=tuple(size if size >= 0 else "?" for size in shape))


def _fitting(array: Array, dtype: str, name: str) -> Array:
    """The array in the runtime's dtype: the converter makes int64 inputs int32."""
    if array.dtype.name == dtype:
        return array
    fitting = array.astype(dtype)
    if not np.array_equal(fitting, array):
        raise EngineError(f"'{name}' is held as {dtype}, and a value of it does not fit")
    return fitting


def _load(header: dict[str, Any]) -> RuntimeExecutable:
    """Load the bytes of a file, from an offset on."""
    with Path(header["model"]).open("rb") as stream:
        stream.seek(header["offset"])
        data = stream.read()
    _LOG.begin()
    bridge = Bridge(Path(header["bridge"]))
    try:
        return RuntimeExecutable(partial(bridge.load, data, header["threads"]), header["kept"])
    except ModelError as error:
        raise ModelError(f"{error}: {_LOG.reason()}") from error


class _Log:
    """Standard error, kept in memory: the runtime gives its reasons there and nowhere else."""

    def __init__(self) -> None:
        self._file = -1

    def keep(self) -> None:
        """From now on, this process's standard error is this log."""
        self._file = os.memfd_create("mindspore-log")
        os.dup2(self._file, 2)

    def begin(self) -> None:
        """Forget what was logged before."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)

    def reason(self) -> str:
        """Why something failed since the beginning."""
        if self._file < 0:
            return "it gave no reason"
        size = min(os.fstat(self._file).st_size, _LOG_BYTES)
        return first_error(os.pread(self._file, size, 0).decode(errors="replace"))


_LOG = _Log()


if __name__ == "__main__":
    _LOG.keep()
    main(_load)
