"""What is taken for what: how often each class was given where another was right."""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import Detections, Numbers
from sanderling.run.vision.suppression import pairwise_iou

NOTHING = -1
_LEAST_SCORE = 0.25
_LEAST_OVERLAP = 0.5


class Confusion(BaseModel):
    """Counts by class that was right and class that was given, the most frequent first.

    Attributes:
        cells: right class, given class and how often; −1 is nothing: an object that was missed, a detection without an
            object, or an output that was not finite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cells: tuple[tuple[int, int, int], ...]

    def matrix(self, classes: list[int]) -> Numbers:
        """Counts of these classes, rows by what was right: int64, shape (k, k)."""
        place = {number: index for index, number in enumerate(classes)}
        counts = np.zeros((len(classes), len(classes)), np.int64)
        for right, given, count in self.cells:
            if right in place and given in place:
                counts[place[right], place[given]] += count
        return counts

    def classes(self, most: int) -> list[int]:
        """The classes in it, in their order, nothing last; if there are more than ``most``, those confused most."""
        confused: Counter[int] = Counter()
        for right, given, count in self.cells:
            confused.update({right: 0, given: 0} if right == given else {right: count, given: count})
        chosen = [number for number, _ in confused.most_common(most)]
        return sorted(chosen, key=lambda number: (number == NOTHING, number))


def of_labels(labels: Numbers, given: Numbers) -> Confusion:
    """Of a classifier.

    Args:
        labels: int64, shape (n,).
        given: the likeliest class of each sample, int64, shape (n,); −1 where an output was not finite.
    """
    return counted(Counter(zip(labels.tolist(), given.tolist(), strict=True)))


def counted(pairs: Counter[tuple[int, int]]) -> Confusion:
    """Of pairs of the right class and the given one."""
    return Confusion(cells=tuple((right, given, count) for (right, given), count in pairs.most_common()))


def of_objects(found: list[Detections], objects: Objects) -> Counter[tuple[int, int]]:
    """Of a detector: each object with the detection that overlaps it most, whatever its class.

    Detections of a score of at least 0.25 count, and pairs that overlap by half at least; the pairs are taken the most
    overlapping first.
    """
    pairs: Counter[tuple[int, int]] = Counter()
    for row, detections in enumerate(found):
        there = objects.classes[row] >= 0
        boxes, right = objects.boxes[row][there], objects.classes[row][there]
        seen = detections.pick(detections.scores >= _LEAST_SCORE)
        given = _partners(pairwise_iou(boxes, seen.boxes))
        pairs.update((int(right[place]), int(seen.classes[other])) for place, other in given.items())
        pairs.update((int(number), NOTHING) for place, number in enumerate(right) if place not in given)
        invented = set(range(len(seen))) - set(given.values())
        pairs.update((NOTHING, int(seen.classes[other])) for other in sorted(invented))
    return pairs


def _partners(overlap: np.ndarray) -> dict[int, int]:
    """Rows with their columns, each used once, the most overlapping pairs first."""
    overlap, partners = overlap.copy(), {}
    while overlap.max(initial=0.0) >= _LEAST_OVERLAP:
        row, column = np.unravel_index(int(overlap.argmax()), overlap.shape)
        partners[int(row)] = int(column)
        overlap[row], overlap[:, column] = 0.0, 0.0
    return partners
