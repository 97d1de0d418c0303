"""Reads sensors again and again on a thread of its own, and survives those that hang."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Literal, TypeVar

from sanderling.core.closing import Closing
from sanderling.core.errors import OptionError, first_line
from sanderling.core.progress import Event
from sanderling.run.sensors.reading import Reading, Sensors
from sanderling.run.sensors.watch import Watch

_END_S = 0.8
_T = TypeVar("_T")
_Answer = Reading | Exception | None


class Sampler(Closing):
    """Reads every interval and passes on, until it is closed. What hangs, fails or freezes is an event.

    One thread reads, another keeps time: a read that hangs is told of as ``sensor-lost`` and waited for, never repeated
    beside itself. What ``receive`` or ``on_event`` raises is shown like any thread's exception, and reading goes on.
    A forked child has the object and no threads; closing it there does nothing.

    Args:
        sensors: to read.
        interval_s: from one reading to the next.
        receive: given every reading, without sensors that are frozen.
        on_event: told ``sensor-lost``, ``sensor-frozen`` and ``sensor-back``, once each time.
        timeout_s: of a read, after which it counts as hung.
        frozen_after: readings of the very same temperature after which a sensor counts as frozen; None for never.
        clock: seconds that never go back.

    Raises:
        OptionError: an interval or a timeout is not above 0.
    """

    def __init__(
        self,
        sensors: Sensors,
        interval_s: float,
        receive: Callable[[Reading], None],
        on_event: Callable[[Event], None],
        *,
        timeout_s: float = 5.0,
        frozen_after: int | None = 60,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, seconds in (("interval_s", interval_s), ("timeout_s", timeout_s)):
            if not 0 < seconds < math.inf:
                raise OptionError(f"{name} of a sampler is {seconds:g}: expected more than 0 seconds")
        self._sensors, self._interval_s, self._timeout_s = sensors, interval_s, timeout_s
        self._receive, self._on_event = receive, on_event
        self._clock = clock
        self._watch = Watch(frozen_after)
        self._lost = False
        self._read_at_s = -math.inf
        self._closing = threading.Event()
        self._requests: SimpleQueue[Literal["read", "end"]] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._keeper = threading.Thread(target=self._keep, name="sanderling-sampler", daemon=True)
        self._reader = threading.Thread(target=self._read, name="sanderling-sensors", daemon=True)
        self._reader.start()
        self._keeper.start()

    @property
    def age_s(self) -> float:
        """Seconds since sensors were last read; infinite before the first time."""
        return self._clock() - self._read_at_s

    def close(self) -> None:
        """End within a second, even if a read hangs; a second call does nothing."""
        self._closing.set()
        self._requests.put("end")
        self._answers.put(None)
        if threading.current_thread() is not self._keeper:
            self._keeper.join(_END_S)

    def _read(self) -> None:
        while self._requests.get() == "read":
            try:
                self._answers.put(self._sensors.read())
            except Exception as failure:  # noqa: BLE001 - sensors may be foreign code, and the next read may succeed
                self._answers.put(failure)

    def _keep(self) -> None:
        while not self._closing.is_set():
            begun_s = time.monotonic()
            self._requests.put("read")
            answer = self._wait()
            if self._closing.is_set():
                return
            if isinstance(answer, Reading):
                self._pass_on(answer)
            elif answer is not None:
                self._lose(f"reading failed: {type(answer).__name__}: {first_line(answer)}")
            self._closing.wait(max(0.0, begun_s + self._interval_s - time.monotonic()))

    def _wait(self) -> _Answer:
        """The answer to a request, however long it takes; None at the end."""
        try:
            return self._answers.get(timeout=self._timeout_s)
        except Empty:
            self._lose(f"no answer for {self._timeout_s:g} s")
        return self._answers.get()

    def _pass_on(self, reading: Reading) -> None:
        self._read_at_s = self._clock()
        if self._lost:
            self._lost = False
            self._tell(Event(kind="sensor-back", subject="sensors", reason="they answer again"))
        alive, events = self._watch.look_at(reading)
        for event in events:
            self._tell(event)
        _call(self._receive, alive)

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._tell(Event(kind="sensor-lost", subject="sensors", reason=reason))

    def _tell(self, event: Event) -> None:
        _call(self._on_event, event)


def _call(function: Callable[[_T], None], argument: _T) -> None:
    try:
        function(argument)
    except Exception as failure:  # noqa: BLE001 - a caller's fault must not end the readings
        shown = (type(failure), failure, failure.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(shown))
