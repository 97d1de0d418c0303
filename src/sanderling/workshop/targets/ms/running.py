"""A ``.ms`` in the real runtime of MindSpore Lite, in a process of its own, fed with what the package is fed with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.isolated import IsolatedExecutable, Worker
from sanderling.run.mindspore_lite import library

_WORKER = "sanderling.run.mindspore_lite.worker"
_RUN_S = 600.0  # its integer kernels are plain C on this processor


class Runtime:
    """A loaded file that gives the package's outputs.

    Attributes:
        blocks: how many blocks of rows are fed at once: the last is what is asked for, the others are like it, turned.
    """

    def __init__(self, loaded: IsolatedExecutable, outputs: Sequence[TensorSpec], blocks: int) -> None:
        self._loaded = loaded
        self._outputs = outputs
        self._fed = tuple(spec.name for spec in loaded.inputs)
        self.blocks = blocks

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Outputs by name, in the dtypes of the package.

        Raises:
            EngineError: execution failed, or an output is missing.
        """
        fed = {name: self._with_others(feeds[name]) for name in self._fed}
        results = self._loaded.run(fed)
        missing = [spec.name for spec in self._outputs if spec.name not in results]
        if missing:
            raise EngineError(f"it returns {sorted(results)}: output '{missing[0]}' is missing")
        return {spec.name: self._last(results[spec.name], spec) for spec in self._outputs}

    def _with_others(self, rows: Array) -> Array:
        if self.blocks == 1:
            return rows
        others = [np.roll(rows, place, axis=-1) for place in range(1, self.blocks)]
        return np.concatenate([*others, rows])

    def _last(self, array: Array, spec: TensorSpec) -> Array:
        if not spec.shape and array.shape == (1,):  # the runtime has no scalars
            array = array.reshape(())
        if self.blocks > 1:
            array = np.split(array, self.blocks)[-1]
        return array.astype(spec.dtype, copy=False)


@contextmanager
def opened(file: Path, outputs: Sequence[TensorSpec], *, blocks: int = 1) -> Iterator[Runtime]:
    """Load a ``.ms``; its process ends with the block.

    Args:
        file: the ``.ms``.
        outputs: of the package.
        blocks: how many blocks of rows are fed at once.

    Raises:
        ModelError: the runtime refuses the file.
        EngineError: it could not be started, or crashed.
    """
    header = {"bridge": str(library.bridge()), "model": str(file), "offset": 0, "threads": 0, "kept": 1}
    with Worker(module=_WORKER, run_timeout_s=_RUN_S) as worker:
        try:
            loaded = worker.load_as(header)
        except ModelError as error:
            raise ModelError(f"MindSpore Lite does not take {file.name}: {error}") from error
        yield Runtime(loaded, outputs, blocks)
