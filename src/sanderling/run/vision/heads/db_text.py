"""Lines of text by differentiable binarisation: a map of probabilities whose regions are turned boxes.

Source: Liao et al. 2020, "Real-time Scene Text Detection with Differentiable Binarization", section 3.5, with boxes of
four corners: a region's smallest turned rectangle grows by area * growth / circumference on every side. To offset it as
a polygon and take the smallest rectangle around the result, as the published code does, gives the same rectangle.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec
from sanderling.run.vision.detections import DetectionRules, Detections, Floats, no_detections
from sanderling.run.vision.heads.base import Arrays, Head, Roles, Size, only_output, to_probabilities
from sanderling.run.vision.opencv import opencv

_LEAST_SIDE_PX = 3.0
_LEAST_GROWN_SIDE_PX = 5.0


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:  # noqa: ARG001 - a head's form
    """Never: a map of one channel may be anything, so that the package has to say it."""
    return None


def roles(outputs: tuple[TensorSpec, ...], spec: DetectionSpec) -> Roles | None:
    """One map with one channel."""
    found = only_output(outputs, spec, rank=4)
    return {"boxes": found} if found is not None and found.shape[1] in (1, "1") else None


def classes(found: Roles, spec: DetectionSpec) -> int | None:  # noqa: ARG001 - a head's form
    """Text, and nothing else."""
    return 1


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """Every region whose mean probability is enough.

    Raises:
        UnavailableError: OpenCV is missing.
    """
    cv2 = opencv()
    for raw in arrays["boxes"]:  # (1, H, W)
        heat = to_probabilities(raw[0], spec.scores).astype(np.float32)
        scale = np.array([size[0] / heat.shape[1], size[1] / heat.shape[0]])
        regions, _ = cv2.findContours((heat > spec.threshold).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        found = [_region(cv2, heat, region, spec, rules) for region in regions[: rules.candidates]]
        kept = [each for each in found if each is not None]
        if not kept:
            yield no_detections()
            continue
        quads = np.stack([quad for quad, _ in kept]) * scale
        boxes = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
        scores = np.array([score for _, score in kept])
        yield Detections(boxes, scores, np.zeros(len(kept), np.int64), quads)


def _region(
    cv2: ModuleType, heat: Array, region: Array, spec: DetectionSpec, rules: DetectionRules
) -> tuple[Floats, float] | None:
    """The corners of a region's box after it has grown, and its score; None where it is too small or too weak."""
    centre, sides, angle = cv2.minAreaRect(region)
    if min(sides) < _LEAST_SIDE_PX:
        return None
    score = _mean_inside(cv2, heat, cv2.boxPoints((centre, sides, angle)))
    if score < rules.least_score:
        return None
    growth = sides[0] * sides[1] * spec.growth / (2 * (sides[0] + sides[1]))
    grown = (sides[0] + 2 * growth, sides[1] + 2 * growth)
    if min(grown) < _LEAST_GROWN_SIDE_PX:
        return None
    return clockwise(cv2.boxPoints((centre, grown, angle)).astype(np.float64)), score


def _mean_inside(cv2: ModuleType, heat: Array, corners: Array) -> float:
    low = np.clip(np.floor(corners.min(axis=0)), 0, None).astype(int)
    high = np.minimum(np.ceil(corners.max(axis=0)).astype(int) + 1, heat.shape[::-1])
    part = heat[low[1] : high[1], low[0] : high[0]]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
    return float(cv2.mean(part, mask)[0])


def clockwise(corners: Floats) -> Floats:
    """The corners (4, 2) of a turned rectangle, clockwise from the top left one."""
    by_column = corners[np.argsort(corners[:, 0], kind="stable")]
    left = by_column[:2][np.argsort(by_column[:2, 1], kind="stable")]
    right = by_column[2:][np.argsort(by_column[2:, 1], kind="stable")]
    return np.stack([left[0], right[0], right[1], left[1]])


HEAD = Head("db_text", "one float output (N, 1, H, W)", recognise, roles, classes, candidates, suppresses=False)
