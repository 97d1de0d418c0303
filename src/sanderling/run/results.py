"""What a run returns: the outputs by name, and how they came about."""

from __future__ import annotations

from sanderling.core.tensor import Array


class Outputs(dict[str, Array]):
    """An array for every output by name.

    Attributes:
        lane: way of running that gave them, such as ``openvino/cpu/int8``.
        variant: id of the variant.
        batch_rows: rows of the call that they were part of.
        stale: whether they are the last good ones, given because a check failed on the new ones.
        tripped: why the first result failed its check; empty where it did not.
        batch_requests: requests that shared the call.
        queue_ms: from its arrival until its call began.
        compute_ms: of the call, with what joins rows, checks and gives them back.
    """

    __slots__ = (
        "batch_requests",
        "batch_rows",
        "compute_ms",
        "lane",
        "queue_ms",
        "stale",
        "tripped",
        "variant",
    )

    def __init__(
        self,
        arrays: dict[str, Array],
        *,
        lane: str = "",
        variant: str = "",
        batch_rows: int = 1,
        stale: bool = False,
        tripped: str = "",
    ) -> None:
        super().__init__(arrays)
        self.lane = lane
        self.variant = variant
        self.batch_rows = batch_rows
        self.stale = stale
        self.tripped = tripped
        self.batch_requests = 1
        self.queue_ms = 0.0
        self.compute_ms = 0.0
