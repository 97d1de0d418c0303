"""Find objects on pictures with a package, and follow them through streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.closing import Closing
from sanderling.core.errors import OptionError
from sanderling.core.progress import Progress
from sanderling.core.tensor import Feeds
from sanderling.model.detection import HeadName
from sanderling.model.manifest import Manifest
from sanderling.run.session import Session
from sanderling.run.vision.conveyor import Drop
from sanderling.run.vision.detections import DetectionRules, Detections, Numbers
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.pipeline import Outcome, Pipeline, Reader
from sanderling.run.vision.placing import Placement
from sanderling.run.vision.reading import DetectionReader, no_detector, reader_of
from sanderling.run.vision.sources import Source, open_source
from sanderling.run.vision.tracking import Tracker
from sanderling.tasks.vision.classification import label_of
from sanderling.tasks.vision.drawing import draw_found
from sanderling.tasks.vision.pictures import Picture, PictureModel


class Found(BaseModel):
    """An object on a picture.

    Attributes:
        box: left, top, right and bottom in pixels of the picture.
        score: in [0, 1].
        corners: of a turned box, clockwise from the top left one; None where the model gives none.
        track: number of the object through a stream, from 1; None where nothing is followed.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    label: str
    score: float
    box: tuple[float, float, float, float]
    corners: tuple[tuple[float, float], ...] | None = None
    track: int | None = None


class Detector(Closing):
    """Finds objects on pictures. Close it, or use it in a ``with`` block.

    Attributes:
        session: that runs the package.
        rules: which detections count.
    """

    def __init__(
        self,
        package: str | Path | Session,
        *,
        rules: DetectionRules | None = None,
        variant: str | None = None,
        threads: int = 0,
    ) -> None:
        """Load a package, or use a session, which stays open.

        Args:
            package: ``NAME.sdl``, a zip of one, or a session.
            rules: which detections count: at least a score of 0.25 and at most an overlap of 0.5 by default.
            variant: id; the plan's, or the chosen one, by default.
            threads: of one call; 0 leaves it to the plan or the engine.

        Raises:
            OptionError: the package takes no pictures, or is no detector whose outputs can be read.
        """
        self._model = PictureModel(package, variant=variant, threads=threads)
        self.session = self._model.session
        self.rules = rules or DetectionRules()
        try:
            self._reader = check_detector(self.session.manifest)
        except OptionError:
            self.close()
            raise

    @property
    def head(self) -> HeadName:
        """The family of detectors that the model's outputs are of."""
        return self._reader.spec.head

    def detect(self, picture: Picture) -> tuple[Found, ...]:
        """What is on a picture, best first.

        Args:
            picture: a file, a frame in any pixel format, or uint8 pixels (H, W, 3) in RGB order or (H, W).

        Raises:
            DataError: the picture cannot be read.
        """
        return self.read(*self._model.run(picture))

    def read(self, outputs: Feeds, placement: Placement, frame: Frame) -> tuple[Found, ...]:  # noqa: ARG002
        """What the model's outputs for a frame say, in pixels of the frame; a pipeline's reader."""
        return _told(self.session.manifest, self._placed(outputs, placement))

    def stream(
        self,
        target: str | Path | Sequence[str | Path] | Source,
        *,
        track: bool = False,
        draw: bool = False,
        drop: Drop = "none",
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Outcome[tuple[Found, ...]]]:
        """What is on every frame of a stream, with the stages overlapped; see ``run.vision.pipeline``.

        Args:
            target: pictures and folders of them, a video, ``camera:N``, a URL, or a source, which stays open.
            track: number objects through the stream.
            draw: outcomes have the frame with its objects drawn on it.
            drop: ``newest`` drops frames that the device cannot keep up with, ``none`` waits.
            limit: frames at most.
            progress: told what was skipped.

        Raises:
            DataError: the source cannot be read.
            UnavailableError: OpenCV or a camera is missing.
        """
        with ExitStack() as stack:
            source = (
                stack.enter_context(open_source(target, progress=progress))
                if isinstance(target, str | Path | Sequence)
                else target
            )
            yield from self.pipeline(source, track=track, draw=draw, drop=drop, limit=limit)

    def pipeline(
        self,
        source: Source,
        *,
        track: bool = False,
        draw: bool = False,
        drop: Drop = "none",
        limit: int | None = None,
    ) -> Pipeline[tuple[Found, ...]]:
        """The pipeline of ``stream``, which tells its counters and latencies as well."""
        return Pipeline(
            source,
            self.session,
            self._model.preprocessing,
            self._following() if track else self.read,
            draw=draw_found if draw else None,
            drop=drop,
            limit=limit,
        )

    def _following(self) -> Reader[tuple[Found, ...]]:
        """A reader that numbers objects from frame to frame."""
        tracker = Tracker()

        def read(outputs: Feeds, placement: Placement, frame: Frame) -> tuple[Found, ...]:
            found = self._placed(outputs, placement)
            return _told(self.session.manifest, found, tracker.update(found, frame.index))

        return read

    def _placed(self, outputs: Feeds, placement: Placement) -> Detections:
        return placed(self._reader.read(outputs, self.rules)[0], placement)

    def close(self) -> None:
        """Close the session, if it was opened here."""
        self._model.close()


def check_detector(manifest: Manifest) -> DetectionReader:
    """What reads the model's detections.

    Raises:
        OptionError: nothing can.
    """
    reader = reader_of(manifest)
    if reader is None:
        raise OptionError(f"package '{manifest.name}' is no detector: {no_detector(manifest.outputs)}")
    return reader


def best_detections(
    manifest: Manifest, outputs: Feeds, placement: Placement, rules: DetectionRules
) -> tuple[Found, ...]:
    """What a detector found on one picture, best first, in pixels of the picture.

    Raises:
        OptionError: the package is no detector.
    """
    return _told(manifest, placed(check_detector(manifest).read(outputs, rules)[0], placement))


def placed(found: Detections, placement: Placement) -> Detections:
    """Detections in pixels of the model's input as such in pixels of the picture; those off it are left out."""
    boxes = placement.to_source(found.boxes).astype(np.float64)
    quads = None
    if found.quads is not None:  # two corners have the form of a box
        quads = placement.to_source(found.quads.reshape(-1, 4)).astype(np.float64).reshape(-1, 4, 2)
    there = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return replace(found, boxes=boxes, quads=quads).pick(there)


def _label(manifest: Manifest, index: int) -> str:
    """The name of a class; what finds text finds nothing else."""
    is_text = manifest.detection is not None and manifest.detection.head == "db_text"
    return "text" if is_text and not manifest.labels else label_of(manifest, index)


def _told(manifest: Manifest, found: Detections, tracks: Numbers | None = None) -> tuple[Found, ...]:
    return tuple(
        Found(
            index=int(found.classes[place]),
            label=_label(manifest, int(found.classes[place])),
            score=float(found.scores[place]),
            box=tuple(found.boxes[place].tolist()),
            corners=None if found.quads is None else tuple(map(tuple, found.quads[place].tolist())),
            track=None if tracks is None or not tracks[place] else int(tracks[place]),
        )
        for place in range(len(found))
    )
