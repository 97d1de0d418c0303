"""Keep the best of boxes that lie on each other: non-maximum suppression, vectorised over blocks of boxes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sanderling.run.vision.detections import Floats, Numbers

_BLOCK = 64


def suppress(boxes: Floats, classes: Numbers | None, *, most_overlap: float, most: int) -> Numbers:
    """Greedy non-maximum suppression, exactly as one box at a time gives it.

    A block of the best boxes is settled among itself; those of it that stay are held against all later ones at once.

    Args:
        boxes: float64, shape (k, 4): left, top, right, bottom; best first.
        classes: int64, shape (k,): only boxes of one class are held against each other; None holds all.
        most_overlap: a box whose intersection over union with a better one is greater is dropped.
        most: how many may stay.

    Returns:
        int64: positions of those that stay, best first.
    """
    kept: list[Numbers] = []
    found = 0
    waiting = np.arange(len(boxes))
    while len(waiting) and found < most:
        block, waiting = waiting[:_BLOCK], waiting[_BLOCK:]
        stays = block[_settle(_overlapping(boxes, classes, block, block, most_overlap))]
        kept.append(stays)
        found += len(stays)
        if len(waiting) and found < most:
            waiting = waiting[~_overlapping(boxes, classes, stays, waiting, most_overlap).any(axis=0)]
    return np.concatenate(kept)[:most] if kept else np.empty(0, np.int64)


def _settle(overlapping: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which of a block stay, by which pairs overlap too much, shape (b, b)."""
    stays = np.ones(len(overlapping), bool)
    later = np.triu(overlapping, 1)
    for row in np.flatnonzero(later.any(axis=1)):  # boxes that drop none need no look
        if stays[row]:
            stays &= ~later[row]
    return stays


def _overlapping(
    boxes: Floats, classes: Numbers | None, rows: Numbers, others: Numbers, most_overlap: float
) -> npt.NDArray[np.bool_]:
    """Which pairs of ``rows`` and ``others`` have an intersection over union above ``most_overlap``.

    Nothing is divided: an inside-out box counts as one without area, which no box has in common with it.
    """
    one, other = boxes[rows], boxes[others]
    with np.errstate(invalid="ignore", over="ignore"):
        common = _common(one, other)
        union = np.maximum(_areas(one), 0)[:, None] + np.maximum(_areas(other), 0)
        union -= common
        union *= most_overlap
        overlapping: npt.NDArray[np.bool_] = common > union
    if classes is not None:
        overlapping &= classes[rows][:, None] == classes[others]
    return overlapping


def pairwise_iou(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of (k, 4) with (m, 4): float64, shape (k, m).

    It is 0 for a box that is empty, inside out or not finite.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        common = _common(boxes, others)
        union = _areas(boxes)[:, None] + _areas(others)
        union -= common
        common /= union
    shares: Floats = np.nan_to_num(common, copy=False, nan=0.0, posinf=0.0)
    return shares


def _common(boxes: Floats, others: Floats) -> Floats:
    """Areas that pairs have in common, shape (k, m)."""
    left, top, right, bottom = others.T.copy()  # in rows, which are read again and again
    width: Floats = np.minimum(boxes[:, 2:3], right)
    width -= np.maximum(boxes[:, 0:1], left)
    height = np.minimum(boxes[:, 3:4], bottom)
    height -= np.maximum(boxes[:, 1:2], top)
    np.maximum(width, 0, out=width)
    width *= np.maximum(height, 0, out=height)
    return width


def _areas(boxes: Floats) -> Floats:
    areas: Floats = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas
