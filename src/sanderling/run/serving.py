"""A package as the runtime serves it: its lanes, how rows become calls, and what happens to results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sanderling.core.errors import SanderlingError
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.batches import Rows, TensorPool
from sanderling.run.guard.response import GuardResponse
from sanderling.run.lanes import Lane
from sanderling.run.results import Outputs
from sanderling.run.tickets import Call


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
        guard: that checks results, where the policy wants any checked.
        used_s: when a request last ran, on the monotonic clock.
    """

    def __init__(self, name: str, package: Package, lanes: Sequence[Lane], rows: Rows, pool: TensorPool) -> None:
        self.name = name
        self.package = package
        self.lanes = tuple(lanes)
        self.rows = rows
        self.pool = pool
        self.before_load: Callable[[], None] | None = None
        self.guard: GuardResponse | None = None
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

    @property
    def has_rescue(self) -> bool:
        """Whether another lane could take over a call that hangs, which no end of its process would end."""
        return len(self.lanes) > 1 and not self.lanes[0].isolated

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
        alone = len(calls) == 1 and (not self.rows.batched or size == counts[0])
        if alone and self.guard is None:
            return [self._outputs(used.run(calls[0].feeds, calls[0].outputs), used, size)]
        arrays = self._run_alone(used, calls[0]) if alone else self._run_joined(used, calls, size)
        split = partial(self._split, calls=calls, alone=alone)
        if self.guard is None:
            results: list[Outputs | SanderlingError] = [self._outputs(part, used, size) for part in split(arrays)]
        else:
            results = self.guard.checked(used, arrays, [call.feeds for call in calls], split, counts, size)
        for call, result in zip(calls, results, strict=True):
            if call.outputs is not None and isinstance(result, Outputs):
                self._give(result, call.outputs)
        return results

    def _run_alone(self, lane: Lane, call: Call) -> dict[str, Array]:
        """One request by itself, into its caller's own arrays where the graph returns nothing else."""
        return lane.run(call.feeds, None if lane.is_watched else call.outputs)

    def _run_joined(self, lane: Lane, calls: Sequence[Call], size: int) -> dict[str, Array]:
        joined, copied = self.rows.join([call.feeds for call in calls], size, self.pool)
        self._joined_bytes += copied
        try:
            return lane.run(joined)
        finally:
            for buffer in joined.values():
                self.pool.give_back(buffer)

    def _split(self, arrays: dict[str, Array], *, calls: Sequence[Call], alone: bool) -> list[dict[str, Array]]:
        return [arrays] if alone else self.rows.split(arrays, [call.rows for call in calls])

    def _give(self, result: Outputs, given: Feeds) -> None:
        """Put a result into its caller's own arrays, unless it is there already."""
        for name, array in result.items():
            if array is not given[name]:
                np.copyto(given[name], array)
                self._joined_bytes += array.nbytes
                result[name] = given[name]

    def _outputs(self, arrays: dict[str, Array], lane: Lane, rows: int) -> Outputs:
        return Outputs(arrays, lane=lane.name, variant=lane.variant.id, batch_rows=rows)
