"""Where frames come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sanderling.core.progress import Progress, Silent
from sanderling.run.vision.frames import Frame


class Source(Protocol):
    """Frames in their order; close it, or use it in a ``with`` block.

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

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_source(target: str | Path, *, progress: Progress | None = None) -> Source:
    """Open ``PATH`` of a picture, of an animated GIF or of a video, a folder of pictures, ``camera:N`` or a URL.

    Raises:
        DataError: there is no such file, or it is neither picture nor video.
        UnavailableError: OpenCV or Pillow is missing, or there is no such camera.
    """
    raise NotImplementedError(target, progress or Silent())
