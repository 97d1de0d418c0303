"""Follow objects from frame to frame: by where they will be, and how much boxes overlap.

As ByteTrack does, sure detections are matched first, then what is left of the tracks with unsure ones, so that an
object that is half hidden keeps its number. Pairs are taken greedily, the most overlapping first; positions go on at
the smoothed speed of the box's centre. There is no appearance model: objects that cross while hidden may swap numbers.

Source: Zhang et al. 2022, "ByteTrack: Multi-Object Tracking by Associating Every Detection Box", algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanderling.run.vision.detections import Detections, Floats, Numbers
from sanderling.run.vision.suppression import pairwise_iou

_TOUCHING = 1e-9  # boxes that have nothing in common are never one object, whatever the rules
_NEW_SPEED = 0.4  # share of the latest step in the smoothed speed


@dataclass(frozen=True)
class TrackRules:
    """When a detection continues a track.

    Attributes:
        sure_score: from which a detection is sure; others only continue tracks.
        least_overlap: intersection over union with where the track is expected, of sure detections.
        least_overlap_unsure: of unsure ones.
        most_missed: frames without a detection after which a track ends.
        by_class: a track keeps its class.
    """

    sure_score: float = 0.5
    least_overlap: float = 0.3
    least_overlap_unsure: float = 0.5
    most_missed: int = 30
    by_class: bool = True


@dataclass
class _Track:
    number: int
    box: Floats  # (4,)
    speed: Floats  # (2,), pixels a frame
    label: int
    seen: int  # index of the frame

    def expected(self, index: int) -> Floats:
        """Its box at a frame."""
        return self.box + np.tile(self.speed * (index - self.seen), 2)

    def move(self, box: Floats, index: int) -> None:
        """It was found at a frame."""
        step = ((box - self.box)[:2] + (box - self.box)[2:]) / 2 / max(index - self.seen, 1)
        self.speed = (1 - _NEW_SPEED) * self.speed + _NEW_SPEED * step
        self.box, self.seen = box, index


class Tracker:
    """Gives detections of successive frames the numbers of the objects that they are of."""

    def __init__(self, rules: TrackRules | None = None) -> None:
        self._rules = rules or TrackRules()
        self._tracks: list[_Track] = []
        self._next = 1

    def update(self, found: Detections, index: int) -> Numbers:
        """The number of each detection's object.

        Args:
            found: of one frame.
            index: of the frame in its source, rising; where frames were dropped tracks go on over the gap.

        Returns:
            int64, shape (k,): from 1 on, never used twice; 0 for an unsure detection that continues no track.
        """
        rules = self._rules
        self._tracks = [track for track in self._tracks if index - track.seen <= rules.most_missed + 1]
        numbers = np.zeros(len(found), np.int64)
        sure = found.scores >= rules.sure_score
        left = self._continue(found, numbers, np.flatnonzero(sure), self._tracks, rules.least_overlap, index)
        self._continue(found, numbers, np.flatnonzero(~sure), left, rules.least_overlap_unsure, index)
        for place in np.flatnonzero(sure & (numbers == 0)):
            numbers[place] = self._next
            label = int(found.classes[place])
            self._tracks.append(_Track(self._next, found.boxes[place], np.zeros(2), label, index))
            self._next += 1
        return numbers

    def _continue(
        self,
        found: Detections,
        numbers: Numbers,
        places: Numbers,
        tracks: list[_Track],
        least_overlap: float,
        index: int,
    ) -> list[_Track]:
        """Number the detections that continue a track; returns the tracks that none continues."""
        if not len(places) or not tracks:
            return tracks
        expected = np.stack([track.expected(index) for track in tracks])
        overlap = pairwise_iou(found.boxes[places], expected)
        if self._rules.by_class:
            labels = np.array([track.label for track in tracks])
            overlap *= found.classes[places][:, None] == labels
        taken = set()
        while overlap.max(initial=0.0) >= max(least_overlap, _TOUCHING):
            row, column = np.unravel_index(int(overlap.argmax()), overlap.shape)
            tracks[column].move(found.boxes[places[row]], index)
            numbers[places[row]] = tracks[column].number
            overlap[row], overlap[:, column] = 0.0, 0.0
            taken.add(int(column))
        return [track for place, track in enumerate(tracks) if place not in taken]
