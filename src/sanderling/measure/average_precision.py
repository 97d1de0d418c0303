"""Mean average precision of detections, as COCO defines it, and a bound on its drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sanderling.core.statistics import CONFIDENCE
from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import Detections, Floats, Numbers
from sanderling.run.vision.suppression import pairwise_iou

THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
_REPEATS = 1_000
_BLOCK_REPEATS = 100
_ROUNDING = 1e-9

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Matches:
    """Which detections are right, picture by picture: all that average precision needs.

    Attributes:
        pictures: int64, shape (d,): the picture that each detection is of.
        classes: int64, shape (d,).
        scores: float64, shape (d,).
        right: bool, shape (10, d), by the thresholds of intersection over union.
        object_pictures: int64, shape (o,): the picture that each object is on.
        object_classes: int64, shape (o,).
        count: number of pictures.
    """

    pictures: Numbers
    classes: Numbers
    scores: Floats
    right: Flags
    object_pictures: Numbers
    object_classes: Numbers
    count: int

    @classmethod
    def joined(cls, parts: Sequence[Matches]) -> Matches:
        """The matches of several sets of pictures as those of one."""
        starts = np.cumsum([0, *(part.count for part in parts)])
        shifted = list(zip(starts[:-1], parts, strict=True))
        return cls(
            pictures=np.concatenate([part.pictures + start for start, part in shifted]),
            classes=np.concatenate([part.classes for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
            right=np.concatenate([part.right for part in parts], axis=1),
            object_pictures=np.concatenate([part.object_pictures + start for start, part in shifted]),
            object_classes=np.concatenate([part.object_classes for part in parts]),
            count=int(starts[-1]),
        )

    @cached_property
    def ranked(self) -> tuple[_Ranked, ...]:
        """For each class that is on a picture, its detections, best first."""
        return tuple(_Ranked.of(self, number) for number in np.unique(self.object_classes))


@dataclass(frozen=True)
class _Ranked:
    """One class: of which picture each detection is, best first, and where the right ones stand, by threshold."""

    pictures: Numbers
    places: tuple[Numbers, ...]
    object_pictures: Numbers

    @classmethod
    def of(cls, matches: Matches, number: np.int64) -> _Ranked:
        chosen = np.flatnonzero(matches.classes == number)
        order = chosen[np.argsort(-matches.scores[chosen], kind="stable")]
        return cls(
            pictures=matches.pictures[order],
            places=tuple(np.flatnonzero(right[order]) for right in matches.right),
            object_pictures=matches.object_pictures[matches.object_classes == number],
        )


def match(found: Sequence[Detections], objects: Objects) -> Matches:
    """Match each picture's detections with its objects, best first, for every threshold.

    A detection is right when an object of its class that no better one took overlaps it enough; of several it takes
    the one that it overlaps most, of equal ones the last. A box that is inside out is wrong; COCO's code leaves it out.

    Args:
        found: of n pictures.
        objects: of the same pictures.

    Source: Lin et al. 2014, "Microsoft COCO"; the order of ties as in its evaluation code.
    """
    right = [
        _right(detections, objects.boxes[row][there], objects.classes[row][there])
        for row, (detections, there) in enumerate(zip(found, objects.classes >= 0, strict=True))
    ]
    sizes = [len(detections.scores) for detections in found]
    object_pictures, columns = np.nonzero(objects.classes >= 0)
    return Matches(
        pictures=np.repeat(np.arange(len(found)), sizes),
        classes=np.concatenate([detections.classes for detections in found]),
        scores=np.concatenate([detections.scores for detections in found]),
        right=np.concatenate(right, axis=1),
        object_pictures=object_pictures,
        object_classes=objects.classes[object_pictures, columns],
        count=len(found),
    )


def _right(detections: Detections, boxes: Floats, classes: Numbers) -> Flags:
    """Which detections of one picture are right, shape (10, k)."""
    right = np.zeros((len(THRESHOLDS), len(detections.scores)), bool)
    overlap = pairwise_iou(detections.boxes, boxes) * (detections.classes[:, None] == classes)
    free = np.ones((len(THRESHOLDS), len(boxes)), bool)
    rows = np.arange(len(THRESHOLDS))
    for index in np.flatnonzero((overlap >= THRESHOLDS[0]).any(axis=1)):
        possible = np.where(free & (overlap[index] >= THRESHOLDS[:, None]), overlap[index], -1.0)
        taken = possible.shape[1] - 1 - possible[:, ::-1].argmax(axis=1)
        right[:, index] = possible[rows, taken] > 0
        free[rows[right[:, index]], taken[right[:, index]]] = False
    return right


def mean_average_precision(matches: Matches, *, thresholds: slice = slice(None)) -> float:
    """Mean average precision in percent: over the classes that are on the pictures, and over thresholds.

    Args:
        matches: of all pictures.
        thresholds: positions in ``THRESHOLDS``; all of them (mAP50-95) by default, ``slice(0, 1)`` for mAP50.

    Source: as COCO counts it: precision made to fall with recall, read at 101 recalls.
    """
    return float(weighted_map(matches, np.ones((1, matches.count)), thresholds)[0])


def map_drop_upper(reference: Matches, variant: Matches, *, seed: int = 0, confidence: float = CONFIDENCE) -> float:
    """Upper bound on how much lower the variant's mAP50-95 is, in percentage points.

    The pictures of both are weighed alike, again and again, at random (a Bayesian bootstrap, paired). One more picture
    on which the variant finds nothing is added, without which the bootstrap would see no risk where nothing was lost:
    with equal matches the bound is the share that the rule of three leaves, of the reference's mAP.

    Args:
        reference: matches of FP32.
        variant: matches on the same pictures.
        seed: of the bootstrap's generator.
        confidence: with which the bound holds.

    Source: Rubin, "The Bayesian Bootstrap", Annals of Statistics 9 (1981) 130; Davison and
    Hinkley, "Bootstrap Methods and their Application" (1997), section 5.2.1, basic bootstrap limits.
    """
    generator = np.random.default_rng(seed)
    drop = mean_average_precision(reference) - mean_average_precision(variant)
    drops, losses = np.empty((2, _REPEATS))
    for start in range(0, _REPEATS, _BLOCK_REPEATS):
        block = slice(start, start + _BLOCK_REPEATS)
        weights = generator.dirichlet(np.ones(reference.count + 1), _BLOCK_REPEATS)
        lost, weights = weights[:, -1], weights[:, :-1]
        kept = weighted_map(variant, weights)
        drops[block], losses[block] = weighted_map(reference, weights) - kept, lost * kept
    return float(max(np.quantile(drops + losses, confidence), np.quantile(2 * drop - drops + losses, confidence)))


def weighted_map(matches: Matches, weights: Floats, thresholds: slice = slice(None)) -> Floats:
    """Mean average precision in percent for each row of picture weights, shape (repeats, pictures).

    A weight of 2 counts a picture twice. Weights that leave a class without objects leave it out of the mean.
    """
    total, counted = np.zeros(len(weights)), np.zeros(len(weights))
    for ranked in matches.ranked:
        objects = weights[:, ranked.object_pictures].sum(axis=1)
        own = weights[:, ranked.pictures]  # (repeats, detections)
        seen = own.cumsum(axis=1)
        places = ranked.places[thresholds]
        precision = np.mean([_average_precision(own, seen, place, objects) for place in places], axis=0)
        total += np.where(objects > 0, precision, 0.0)
        counted += objects > 0
    return np.asarray(100.0 * total / np.maximum(counted, 1))


def _average_precision(own: Floats, seen: Floats, places: Numbers, objects: Floats) -> Floats:
    """Average precision of one class at one threshold, shape (repeats,).

    Only right detections are looked at: between two of them recall stands still and precision falls.

    Args:
        own: weight of each detection, best first, shape (repeats, detections).
        seen: weight of it and of all better ones, same shape.
        places: positions of the right detections, shape (r,).
        objects: weight of all objects, shape (repeats,).
    """
    right = own[:, places].cumsum(axis=1)  # (repeats, r)
    if not len(places):
        return np.zeros(len(own))
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.nan_to_num(right / seen[:, places])
        recall = np.nan_to_num(right / objects[:, None])
    recall[recall > 1 - _ROUNDING] = 1.0  # the two sums are added up in different orders
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    reached = np.searchsorted(_RECALLS, recall, side="right")  # of the 101 recalls
    steps = np.diff(reached, axis=1, prepend=0)
    return np.asarray((envelope * steps).sum(axis=1) / len(_RECALLS))
