"""The best classes of an output instead of its scores, where a client asks for them.

Source: Triton Inference Server, protocol extension "Classification".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array


def classified(scores: Array, classes: int, labels: Sequence[str] | None) -> Array:
    """The best classes of every row, as ``score:index:label``.

    Args:
        scores: numbers, shape (N, …).
        classes: how many of each row.
        labels: by index.

    Returns:
        Objects of ``bytes``, shape (N, classes).

    Raises:
        TensorError: the output has no numbers.
    """
    if scores.dtype.kind not in "fiu" or not scores.ndim:
        raise TensorError(f"an output of {scores.dtype.name}{list(scores.shape)} has no classes")
    rows = scores.reshape(len(scores), -1)
    count = min(classes, rows.shape[1])
    found = np.empty((len(rows), count), object)
    for row, values in enumerate(rows):
        for place, index in enumerate(np.argsort(-values.astype(np.float64), kind="stable")[:count]):
            label = f":{labels[index]}" if labels and index < len(labels) else ""
            found[row, place] = f"{float(values[index]):f}:{index}{label}".encode()
    return found
