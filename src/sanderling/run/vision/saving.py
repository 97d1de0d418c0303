"""Frames to a video or to a folder of pictures, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import OutputError
from sanderling.core.files import replacing, require_folder
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.vision.color import to_bgr
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.opencv import opencv
from sanderling.run.vision.placing import fit

Write = Callable[[Frame], None]
VIDEO_CODES = {".mp4": "mp4v", ".m4v": "mp4v", ".mov": "mp4v", ".mkv": "mp4v", ".avi": "MJPG"}
_PICTURE_QUALITY = 95
_LONGEST_STEM = 60  # letters, of at most four bytes each: file systems take 255 bytes
DEFAULT_FPS = 25.0
_MOST_FPS = 240.0  # what network streams say beyond that is the step of their clock
_LONGEST_HOLD_S = 60.0


def check_target(target: Path, sources: Sequence[str | Path] = ()) -> None:
    """Refuse, before long work, a place that frames cannot be written to.

    Args:
        target: see ``saving``.
        sources: what is read, and must not be replaced.

    Raises:
        OutputError: its folder is missing, its ending is no video's, it is a folder that is not empty, or what is read.
    """
    require_folder(target)
    if any(Path(source).resolve() == target.resolve() for source in sources):
        raise OutputError(f"cannot write {target}: it is what is read; give another name")
    if target.is_dir() and any(target.iterdir()):
        raise OutputError(f"cannot write frames to {target}: the folder is not empty; name a new one")
    if target.is_dir() and target.suffix.lower() in VIDEO_CODES:
        raise OutputError(f"cannot write {target}: it is a folder; name a file, or a folder without such an ending")
    if target.suffix and target.suffix.lower() not in VIDEO_CODES and not target.is_dir():
        raise OutputError(
            f"cannot write {target}: expected a video ({', '.join(VIDEO_CODES)}), or a folder for pictures"
        )
    if target.is_file() and not target.suffix:
        raise OutputError(f"cannot write frames to {target}: it is a file; name a folder, or a video such as out.mp4")


@contextmanager
def saving(target: Path, *, fps: float | None, progress: Progress, live: bool = False) -> Iterator[Write]:
    """Yield what writes a frame; the video or folder appears at the end, or not at all.

    Args:
        target: ``NAME.mp4`` or another of ``VIDEO_CODES``, or a folder.
        fps: of the video; 25 where that is not known.
        progress: told when frames of another size are fitted into the video's.
        live: frames are shown as long as it took until the next one came; otherwise for one step, and one more for each
            frame that was dropped after it.

    Raises:
        OutputError: see ``check_target``; also when OpenCV cannot write such a video, or a picture.
    """
    check_target(target)
    with replacing(target) as scratch:
        if target.suffix.lower() not in VIDEO_CODES:
            scratch.mkdir()
            yield _Pictures(scratch)
            return
        pace = _Pace(fps if fps and fps <= _MOST_FPS else DEFAULT_FPS, by_clock=live, by_index=fps is not None)
        video = _Video(scratch, target, pace, progress)
        try:
            yield video
        finally:
            video.end()
        if not scratch.is_file():
            raise OutputError(f"{target} was not written: there was no frame")
        _check_whole(scratch, target, pace.written)


def _check_whole(file: Path, target: Path, written: int) -> None:
    """Look at what was written: OpenCV says nothing when a disk is full."""
    cv2 = opencv()
    made = cv2.VideoCapture(str(file), cv2.CAP_FFMPEG)
    count = made.get(cv2.CAP_PROP_FRAME_COUNT) if made.isOpened() else 0
    made.set(cv2.CAP_PROP_POS_FRAMES, max(written - 2, 0))
    ends, _ = made.read()
    made.release()
    if count < written - 1 or not ends:
        raise OutputError(f"cannot write {target}: the video is not whole; is there room on the disk? Nothing was kept")


class _Pictures:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, frame: Frame) -> None:
        """Write one picture, named by its number and its file."""
        stem = f"-{Path(frame.name).stem}" if frame.name and "://" not in frame.name else ""
        path = self._folder / f"{frame.index:06d}{stem.replace(':', '-')[:_LONGEST_STEM]}.jpg"
        cv2 = opencv()
        good, data = cv2.imencode(".jpg", to_bgr(frame), [cv2.IMWRITE_JPEG_QUALITY, _PICTURE_QUALITY])
        if not good:
            raise OutputError(f"frame {frame.index} could not be encoded as {path.name}")
        path.write_bytes(data.tobytes())


class _Pace:
    """How long frames are shown, so that a video of what was not dropped is as fast as its source.

    Attributes:
        fps: of the video.
        written: frames of it so far.
    """

    def __init__(self, fps: float, *, by_clock: bool, by_index: bool) -> None:
        self.fps = fps
        self._by_clock, self._by_index = by_clock, by_index
        self.written = 0
        self._start_s = 0.0
        self._next = 0

    def missing(self, frame: Frame) -> int:
        """How often the frame before this one, which is written next, has to be written once more."""
        if not self.written:
            self._start_s = frame.timestamp_s
        count = 0
        if self._by_clock:
            count = round((frame.timestamp_s - self._start_s) * self.fps) - self.written
        elif self._by_index and self.written:
            count = frame.index - self._next
        if count > _LONGEST_HOLD_S * self.fps:  # nobody wants to see a still for so long
            self._start_s = frame.timestamp_s - self.written / self.fps
            count = 0
        count = max(count, 0)
        self.written += count + 1
        self._next = frame.index + 1
        return count


class _Video:
    """A video of the size of its first frame."""

    def __init__(self, scratch: Path, target: Path, pace: _Pace, progress: Progress) -> None:
        self._scratch, self._target, self._pace, self._progress = scratch, target, pace, progress
        self._writer: Any = None
        self._size = (0, 0)
        self._told = False
        self._last: Array | None = None

    def __call__(self, frame: Frame) -> None:
        """Write one frame, and before it the last one for as long as that was to be seen."""
        pixels = to_bgr(frame)
        if self._writer is None:
            self._open(frame)
        if (frame.width, frame.height) != self._size:
            pixels = self._fitted(pixels, frame)
        for _ in range(self._pace.missing(frame)):
            self._writer.write(self._last)
        self._writer.write(pixels)
        self._last = pixels

    def _open(self, frame: Frame) -> None:
        cv2 = opencv()
        self._size = (max(frame.width // 2 * 2, 2), max(frame.height // 2 * 2, 2))  # what codecs take is even
        code = cv2.VideoWriter_fourcc(*VIDEO_CODES[self._target.suffix.lower()])
        self._writer = cv2.VideoWriter(str(self._scratch), cv2.CAP_FFMPEG, code, self._pace.fps, self._size)
        if not self._writer.isOpened():
            raise OutputError(
                f"cannot write {self._target}: OpenCV has no encoder for it here; use .avi, or a folder for pictures"
            )

    def _fitted(self, pixels: Array, frame: Frame) -> Array:
        """A frame of another size, with its proportions, on black; a last odd row or column is cut off."""
        width, height = self._size
        if (frame.width // 2 * 2, frame.height // 2 * 2) == self._size:
            return np.ascontiguousarray(pixels[:height, :width])
        if not self._told:
            self._told = True
            reason = f"frame {frame.index} has {frame.width}×{frame.height} pixels, the video {width}×{height}"
            self._progress.event(Event(kind="frame-fitted", subject=str(self._target), reason=reason))
        whole = np.zeros((height, width, 3), np.uint8)
        place = fit(Preprocessing(width=width, height=height, resize="letterbox"), frame.width, frame.height)
        inner = opencv().resize(pixels, (place.width, place.height), interpolation=opencv().INTER_AREA)
        whole[place.top : place.top + place.height, place.left : place.left + place.width] = inner
        return whole

    def end(self) -> None:
        """Write what is left of the video."""
        if self._writer is not None:
            self._writer.release()
