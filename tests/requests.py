"""Requests that show in their results whose they are, for ``sum_and_difference``."""

from __future__ import annotations

import numpy as np

from sanderling.core.tensor import Array, Feeds

WIDTH = 3


def numbered(number: float, rows: int = 1) -> dict[str, Array]:
    """Inputs of request ``number``: row ``i`` of ``a`` is number + i / 64, all of ``b`` is 0.25."""
    steps = np.arange(rows, dtype=np.float32)[:, None] / 64
    return {
        "a": np.broadcast_to(np.float32(number) + steps, (rows, WIDTH)).copy(),
        "b": np.full((rows, WIDTH), 0.25, np.float32),
    }


def belongs_to(outputs: Feeds, number: float, rows: int = 1) -> bool:
    """Whether outputs are exactly those of request ``number``."""
    given = numbered(number, rows)
    return (
        outputs.keys() == {"sum", "difference"}
        and np.array_equal(outputs["sum"], given["a"] + given["b"])
        and np.array_equal(outputs["difference"], given["a"] - given["b"])
    )
