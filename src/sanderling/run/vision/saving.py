"""Frames to a video or to a folder of pictures, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
DEFAULT_FPS = 25.0


def check_target(target: Path) -> None:
    """Refuse, before long work, a place that frames cannot be written to.

    Raises:
        OutputError: its folder is missing, its ending is no video's, or it is a folder that is not empty.
    """
    require_folder(target)
    if target.is_dir() and any(target.iterdir()):
        raise OutputError(f"cannot write frames to {target}: the folder is not empty; name a new one")
    if target.suffix and target.suffix.lower() not in VIDEO_CODES and not target.is_dir():
        raise OutputError(
            f"cannot write {target}: expected a video ({', '.join(VIDEO_CODES)}), or a folder for pictures"
        )
    if target.is_file() and not target.suffix:
        raise OutputError(f"cannot write frames to {target}: it is a file; name a folder, or a video such as out.mp4")


@contextmanager
def saving(target: Path, *, fps: float | None, progress: Progress) -> Iterator[Write]:
    """Yield what writes a frame; the video or folder appears at the end, or not at all.

    Args:
        target: ``NAME.mp4`` or another of ``VIDEO_CODES``, or a folder.
        fps: of the video; 25 where that is not known.
        progress: told when frames of another size are fitted into the video's.

    Raises:
        OutputError: see ``check_target``; also when OpenCV cannot write such a video, or a picture.
    """
    check_target(target)
    with replacing(target) as scratch:
        if target.suffix.lower() not in VIDEO_CODES:
            scratch.mkdir()
            yield _Pictures(scratch)
            return
        video = _Video(scratch, target, fps or DEFAULT_FPS, progress)
        try:
            yield video
        finally:
            video.end()
        if not scratch.is_file():
            raise OutputError(f"{target} was not written: there was no frame")


class _Pictures:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, frame: Frame) -> None:
        """Write one picture, named by its number and its file."""
        stem = f"-{Path(frame.name).stem}" if frame.name and "://" not in frame.name else ""
        path = self._folder / f"{frame.index:06d}{stem.replace(':', '-')}.jpg"
        cv2 = opencv()
        good, data = cv2.imencode(".jpg", to_bgr(frame), [cv2.IMWRITE_JPEG_QUALITY, _PICTURE_QUALITY])
        if not good:
            raise OutputError(f"frame {frame.index} could not be encoded as {path.name}")
        path.write_bytes(data.tobytes())


class _Video:
    """A video of the size of its first frame."""

    def __init__(self, scratch: Path, target: Path, fps: float, progress: Progress) -> None:
        self._scratch, self._target, self._fps, self._progress = scratch, target, fps, progress
        self._writer: Any = None
        self._size = (0, 0)
        self._told = False

    def __call__(self, frame: Frame) -> None:
        """Write one frame."""
        pixels = to_bgr(frame)
        if self._writer is None:
            self._open(frame)
        if (frame.width, frame.height) != self._size:
            pixels = self._fitted(pixels, frame)
        self._writer.write(pixels)

    def _open(self, frame: Frame) -> None:
        cv2 = opencv()
        self._size = (max(frame.width // 2 * 2, 2), max(frame.height // 2 * 2, 2))  # what codecs take is even
        code = cv2.VideoWriter_fourcc(*VIDEO_CODES[self._target.suffix.lower()])
        self._writer = cv2.VideoWriter(str(self._scratch), cv2.CAP_FFMPEG, code, self._fps, self._size)
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
