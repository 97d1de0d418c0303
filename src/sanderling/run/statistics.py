"""What has happened to a session's requests."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Statistics(BaseModel):
    """Counts since the session was opened, and latencies of the last requests.

    Attributes:
        lane: that is used now.
        requests: by what became of them: ``requests`` that came, of which ``completed`` (``completed late`` among
            them), ``failed``, ``late`` (dropped), ``rejected`` (the queue was full), ``cancelled``.
        waiting: requests of this model that wait now.
        latency_ms: percentiles from arrival to result, of the last thousand; None before the first.
        copied_bytes: between callers' arrays and engines, and to join callers' rows.
        guard: trips, retries, stale results, shadow runs.
        energy_j_per_inference: joules that the sensors counted for each completed request; None where they cannot
            be measured, and before the first.
    """

    model_config = ConfigDict(frozen=True)

    lane: str
    requests: dict[str, int]
    batches: int
    failed_batches: int
    switches: int
    waiting: int
    latency_ms: dict[str, float] | None
    copied_bytes: int
    guard: dict[str, int]
    energy_j_per_inference: float | None
