"""From a source to results: capture, preprocessing, inference, reading and drawing at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import OptionError
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array, Feeds
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.session import Session
from sanderling.run.vision.channels import Channel
from sanderling.run.vision.conveyor import Conveyor, Drop, Stage
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.placing import Placement
from sanderling.run.vision.sources import Frames
from sanderling.run.vision.transforms import Transform

__all__ = ["Drawer", "Drop", "Outcome", "Pipeline", "Reader", "StreamStatistics"]

T = TypeVar("T")
Reader = Callable[[Feeds, Placement, Frame], T]
"""Outputs of the model for one frame, where the frame lies in its input, and the frame → what they mean."""
Drawer = Callable[[Frame, T], Frame]
"""The frame with its result drawn on it, in bgr; the frame that is given is not changed."""
_LATENCIES = 10_000  # that percentiles are of, at least
_BUFFERS = 4  # of inputs: one is filled, one is read, and two may wait in between


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of one frame.

    Attributes:
        frame: the source's.
        placement: where it lay in the model's input.
        value: what the reader made of the outputs.
        drawn: the frame with the overlay; None without a drawer.
        latency_ms: from the frame's capture to this result.
    """

    frame: Frame
    placement: Placement
    value: T
    drawn: Frame | None
    latency_ms: float


class StreamStatistics(BaseModel):
    """What a stream has done so far.

    Attributes:
        frames: that the source gave.
        results: that were delivered.
        dropped: frames that were replaced by newer ones before the device was free.
        seconds: from the first frame to the last result.
        fps: results a second.
        latency_ms: from capture to result, percentiles; None without results.
        stages_ms: of each stage, percentiles; ``capture`` of a live source is the time between two frames, ``deliver``
            is what the caller does with a result.
        copied_bytes: between the arrays that were given and the engine.
    """

    model_config = ConfigDict(frozen=True)

    frames: int
    results: int
    dropped: int
    seconds: float
    fps: float
    latency_ms: dict[str, float] | None
    stages_ms: dict[str, dict[str, float]]
    copied_bytes: int


class _Prepared(NamedTuple):
    frame: Frame
    buffer: Array
    placement: Placement


class _Ran(NamedTuple):
    frame: Frame
    outputs: Feeds
    placement: Placement


class _Read(NamedTuple):
    frame: Frame
    placement: Placement
    value: Any
    drawn: Frame | None


class Pipeline(Generic[T]):
    """Runs a model on the frames of a source; iterate over it once.

    Args:
        source: open; it is not closed here.
        session: of a model with one input.
        preprocessing: how frames become that input.
        read: what outputs mean.
        draw: an overlay; none by default.
        drop: ``newest`` leaves out frames that the device is too slow for, so that a result is of a frame just taken; a
            file is then played at its own pace. ``none`` takes every frame, as fast as can be.
        limit: results after which it ends.
    """

    def __init__(
        self,
        source: Frames,
        session: Session,
        preprocessing: Preprocessing,
        read: Reader[T],
        *,
        draw: Drawer[T] | None = None,
        drop: Drop = "none",
        limit: int | None = None,
    ) -> None:
        if len(session.inputs) != 1:
            raise OptionError(f"a stream is for models with one input: this one has {len(session.inputs)}")
        if drop not in ("newest", "none"):
            raise OptionError(f"drop is '{drop}': expected newest or none")
        self._source, self._session, self._limit = source, session, limit
        self._read, self._draw = read, draw
        self._transform = Transform(preprocessing)
        self._buffers = _buffers(session, preprocessing)
        self._ended = threading.Event()
        self._latencies: list[float] = []
        self._results = 0
        self._first_s = self._last_s = 0.0
        feed = self._paced() if drop == "newest" and not source.live and source.fps else source
        self._conveyor = Conveyor(feed, self._stages(), drop=drop, discard=self._free)
        self._copied_bytes = session.copied_bytes

    def __iter__(self) -> Generator[Outcome[T], None, None]:
        """Results in the order of the frames.

        Raises:
            SanderlingError: the source or the model failed; results of frames before that come first.
        """
        self._first_s = time.monotonic()
        if self._limit is not None and self._limit <= 0:
            return
        items = self._conveyor.__iter__()
        try:
            for item in items:
                made: _Read = item.value
                self._last_s = time.monotonic()
                latency_ms = (self._last_s - item.born_s) * 1e3
                self._keep(latency_ms)
                yield Outcome(made.frame, made.placement, made.value, made.drawn, latency_ms)
                if self._limit is not None and self._results >= self._limit:
                    break
        finally:
            self._ended.set()
            self._source.close()
            self._buffers.end(abort=True)
            items.close()  # ends the threads

    def statistics(self) -> StreamStatistics:
        """What has happened so far."""
        belt = self._conveyor
        seconds = max(self._last_s - self._first_s, 0.0)
        stages = {name: list(durations_s) for name, durations_s in belt.durations_s.items() if durations_s}
        return StreamStatistics(
            frames=belt.captured,
            results=self._results,
            dropped=belt.dropped,
            seconds=seconds,
            fps=self._results / seconds if seconds else 0.0,
            latency_ms=percentiles(self._latencies) if self._latencies else None,
            stages_ms={name: percentiles([1e3 * each for each in durations_s]) for name, durations_s in stages.items()},
            copied_bytes=self._session.copied_bytes - self._copied_bytes,
        )

    def _stages(self) -> list[Stage]:
        stages: list[Stage] = [("preprocess", self._prepare), ("infer", self._infer), ("read", self._interpret)]
        return [*stages, ("draw", self._overlay)] if self._draw is not None else stages

    def _prepare(self, frame: Frame) -> _Prepared:
        buffer, placement = self._transform(frame, out=self._buffers.get())
        return _Prepared(frame, buffer, placement)

    def _free(self, prepared: _Prepared) -> None:
        self._buffers.put(prepared.buffer)

    def _infer(self, prepared: _Prepared) -> _Ran:
        outputs = self._session.run(prepared.buffer)
        self._free(prepared)
        return _Ran(prepared.frame, outputs, prepared.placement)

    def _interpret(self, ran: _Ran) -> _Read:
        return _Read(ran.frame, ran.placement, self._read(ran.outputs, ran.placement, ran.frame), None)

    def _overlay(self, read: _Read) -> _Read:
        assert self._draw is not None
        return read._replace(drawn=self._draw(read.frame, read.value))

    def _paced(self) -> Iterator[Frame]:
        """Frames of a file when they would come from a camera."""
        start_s: float | None = None
        for frame in self._source:
            now_s = time.monotonic()
            start_s = now_s - frame.timestamp_s if start_s is None else start_s
            if self._ended.wait(max(start_s + frame.timestamp_s - now_s, 0.0)):
                return
            yield frame

    def _keep(self, latency_ms: float) -> None:
        self._results += 1
        self._latencies.append(latency_ms)
        if len(self._latencies) > 2 * _LATENCIES:
            del self._latencies[:_LATENCIES]


def _buffers(session: Session, preprocessing: Preprocessing) -> Channel[Array]:
    """Inputs that are free: the engine's own where it runs in this process, else what is copied to it."""
    channel: Channel[Array] = Channel(_BUFFERS)
    name = session.inputs[0].name
    for _ in range(_BUFFERS):
        made = session.buffers()[0][name] if session.policy.isolation != "process" else None
        if made is None or made.shape != preprocessing.shape:
            made = np.empty(preprocessing.shape, np.float32)
        channel.put(made)
    return channel
