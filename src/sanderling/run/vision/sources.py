"""Where frames come from: pictures, folders of them, animations, and videos, cameras and network streams."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sanderling.core.closing import Closing
from sanderling.core.errors import DataError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.run.pictures import PICTURE_SUFFIXES, animation_rate, is_animated, read_animation, read_frame
from sanderling.run.vision.captures import LiveSource, VideoSource
from sanderling.run.vision.frames import Frame

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".webm", ".avi", ".wmv", ".flv", ".ogv", ".mpg", ".mpeg"),
    *(".ts", ".mts", ".m2ts", ".mjpg", ".mjpeg", ".y4m"),
)
_ANIMATION_SUFFIXES = (".gif", ".webp", ".png")
_CAMERA = re.compile(r"camera:(?P<number>\d{1,3})")
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+]*)://", re.IGNORECASE)
_SCHEMES = ("rtsp", "rtsps", "rtmp", "http", "https", "udp", "tcp", "srt")


class Frames(Protocol):
    """Frames in their order.

    Attributes:
        name: what the user called it.
        live: whether frames are lost when nobody takes them (a camera, a network stream).
        fps: frames a second that it says it has; None for pictures and where it does not say.
        count: of frames, where it is known.
    """

    name: str
    live: bool
    fps: float | None
    count: int | None

    def __iter__(self) -> Iterator[Frame]:
        """The frames, in bgr for video and in rgb or gray for pictures; a bad picture in a folder is an event."""

    def close(self) -> None:
        """End it; an iteration that waits ends too."""


class Source(Frames, Protocol):
    """What is open: close it, or use it in a ``with`` block."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_source(targets: str | Path | Sequence[str | Path], *, progress: Progress | None = None) -> Source:
    """Open pictures and folders of them, or one animation, video, ``camera:N`` or URL.

    Args:
        targets: paths, or one ``camera:N`` or URL such as ``rtsp://HOST/PATH``.
        progress: is told about pictures that are skipped, and about cameras that are lost and found.

    Raises:
        DataError: there is no such file, it is neither picture nor video, a folder has no pictures, or something else
            stands beside a video or a camera.
        UnavailableError: OpenCV or Pillow is missing, or there is no such camera.
    """
    listed = [targets] if isinstance(targets, str | Path) else list(targets)
    progress = progress or Silent()
    if not all(map(str, listed)) or not listed:
        raise DataError("no source is given: expected pictures, a folder, a video, camera:0 or a URL")
    moving = [target for target in listed if _moves(target)]
    if not moving:
        return PictureSource([Path(target) for target in listed], progress)
    if len(listed) > 1:
        raise DataError(f"{moving[0]} is a video or a camera: it must be the only source, and {len(listed)} are given")
    return _moving(str(moving[0]), progress)


def is_source(text: str) -> bool:
    """Whether a text names a camera or a URL rather than a file."""
    return bool(_CAMERA.fullmatch(text) or _URL.match(text))


class PictureSource(Closing):
    """Pictures one after the other; in a folder, and below it, those whose names end as pictures' do.

    A picture that was named must be readable; one that was found in a folder is skipped with an event.
    """

    live = False
    fps: float | None = None

    def __init__(self, targets: Sequence[Path], progress: Progress) -> None:
        self.name = str(targets[0]) if len(targets) == 1 else f"{len(targets)} paths"
        self._progress = progress
        self._files = [(file, target.is_dir()) for target in targets for file in _files(target, progress)]
        self.count: int | None = len(self._files)
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        """The pictures; ``index`` counts those that were skipped too."""
        for index, (file, found) in enumerate(self._files):
            if self._closed:
                return
            try:
                frame = read_frame(file, index=index)
            except DataError as error:
                if not found:
                    raise
                self._progress.event(Event(kind="picture-skipped", subject=str(file), reason=str(error)))
                continue
            if frame.reduction > 1:
                self._progress.event(_reduced(frame))
            yield frame

    def close(self) -> None:
        """Read no more."""
        self._closed = True


class AnimationSource(Closing):
    """The frames of an animated GIF, WebP or PNG; one that ends within a frame ends there, with an event."""

    live = False

    def __init__(self, path: Path, progress: Progress) -> None:
        self.name = str(path)
        self.count: int | None = None
        self.fps: float | None = animation_rate(path)
        self._path, self._progress, self._closed = path, progress, False

    def __iter__(self) -> Iterator[Frame]:
        """The frames, each whole."""
        index = -1
        try:
            for frame in read_animation(self._path):
                if self._closed:
                    return
                index = frame.index
                yield frame
        except DataError as error:
            if index < 0:
                raise
            reason = f"after {index + 1} frames: {error}"
            self._progress.event(Event(kind="video-cut-short", subject=self.name, reason=reason))

    def close(self) -> None:
        """Read no more."""
        self._closed = True


def _moves(target: str | Path) -> bool:
    text = str(target)
    if isinstance(target, str) and (text.startswith("camera:") or _URL.match(text)):
        return True
    path = Path(target)
    suffix = path.suffix.lower()
    return suffix in VIDEO_SUFFIXES or (suffix in _ANIMATION_SUFFIXES and path.is_file() and is_animated(path))


def _moving(text: str, progress: Progress) -> Source:
    camera, url = _CAMERA.fullmatch(text), _URL.match(text)
    if camera:
        return LiveSource(text, int(camera["number"]), progress)
    if text.startswith("camera:") and not Path(text).exists():
        raise DataError(f"{text} is no camera: expected camera:0, camera:1, …")
    if url:
        if url["scheme"].lower() not in _SCHEMES:
            raise DataError(f"{text} has the scheme '{url['scheme']}': read are {', '.join(_SCHEMES)}")
        return LiveSource(text, text, progress)
    path = Path(text)
    if path.suffix.lower() in _ANIMATION_SUFFIXES:
        return AnimationSource(path, progress)
    return VideoSource(path, progress)


def _files(target: Path, progress: Progress) -> list[Path]:
    """A picture, or all pictures below a folder in the order of their names."""
    if target.is_file():
        return [target]
    if not target.is_dir():
        raise DataError(f"{target} does not exist: expected a picture, a folder, a video, camera:0 or a URL")
    files = sorted(file for file in target.rglob("*") if file.is_file() and not _is_hidden(file, target))
    pictures = [file for file in files if file.suffix.lower() in PICTURE_SUFFIXES]
    if not pictures:
        raise DataError(f"{target} holds no pictures: expected files such as {', '.join(PICTURE_SUFFIXES[:4])}")
    others = [file for file in files if file.suffix.lower() not in PICTURE_SUFFIXES]
    if others:
        shown = ", ".join(file.name for file in others[:3]) + (" …" if others[3:] else "")
        reason = f"{len(others)} of {len(files)} files are no pictures by their names: {shown}"
        progress.event(Event(kind="files-ignored", subject=str(target), reason=reason))
    return pictures


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _reduced(frame: Frame) -> Event:
    reason = (
        f"it is enormous and was decoded at 1/{frame.reduction} of its size: {frame.width}×{frame.height} pixels, in "
        "which boxes are told"
    )
    return Event(kind="picture-reduced", subject=frame.name, reason=reason)
