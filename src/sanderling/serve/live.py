"""The last ten minutes in seconds, and everyone who watches them. One thread, whatever the number of viewers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sanderling.core.closing import Closing
from sanderling.core.errors import QueueFullError
from sanderling.run.runtime import Runtime, TimedEvent
from sanderling.serve.following import Follower
from sanderling.serve.snapshot import (
    LiveEvent,
    ModelSample,
    Sample,
    Setup,
    Snapshot,
    Traffic,
    columns,
    describe,
    device_samples,
    held_bytes,
    key_of,
    model_key,
)

if TYPE_CHECKING:
    from sanderling.serve.data_plane import DataPlane, Finished, ServedModel

HISTORY_S = 600
_INTERVAL_S = 1.0
_KEPT_EVENTS = 200
_KEPT_ARRIVALS = 20_000
_REPEATED = ("DeadlineError", "QueueFullError", "CancelledError")  # what another policy might have served
_VIEWERS = 32
_BEHIND = 16  # messages that a viewer may be behind before it is dropped


@dataclass
class Second:
    """What ended within a second."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    batches: Counter[int] = field(default_factory=Counter)


class Arrival(NamedTuple):
    """A request that came, seconds on the monotonic clock; None where it brought no deadline."""

    at_s: float
    model: str
    rows: int
    deadline_ms: float | None
    priority: int


class Viewer:
    """Someone who watches, from a thread's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()
        self.is_dropped = False

    def send(self, message: bytes) -> None:
        """Hand over a message from any thread; a viewer that does not take its messages is dropped."""
        try:
            self._loop.call_soon_threadsafe(self._take, message)
        except RuntimeError:  # its loop is closed
            self.is_dropped = True

    def _take(self, message: bytes) -> None:
        if len(self._messages) >= _BEHIND:
            self._messages.clear()
            self.is_dropped = True
        elif not self.is_dropped:
            self._messages.append(message)
        self._news.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """Every message, until the viewer is dropped."""
        while not self.is_dropped:
            while self._messages:
                yield self._messages.popleft()
            self._news.clear()
            if not self._messages and not self.is_dropped:
                await self._news.wait()

    def close(self) -> None:
        """Send nothing more."""
        self.is_dropped = True
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            return


class Live(Closing):
    """Keeps a sample a second and the last events, and tells viewers. Close it, or use it in a ``with`` block.

    Args:
        plane: that is watched.
        interval_s: from one sample to the next.
    """

    def __init__(self, plane: DataPlane, *, interval_s: float = _INTERVAL_S) -> None:
        self._plane = plane
        self._interval_s = interval_s
        self._samples: deque[Sample] = deque(maxlen=HISTORY_S)
        self._events: deque[LiveEvent] = deque(maxlen=_KEPT_EVENTS)
        self._arrivals: deque[Arrival] = deque(maxlen=_KEPT_ARRIVALS)
        self._ended: deque[tuple[float, Finished]] = deque()
        self._viewers: list[Viewer] = []
        self._written: dict[str, int] = {}  # tokens so far, by model
        self._follower = Follower(plane, self._happened)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._began_s = time.monotonic()
        self._setup: Setup = describe(plane)
        self._follower.follow()
        plane.observers.append(self.observe)
        self._thread = threading.Thread(target=self._keep, name="sanderling-live", daemon=True)
        self._thread.start()

    @property
    def viewers(self) -> int:
        """Viewers that are told."""
        return len(self._viewers)

    def check_room(self) -> None:
        """See that one more may watch.

        Raises:
            QueueFullError: too many watch already.
        """
        if len(self._viewers) >= _VIEWERS:
            raise QueueFullError(f"{_VIEWERS} pages watch this server already: close one, or read /v1/live/now")

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The last ten minutes, oldest first."""
        with self._lock:
            return tuple(self._samples)

    @property
    def events(self) -> tuple[LiveEvent, ...]:
        """The last events, oldest first."""
        with self._lock:
            return tuple(self._events)

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """The last requests of the last ten minutes, in the order in which they came."""
        since_s = time.monotonic() - HISTORY_S
        with self._lock:
            return tuple(sorted((each for each in self._arrivals if each.at_s >= since_s), key=lambda each: each.at_s))

    def observe(self, finished: Finished) -> None:
        """A request ended."""
        self._ended.append((time.monotonic(), finished))

    def snapshot(self) -> Snapshot:
        """Everything the page shows, as of the last second."""
        with self._lock:
            sample = self._samples[-1] if self._samples else None
        return Snapshot(setup=self._setup, sample=sample or self._sample({}, 1.0))

    async def watch(self) -> AsyncIterator[bytes]:
        """Server-sent events: ``history``, then ``snapshot`` each second and ``happened`` when something does."""
        viewer = Viewer()
        with self._lock:
            history = self._history()
            self._viewers.append(viewer)
        try:
            yield history
            async for message in viewer.messages():
                yield message
        finally:
            with self._lock:
                if viewer in self._viewers:
                    self._viewers.remove(viewer)

    def tick(self) -> None:
        """End a second: keep what was in it, and tell the viewers."""
        now_s = time.monotonic()
        passed_s, self._began_s = max(now_s - self._began_s, 1e-3), now_s
        seconds = self._take()
        self._follower.follow()
        setup = describe(self._plane)
        sample = self._sample(seconds, passed_s)
        with self._lock:
            self._setup = setup
            self._samples.append(sample)
            watched = bool(self._viewers)
        if watched:
            self._send(_message("snapshot", Snapshot(setup=setup, sample=sample).model_dump_json().encode()))

    def close(self) -> None:
        """End the samples and let every viewer go."""
        self._ending.set()
        if self.observe in self._plane.observers:
            self._plane.observers.remove(self.observe)
        self._thread.join(2.0)
        with self._lock:
            for viewer in self._viewers:
                viewer.close()

    def _keep(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while not self._ending.wait(max(due_s - time.monotonic(), 0.0)):
            try:
                self.tick()
            except Exception as failure:  # noqa: BLE001 - a model that is removed meanwhile must not end the samples
                shown = (type(failure), failure, failure.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(shown))
            due_s = max(due_s + self._interval_s, time.monotonic())

    def _take(self) -> dict[str, Second]:
        """What has ended since it was last taken, by model; its arrivals are kept."""
        seconds: dict[str, Second] = {}
        arrivals = []
        texts = {model_key(model) for model in self._plane.models if model.is_text}  # whose steps are no requests
        for _ in range(len(self._ended)):
            at_s, finished = self._ended.popleft()
            key = f"{finished.model}:{finished.version}"
            second = seconds.setdefault(key, Second())
            if finished.ok:
                second.latencies_ms.append(finished.total_ms)
                second.batches[finished.batch_rows] += 1
            else:
                second.failed += 1
            if (finished.ok or finished.error in _REPEATED) and key not in texts:
                arrivals.append(_arrival(key, finished, at_s))
        with self._lock:
            self._arrivals.extend(arrivals)
        return seconds

    def _happened(self, runtime: Runtime, timed: TimedEvent) -> None:
        event = LiveEvent(
            at_s=round(timed.at_s, 3),
            model=key_of(self._plane, runtime, timed.model),
            kind=timed.event.kind,
            subject=timed.event.subject,
            reason=timed.event.reason,
        )
        with self._lock:
            self._events.append(event)
        if self._viewers:
            self._send(_message("happened", event.model_dump_json().encode()))

    def _send(self, message: bytes) -> None:
        with self._lock:
            self._viewers = [viewer for viewer in self._viewers if not viewer.is_dropped]
            for viewer in self._viewers:
                viewer.send(message)

    def _history(self) -> bytes:
        """All that is known, in columns; under the lock."""
        value = {
            "setup": self._setup.model_dump(),
            "samples": columns([sample.model_dump() for sample in self._samples]),
            "events": [event.model_dump() for event in self._events],
            "interval_s": self._interval_s,
        }
        return _message("history", json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())

    def _sample(self, seconds: dict[str, Second], passed_s: float) -> Sample:
        models = {model_key(model): model for model in self._plane.models}
        samples = {
            key: _model_sample(model, seconds.get(key) or Second(), passed_s, self._tokens(model, passed_s))
            for key, model in models.items()
        }
        everything = Second()
        for second in seconds.values():
            everything.latencies_ms += second.latencies_ms
            everything.failed += second.failed
        waiting = sum(sample.waiting for sample in samples.values())
        written = [sample.tokens for sample in samples.values() if sample.tokens is not None]
        reading = self._plane.pool.conditions.last
        return Sample(
            at_s=round(time.time(), 3),
            total=Traffic(**_traffic(everything, passed_s), waiting=waiting, tokens=sum(written) if written else None),
            models=samples,
            devices=device_samples(self._plane),
            memory_bytes=reading.memory_used_bytes if reading is not None else None,
            process_bytes=reading.resident_bytes if reading is not None else None,
        )

    def _tokens(self, model: ServedModel, passed_s: float) -> float | None:
        """Tokens a second since the last sample; None where the model generates no text."""
        if not model.is_text:
            return None
        statistics = model.text_statistics
        written = statistics.tokens if statistics is not None else 0
        before, self._written[model_key(model)] = self._written.get(model_key(model), 0), written
        return round(max(written - before, 0) / passed_s, 1)  # less than before where it was loaded again


def _model_sample(model: ServedModel, second: Second, passed_s: float, tokens: float | None) -> ModelSample:
    session = model.session
    return ModelSample(
        **_traffic(second, passed_s),
        waiting=session.waiting,
        tokens=tokens,
        lane=session.lane,
        bytes=held_bytes(session),
        batches=dict(second.batches),
    )


def _arrival(key: str, finished: Finished, at_s: float) -> Arrival:
    rows = max(finished.rows, 1)
    return Arrival(at_s - finished.total_ms / 1e3, key, rows, finished.deadline_ms, finished.priority)


def _traffic(second: Second, passed_s: float) -> dict[str, Any]:
    latencies_ms = second.latencies_ms
    p50, p95, p99 = np.percentile(latencies_ms, (50, 95, 99)).round(3).tolist() if latencies_ms else (None,) * 3
    return {
        "requests": round((len(latencies_ms) + second.failed) / passed_s, 1),
        "failed": round(second.failed / passed_s, 1),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
    }


def _message(kind: str, value: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + value + b"\n\n"
