"""How long a batch takes: learned while running, one mean for each batch size, straight lines between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WEIGHT = 0.1  # of the newest measurement once enough were seen
_FORGOTTEN = 0.01  # of what larger batches seem to cost beyond their rows one by one, with each call
_RIDGE_MACS_PER_BYTE = 10.0


class LatencyModel(NamedTuple):
    """Batch sizes in rising order, with the mean milliseconds of a call and how many calls each mean rests on.

    A prediction (of a table, or of another device) counts as one call: the first measurements outweigh it.
    """

    sizes: tuple[int, ...] = ()
    means_ms: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def from_table(latency_ms: Mapping[int, float]) -> LatencyModel:
    """A model that knows predicted or measured milliseconds by batch size."""
    sizes = tuple(sorted(latency_ms))
    return LatencyModel(sizes, tuple(latency_ms[size] for size in sizes), (1,) * len(sizes))


def from_density(macs: float, weight_bytes: float, row_bytes: float, *, row_ms: float) -> LatencyModel:
    """A first guess for batches, from one row's latency and how much is computed for each byte that is moved.

    What a call reads once, its weights, is shared by the rows of a batch: the fewer multiply–accumulates there are for
    each byte, the more a batch saves.

    Args:
        macs: multiply–accumulates of one row.
        weight_bytes: of all weights.
        row_bytes: of the activations of one row.
        row_ms: milliseconds of a call with one row.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52 (2009) 65, with a ridge at 10 MACs a byte.
    """
    compute, once, each = macs / _RIDGE_MACS_PER_BYTE, weight_bytes, row_bytes
    share = {rows: max(compute * rows, once + each * rows) for rows in (1, 2, 4, 8)}
    return from_table({rows: row_ms * (cost / share[1] if share[1] else 1.0) for rows, cost in share.items()})


def observe(model: LatencyModel, rows: int, latency_ms: float) -> LatencyModel:
    """Take in one measured call.

    What larger batches seem to cost beyond their rows one by one fades, so that a size which had bad luck once is tried
    again.
    """
    sizes, means, counts = model
    if sizes and rows < sizes[-1]:
        each_ms = latency_ms / rows
        means = tuple(
            mean + _FORGOTTEN * (each_ms * size - mean) if size > rows and mean > each_ms * size else mean
            for size, mean in zip(sizes, means, strict=True)
        )
    if rows in sizes:
        at = sizes.index(rows)
        count = counts[at] + 1
        mean = means[at] + (latency_ms - means[at]) * max(WEIGHT, 1 / count)
        return LatencyModel(
            sizes, (*means[:at], mean, *means[at + 1 :]), (*counts[:at], min(count, 1000), *counts[at + 1 :])
        )
    at = sum(size < rows for size in sizes)
    return LatencyModel(
        (*sizes[:at], rows, *sizes[at:]), (*means[:at], latency_ms, *means[at:]), (*counts[:at], 1, *counts[at:])
    )


def unsure(model: LatencyModel) -> LatencyModel:
    """The same means, so that the next measurement of each counts as much as all before."""
    return model._replace(counts=(1,) * len(model.counts))


def least_ms(model: LatencyModel, rows: int) -> float:
    """Milliseconds that a call with ``rows`` takes at the very least, as far as is known; 0 where nothing is.

    No more than any larger batch; below the smallest known size, in proportion to the rows: what was never measured is
    not ruled out.
    """
    sizes, means, _ = model
    if not sizes or rows > sizes[-1]:
        return predict_ms(model, rows)
    if rows <= sizes[0]:
        return min(*means, means[0] * rows / sizes[0])
    return min(mean for size, mean in zip(sizes, means, strict=True) if size >= rows)


def predict_ms(model: LatencyModel, rows: int) -> float:
    """Milliseconds of a call with ``rows``.

    Between two known sizes on a straight line; above the largest, in proportion to the rows (a batch that was never
    seen is not trusted to save anything); below the smallest, as much as that one. 0 where nothing is known.
    """
    sizes, means, _ = model
    if not sizes:
        return 0.0
    if rows >= sizes[-1]:
        return means[-1] * rows / sizes[-1]
    if rows <= sizes[0]:
        return means[0]
    at = 1
    while sizes[at] < rows:
        at += 1
    low, high = sizes[at - 1], sizes[at]
    return means[at - 1] + (means[at] - means[at - 1]) * (rows - low) / (high - low)
