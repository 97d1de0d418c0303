"""A package as the runtime serves it: its lanes, how rows become calls, and what happens to results."""

from __future__ import annotations

from collections.abc import Sequence

from sanderling.core.errors import SanderlingError
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.batches import Rows, TensorPool
from sanderling.run.lanes import Lane
from sanderling.run.results import Outputs


class ServedPackage:
    """Runs the batches of one package.

    Args:
        name: that the runtime knows it by.
        package: that is served.
        lanes: ways of running it, the preferred one first.
        rows: how its calls are put together.
        pool: buffers for batches.

    Attributes:
        copied_bytes: that were copied to join the rows of several callers.
    """

    def __init__(self, name: str, package: Package, lanes: Sequence[Lane], rows: Rows, pool: TensorPool) -> None:
        self.name = name
        self.package = package
        self.lanes = tuple(lanes)
        self.rows = rows
        self.copied_bytes = 0
        self._pool = pool

    def lane_name(self, lane: int) -> str:
        """A lane's name, for events."""
        return self.lanes[lane].name

    def is_ready(self, lane: int) -> bool:
        """Whether a lane is loaded."""
        return self.lanes[lane].loaded

    def compute(self, lane: int, feeds: Sequence[Feeds], call_rows: int) -> list[Outputs | SanderlingError]:
        """Run the requests of a batch together on a lane.

        Raises:
            EngineError: loading or running failed for all of them.
        """
        counts = [self.rows.count(each) for each in feeds]
        joined, buffers, copied = self.rows.join(feeds, max(call_rows, sum(counts)), self._pool)
        self.copied_bytes += copied
        try:
            arrays = self.lanes[lane].executable().run(joined)
        finally:
            for buffer in buffers:
                self._pool.give_back(buffer)
        return [self._outputs(own, lane, call_rows) for own in self.rows.split(arrays, counts)]

    def _outputs(self, arrays: dict[str, Array], lane: int, call_rows: int) -> Outputs:
        used = self.lanes[lane]
        return Outputs(arrays, lane=used.name, variant=used.variant.id, batch_rows=call_rows)
