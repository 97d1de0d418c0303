"""A package as the runtime serves it: its lanes, how rows become calls, and what happens to results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from sanderling.core.errors import EngineError, SanderlingError
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.batches import Rows, TensorPool
from sanderling.run.copies import CopyCount, check_shape
from sanderling.run.engines.base import DeviceKind
from sanderling.run.guard.inner import split as without_watched
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
        guard: that checks results, where the policy wants any checked.
        used_s: when a request last ran, on the monotonic clock.
    """

    def __init__(self, name: str, package: Package, lanes: Sequence[Lane], rows: Rows, pool: TensorPool) -> None:
        self.name = name
        self.package = package
        self.lanes = tuple(lanes)
        self.rows = rows
        self.pool = pool
        self.guard: GuardResponse | None = None
        self.used_s = time.monotonic()
        self._joined = CopyCount()

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied: to join callers' rows, to give them back, and between arrays and engines."""
        return self._joined.total + sum(lane.copied_bytes for lane in self.lanes)

    def lane_name(self, lane: int) -> str:
        """A lane's name, for events."""
        return self.lanes[lane].name

    def is_ready(self, lane: int) -> bool:
        """Whether a lane is loaded."""
        return self.lanes[lane].loaded

    @property
    def is_simple(self) -> bool:
        """Whether it has one lane, whose engine runs in this process and on the processor."""
        first, *others = self.lanes
        return not others and not first.isolated and first.plan.kind is DeviceKind.CPU

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
        first = calls[0]
        alone = len(calls) == 1 and (not self.rows.batched or call_rows <= first.rows)
        if alone and self.guard is None:
            return [self._outputs(used.run(first.feeds, first.outputs), used, max(call_rows, first.rows))]
        counts = [call.rows for call in calls]
        size = max(call_rows, sum(counts))
        arrays = self._run_alone(used, first) if alone else self._run_joined(used, [call.feeds for call in calls], size)
        split = partial(self._split, counts=counts, alone=alone)
        if self.guard is None:
            results: list[Outputs | SanderlingError] = [self._outputs(part, used, size) for part in split(arrays)]
        else:
            results = self.guard.checked(used, arrays, calls, split, size)
        return [
            self._given(result, call.outputs) if isinstance(result, Outputs) and call.outputs is not None else result
            for call, result in zip(calls, results, strict=True)
        ]

    def run_again(self, lane: Lane, feeds: Feeds) -> dict[str, Array]:
        """The model's own outputs from another run of one request, filled up where calls have a fixed size."""
        count = self.rows.count(feeds)
        if not self.rows.batched or self.rows.fixed in (0, count):
            return without_watched(lane.run(feeds))[0]
        arrays = without_watched(self._run_joined(lane, [feeds], self.rows.fixed))[0]
        return self.rows.split(arrays, [count])[0]

    def _run_alone(self, lane: Lane, call: Call) -> dict[str, Array]:
        """One request by itself, into its caller's own arrays where the graph returns nothing else."""
        return lane.run(call.feeds, None if lane.is_watched else call.outputs)

    def _run_joined(self, lane: Lane, feeds: Sequence[Feeds], size: int) -> dict[str, Array]:
        joined, copied = self.rows.join(feeds, size, self.pool)
        self._joined.add(copied)
        try:
            return lane.run(joined)
        finally:
            for buffer in joined.values():
                self.pool.give_back(buffer)

    def _split(self, arrays: dict[str, Array], *, counts: Sequence[int], alone: bool) -> list[dict[str, Array]]:
        return [arrays] if alone else self.rows.split(arrays, counts)

    def _given(self, result: Outputs, given: Feeds) -> Outputs | EngineError:
        """The result in its caller's own arrays, copied unless it is there already."""
        for name, array in result.items():
            if array is not given[name]:
                try:
                    check_shape(name, array.shape, given[name], result.lane)
                except EngineError as error:
                    return error
                np.copyto(given[name], array)
                self._joined.add(array.nbytes)
                result[name] = given[name]
        return result

    def _outputs(self, arrays: dict[str, Array], lane: Lane, rows: int) -> Outputs:
        return Outputs(arrays, lane=lane.name, variant=lane.variant.id, batch_rows=rows)
