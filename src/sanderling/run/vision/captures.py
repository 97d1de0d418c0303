"""Videos, cameras and network streams, read by OpenCV."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from sanderling.core.closing import Closing
from sanderling.core.errors import DataError, UnavailableError
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.opencv import opencv

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 8.0
PATIENCE_S = 60.0
_RUINED_READS = 1_000  # frames in a row that cannot be decoded, before a video counts as ended: more than between keys
_OPEN_TIMEOUT_MS = 10_000
_LISTS_FRAMES = (".mp4", ".m4v", ".mov", ".3gp", ".avi")  # others say how long they are, sound included, or guess it
_MISSED_S = 0.25  # by which those end early before it is told


class Capture(Protocol):
    """What OpenCV's ``VideoCapture`` offers and is used here."""

    def isOpened(self) -> bool:  # noqa: N802 - OpenCV's name
        """Whether it can be read."""

    def read(self) -> tuple[bool, Array | None]:
        """The next frame, BGR."""

    def get(self, which: int) -> float:
        """A property."""

    def release(self) -> None:
        """Close it."""


class _Captured(Closing):
    """What is released at the end of a ``with`` block, once nobody reads: OpenCV must not do both at once."""

    _capture: Capture
    _longest_read_s = -1.0  # for which is waited; below 0 however long it takes

    def __init__(self) -> None:
        self._reading = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._reading.acquire(timeout=self._longest_read_s):
            self._capture.release()
            self._reading.release()


class VideoSource(_Captured):
    """The frames of a video file, in bgr. One that ends too soon ends there, with an event."""

    live = False

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__()
        if not path.is_file():
            raise DataError(f"{path} does not exist: expected a video")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: expected a video")
        self.name = str(path)
        self._progress = progress
        self._capture = _opened(str(path))
        if not self._capture.isOpened():
            raise DataError(
                f"{path} is no readable video: it is damaged, cut short, or of a kind that OpenCV does not "
                "decode; convert it, as in ffmpeg -i FILE out.mp4"
            )
        self.fps: float | None = _rate(self._capture)
        self.count: int | None = _count(self._capture)
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        """The frames, each whole; those that cannot be decoded are left out."""
        index, read, ruined = 0, 0, 0
        clock = _Clock(self._capture, self.fps)
        while not self._closed:
            with self._reading:
                good, pixels = self._capture.read()
                at_s = clock.tell(index) if good else 0.0
            if good and pixels is not None and pixels.size:
                yield _frame(pixels, index, at_s, self.name)
                read, ruined = read + 1, 0
            elif self.count is not None and index + 1 < self.count and ruined < _RUINED_READS:
                ruined += 1
            else:
                self._tell_end(read, clock.now_s)
                return
            index += 1

    def _tell_end(self, read: int, last_s: float) -> None:
        if not read:
            raise DataError(f"{self.name} has no frame that can be decoded")
        if self.count is None or read >= self.count:
            return
        if Path(self.name).suffix.lower() in _LISTS_FRAMES:
            reason = f"it says that it has {self.count} frames, and {read} could be read"
        elif self.fps and (self.count - 1) / self.fps > last_s + _MISSED_S:
            reason = f"it says that it lasts {self.count / self.fps:.1f} s, and its last frame is at {last_s:.1f} s"
        else:
            return
        self._progress.event(Event(kind="video-cut-short", subject=self.name, reason=reason))

    def close(self) -> None:
        """Read no more."""
        self._closed = True


class _Clock:
    """When frames are shown: phones film as many a second as the light allows. From the first frame on."""

    def __init__(self, capture: Capture, fps: float | None) -> None:
        self.now_s = 0.0
        self._capture, self._fps = capture, fps
        self._start_s: float | None = None

    def tell(self, index: int) -> float:
        """Of the frame that was just read; never before that of the one before."""
        told_s = self._capture.get(opencv().CAP_PROP_POS_MSEC) / 1e3
        self._start_s = told_s if self._start_s is None else self._start_s
        told_s -= self._start_s
        if index and not told_s > self.now_s:  # some containers do not say it of all frames
            told_s = index / self._fps if self._fps else 0.0
        self.now_s = max(told_s, self.now_s)
        return self.now_s


class LiveSource(_Captured):
    """The frames of a camera or a network stream, in bgr. One that disappears is opened again, later and later.

    A URL of a video, which knows how many frames it has, is not live and ends.

    Args:
        name: that the user gave.
        address: number of a camera, or a URL.
        progress: told when it is lost and found.
        open_capture: opens the address.
        patience_s: without a frame, after which it is given up.
    """

    _longest_read_s = _OPEN_TIMEOUT_MS / 1e3 + 2

    def __init__(
        self,
        name: str,
        address: int | str,
        progress: Progress,
        *,
        open_capture: Callable[[int | str], Capture] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__()
        self.name = name
        self.losses = 0
        self._address, self._progress, self._patience_s = address, progress, patience_s
        self._open = open_capture or _opened
        self._ended = threading.Event()
        self._capture = self._open(address)
        if not self._capture.isOpened():
            self._capture.release()
            what = "camera" if isinstance(address, int) else "stream"
            raise UnavailableError(f"{name} cannot be opened: is the {what} there, and may it be read?")
        self.fps: float | None = _rate(self._capture)
        self.count: int | None = _count(self._capture)
        self.live = self.count is None

    def __iter__(self) -> Iterator[Frame]:
        """The frames as they come; ends when it is closed.

        Raises:
            UnavailableError: it disappeared and did not come back within its patience.
        """
        index = 0
        while not self._ended.is_set():
            with self._reading:
                good, pixels = self._capture.read()
            if good and pixels is not None and pixels.size:
                at_s = time.monotonic() if self.live else index / (self.fps or 1.0)
                yield _frame(pixels, index, at_s, self.name)
                index += 1
            elif not self.live or not self._found_again():
                return

    def _found_again(self) -> bool:
        """Open it again, with longer and longer breaks; False when it was closed meanwhile."""
        self.losses += 1
        lost_s, wait_s, tries = time.monotonic(), FIRST_WAIT_S, 0
        self._progress.event(
            Event(kind="camera-lost", subject=self.name, reason="it gives no frames; it is looked for")
        )
        while True:
            with self._reading:
                self._capture.release()
            left_s = self._patience_s - (time.monotonic() - lost_s)
            if left_s <= 0:
                raise UnavailableError(
                    f"{self.name} disappeared and did not come back within {self._patience_s:g} s ({tries} tries)"
                )
            if self._ended.wait(min(wait_s, left_s)):
                return False
            tries += 1
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            with self._reading:
                if self._ended.is_set():  # nobody would let go of it
                    return False
                self._capture = self._open(self._address)
            if self._capture.isOpened():
                reason = f"after {time.monotonic() - lost_s:.1f} s and {tries} tries"
                self._progress.event(Event(kind="camera-found", subject=self.name, reason=reason))
                return True

    def close(self) -> None:
        """Read no more; a search for it ends at once."""
        self._ended.set()


def _opened(address: int | str) -> Capture:
    cv2 = opencv()
    if isinstance(address, int):
        return _capture(cv2.VideoCapture(address))
    timeouts = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPEN_TIMEOUT_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, _OPEN_TIMEOUT_MS]
    return _capture(cv2.VideoCapture(address, cv2.CAP_FFMPEG, timeouts))


def _capture(made: Any) -> Capture:  # noqa: ANN401 - OpenCV's
    capture: Capture = made
    return capture


def _rate(capture: Capture) -> float | None:
    fps = capture.get(opencv().CAP_PROP_FPS)
    return float(fps) if 0 < fps < 1e4 else None


def _count(capture: Capture) -> int | None:
    count = capture.get(opencv().CAP_PROP_FRAME_COUNT)
    return int(count) if 0 < count < 1e9 else None


def _frame(pixels: Array, index: int, timestamp_s: float, name: str) -> Frame:
    if pixels.ndim == 2:
        return Frame(pixels, "gray", pixels.shape[1], pixels.shape[0], timestamp_s, index, name)
    return Frame(pixels, "bgr", pixels.shape[1], pixels.shape[0], timestamp_s, index, name)
