"""SSD, RetinaNet and others with one output of boxes, (N, priors, 4), and one of scores, (N, priors, classes).

Boxes are decoded in the graph, or offsets from prior boxes that the package lists. Softmax has a class for nothing.

Source: Liu et al. 2016, "SSD: Single Shot MultiBox Detector"; the offsets as in its Caffe and PyTorch code: centre =
prior's centre + offset * variance * prior's side, side = prior's side * exp(offset * variance).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec, PriorBoxes, family_spec
from sanderling.run.vision.detections import DetectionRules, Detections, Floats
from sanderling.run.vision.heads.base import (
    Arrays,
    Head,
    Roles,
    Size,
    above,
    edges,
    fixed,
    is_float,
    named,
    to_probabilities,
    without_background,
)

_SIDES = 4
_LEAST_PRIORS = 1_000  # fewer are the queries of a transformer


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:  # noqa: ARG001 - a head's form
    """Two outputs of rank 3, with at least a thousand priors."""
    spec = family_spec("ssd")
    found = roles(outputs, spec)
    many = found is not None and (fixed(found["boxes"].shape[1]) or 0) >= _LEAST_PRIORS
    return spec if many else None


def roles(outputs: tuple[TensorSpec, ...], spec: DetectionSpec) -> Roles | None:
    """The output with four columns holds boxes, the other one scores; where both have four, the names must tell."""
    boxes, scores = named(outputs, spec, "boxes"), named(outputs, spec, "scores")
    if boxes is None and scores is None and len(outputs) == 2:
        pairs = [pair for pair in (outputs, outputs[::-1]) if pair[0].shape[-1:] == (_SIDES,)]
        if len(pairs) == 2:
            pairs = [pair for pair in pairs if "box" in pair[0].name.lower()]
        boxes, scores = pairs[0] if len(pairs) == 1 else (None, None)
    if boxes is None or scores is None or len(boxes.shape) != 3 or len(scores.shape) != 3:
        return None
    alike = boxes.shape[1] == scores.shape[1] or not fixed(boxes.shape[1]) or not fixed(scores.shape[1])
    known = isinstance(scores.shape[2], int) and boxes.shape[2] == _SIDES
    return {"boxes": boxes, "scores": scores} if alike and known and is_float(boxes) and is_float(scores) else None


def classes(found: Roles, spec: DetectionSpec) -> int | None:
    """Columns of the scores without the one for nothing."""
    return int(found["scores"].shape[2]) - (spec.background is not None)


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """A prior counts once for each class that it gives enough of a score."""
    for raw, logits in zip(arrays["boxes"], arrays["scores"], strict=True):
        scores = without_background(to_probabilities(logits, spec.scores), spec.background)
        rows, numbers = above(scores, rules.least_score, rules.candidates)
        yield Detections(_boxes(raw, rows, spec, size), scores[rows, numbers], numbers)


def _boxes(raw: Array, rows: Array, spec: DetectionSpec, size: Size) -> Floats:
    if spec.priors is None:
        return edges(raw[rows], spec, size)
    priors, values = prior_boxes(spec.priors, size)[rows], raw[rows].astype(np.float64)
    shift, growth = spec.priors.variances
    centre = priors[:, :2] + values[:, :2] * shift * priors[:, 2:]
    with np.errstate(over="ignore"):
        half = priors[:, 2:] * np.exp(values[:, 2:] * growth) / 2
    return np.concatenate([centre - half, centre + half], axis=1)


@lru_cache(maxsize=8)
def prior_boxes(priors: PriorBoxes, size: Size) -> Floats:
    """Centre x, centre y, width and height of every prior, pixels: float64, shape (priors, 4)."""
    levels = []
    for stride, sides in zip(priors.strides, priors.sizes, strict=True):
        columns, rows = -(-size[0] // stride), -(-size[1] // stride)
        y, x = np.divmod(np.arange(rows * columns), columns)
        centres = (np.stack([x, y], axis=1) + 0.5) * stride  # (cells, 2)
        level = np.empty((len(centres), len(sides), 4))
        level[:, :, :2], level[:, :, 2:] = centres[:, None], np.asarray(sides, np.float64)
        levels.append(level.reshape(-1, 4))
    return np.concatenate(levels)


HEAD = Head(
    "ssd",
    "float outputs boxes (N, priors, 4) and scores (N, priors, classes)",
    recognise,
    roles,
    classes,
    candidates,
)
