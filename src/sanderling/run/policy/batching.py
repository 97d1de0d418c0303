"""How many of the waiting rows one call takes."""

from __future__ import annotations

from typing import NamedTuple

from sanderling.run.policy.latency import LatencyModel, predict_ms

_WORSE = 1.05  # a larger batch is not taken where it costs this much more a row


class BatchRules(NamedTuple):
    """The policy's numbers; ``profiles`` in rising order, empty where any size runs."""

    min_rows: int = 1
    max_rows: int = 8
    target_ms: float = 16.67
    profiles: tuple[int, ...] = ()


def batch_rows(rules: BatchRules, model: LatencyModel, waiting: int, *, limit_ms: float = float("inf")) -> int:
    """Most rows that the next call should take.

    Args:
        rules: of the policy.
        model: of the latency where the call will run.
        waiting: rows that are there now, at least 1; a call never waits for more.
        limit_ms: that the call may take at most: until the earliest deadline, or a time slice.

    Returns:
        At least 1, at most ``waiting``. The largest number that keeps the target and the limit and whose rows are not
        dearer than those of a smaller batch; never kept below ``min_rows`` by the target; 1 where no latency is known.
    """
    most = min(waiting, rules.max_rows, *rules.profiles[-1:]) if model.sizes else 1
    best, best_each_ms = 1, predict_ms(model, call_rows(rules, 1))
    for rows in range(2, most + 1):
        cost_ms = predict_ms(model, call_rows(rules, rows))
        if cost_ms > limit_ms or (cost_ms > rules.target_ms and rows > rules.min_rows):
            break
        if cost_ms / rows <= best_each_ms * _WORSE:
            best, best_each_ms = rows, min(best_each_ms, cost_ms / rows)
    return best


def call_rows(rules: BatchRules, rows: int) -> int:
    """Rows that the engine is called with: the smallest profile that holds them; as many where none does."""
    if not rules.profiles:
        return rows
    return next((profile for profile in rules.profiles if profile >= rows), rows)
