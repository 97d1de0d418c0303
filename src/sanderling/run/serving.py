"""A package as the runtime serves it: its lanes, how rows become calls, and what happens to results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from sanderling.core.errors import SanderlingError
from sanderling.core.tensor import Array
from sanderling.model.package import Package
from sanderling.run.batches import Rows, TensorPool
from sanderling.run.lanes import Lane
from sanderling.run.results import Outputs
from sanderling.run.runtime import Call


class ServedPackage:
    """Runs the batches of one package.

    Args:
        name: that the runtime knows it by.
        package: that is served.
        lanes: ways of running it, the preferred one first.
        rows: how its calls are put together.
        pool: buffers for batches.

    Attributes:
        before_load: called before a lane is loaded for a request.
        used_s: when a request last ran, on the monotonic clock.
    """

    def __init__(self, name: str, package: Package, lanes: Sequence[Lane], rows: Rows, pool: TensorPool) -> None:
        self.name = name
        self.package = package
        self.lanes = tuple(lanes)
        self.rows = rows
        self.pool = pool
        self.before_load: Callable[[], None] | None = None
        self.used_s = time.monotonic()
        self._joined_bytes = 0

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied: to join callers' rows, to give them back, and between arrays and engines."""
        return self._joined_bytes + sum(lane.copied_bytes for lane in self.lanes)

    def lane_name(self, lane: int) -> str:
        """A lane's name, for events."""
        return self.lanes[lane].name

    def is_ready(self, lane: int) -> bool:
        """Whether a lane is loaded."""
        return self.lanes[lane].loaded

    def compute(self, lane: int, calls: Sequence[Call], call_rows: int) -> list[Outputs | SanderlingError]:
        """Run the requests of a batch together on a lane.

        Raises:
            EngineError: loading or running failed for all of them.
        """
        used = self.lanes[lane]
        self.used_s = time.monotonic()
        if self.before_load is not None and not used.loaded:
            self.before_load()
        counts = [call.rows for call in calls]
        size = max(call_rows, sum(counts))
        if len(calls) == 1 and (not self.rows.batched or size == counts[0]):
            return [self._outputs(used.run(calls[0].feeds, calls[0].outputs), used, size)]
        joined, copied = self.rows.join([call.feeds for call in calls], size, self.pool)
        self._joined_bytes += copied
        try:
            arrays = used.run(joined)
        finally:
            for buffer in joined.values():
                self.pool.give_back(buffer)
        parts = self.rows.split(arrays, counts)
        return [self._outputs(self._given(part, call), used, size) for part, call in zip(parts, calls, strict=True)]

    def _given(self, part: dict[str, Array], call: Call) -> dict[str, Array]:
        """A caller's rows in its own arrays, if it gave any."""
        if call.outputs is None:
            return part
        for name, array in part.items():
            np.copyto(call.outputs[name], array)
            self._joined_bytes += array.nbytes
        return dict(call.outputs)

    def _outputs(self, arrays: dict[str, Array], lane: Lane, rows: int) -> Outputs:
        return Outputs(arrays, lane=lane.name, variant=lane.variant.id, batch_rows=rows)
