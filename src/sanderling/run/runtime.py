"""The live runtime: the dispatcher under a lock, with the real clock and threads that run what it hands out.

A request that finds its device free and nobody waiting runs in its caller's thread, on the caller's own arrays.
Everything else waits in the dispatcher, and runner threads take batches from it as soon as a device is free.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from sanderling.core.errors import (
    DeadlineError,
    EngineError,
    QueueFullError,
    SanderlingError,
    first_line,
)
from sanderling.core.progress import Event
from sanderling.core.tensor import Feeds
from sanderling.run.dispatcher import Dispatch, Dispatcher, Request
from sanderling.run.policy import NEVER
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.latency import LatencyModel
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules
from sanderling.run.results import Outputs
from sanderling.run.streams import Link, Streams

FATES = ("requests", "completed", "completed late", "failed", "late", "rejected", "cancelled")
_KEPT_EVENTS = 1000
_KEPT_LATENCIES = 1000
_WATCH_S = 0.05
DRAIN_S = 10.0


class Call(NamedTuple):
    """What a caller gives: inputs by name, the rows in them, and arrays for the results if it has its own."""

    feeds: Feeds
    rows: int = 1
    outputs: Feeds | None = None


class Served(Protocol):
    """A model that the runtime serves."""

    name: str

    def compute(self, lane: int, calls: Sequence[Call], call_rows: int) -> list[Outputs | SanderlingError]:
        """Run the requests of a batch together on a lane, and check the results.

        Returns:
            For each request its outputs, or the error that it alone met.
        """

    def lane_name(self, lane: int) -> str:
        """A lane's name, for events."""

    def is_ready(self, lane: int) -> bool:
        """Whether a lane is loaded, so that a call's time says something about it."""


@dataclass(frozen=True)
class TimedEvent:
    """An event of a model, and seconds since the epoch."""

    at_s: float
    model: str
    event: Event


class Ticket:
    """A request's place: its arrays, its future where somebody waits for it, and its place in a stream."""

    __slots__ = ("call", "future", "link", "outcome", "request", "started")

    def __init__(self, call: Call, request: Request) -> None:
        self.call = call
        self.request = request
        self.future: Future[Outputs] | None = None
        self.outcome: Outputs | BaseException | None = None
        self.link: Link | None = None
        self.started = False
        request.payload = self


@dataclass
class _Running:
    """A batch that a thread runs."""

    dispatch: Dispatch
    since_s: float
    thread: threading.Thread
    is_runner: bool


class Runtime:
    """Runs requests of several models on several devices.

    Args:
        rules: of the policy's scheduling.
        wait_when_full: let callers wait where a queue is full.
        hang_timeout_ms: after which a call counts as hung.
        on_event: told about every event, outside of any lock.

    Attributes:
        counts: requests by what became of them, and batches.
        events: the last ones.
        latencies_ms: of the last requests that were completed, from arrival to result.
    """

    def __init__(
        self,
        rules: SchedulingRules,
        *,
        wait_when_full: bool = False,
        hang_timeout_ms: float = NEVER,
        on_event: Callable[[TimedEvent], None] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.events: deque[TimedEvent] = deque(maxlen=_KEPT_EVENTS)
        self.latencies_ms: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._dispatcher = Dispatcher(rules)
        self._wait_when_full = wait_when_full
        self._hang_timeout_ms = hang_timeout_ms
        self._listeners = [on_event] if on_event is not None else []
        self._served: dict[str, Served] = {}
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._streams = Streams()
        self._running: dict[int, _Running] = {}
        self._threads: list[threading.Thread] = []
        self._runners = 0
        self._wanted_runners = 0
        self._replaced: set[threading.Thread] = set()
        self._watching = False
        self._closing = False
        self._pid = os.getpid()

    def add(
        self,
        served: Served,
        lanes: Sequence[LaneRule],
        latencies: Sequence[LatencyModel],
        *,
        batching: BatchRules,
        recovery: RecoveryRule,
        costs: Sequence[int],
        capacities: dict[str, int],
    ) -> None:
        """Serve a model; see ``Dispatcher.add_model``."""
        with self._lock:
            self._dispatcher.add_model(
                served.name,
                lanes,
                latencies,
                batching=batching,
                recovery=recovery,
                costs=costs,
                capacities=capacities,
            )
            self._served[served.name] = served
            self._wanted_runners = self._dispatcher.capacity

    def remove(self, name: str, *, reason: str, drain_s: float = DRAIN_S) -> None:
        """Stop serving a model: what waits or runs may end within ``drain_s``, the rest is told ``reason``."""
        end = time.monotonic() + drain_s
        with self._lock:
            if name not in self._served:
                return
            while self._dispatcher.queued(name) or any(run.dispatch.model == name for run in self._running.values()):
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._work.notify_all()
                self._room.wait(min(left, 0.05))
            del self._served[name]
            left_over = self._dispatcher.remove_model(name)
            self.counts["failed"] += len(left_over)
            for run in [run for run in self._running.values() if run.dispatch.model == name]:
                del self._running[id(run.dispatch)]
                left_over += run.dispatch.requests
        for request in left_over:
            self._finish(_ticket(request), EngineError(reason))

    def run(self, name: str, call: Call, *, deadline_ms: float = NEVER, priority: int = 0) -> Outputs:
        """Run one request and wait for it.

        Args:
            name: of the model.
            call: checked.
            deadline_ms: from now.
            priority: larger is sooner.

        Raises:
            DeadlineError: it could not be finished in time.
            QueueFullError: too many requests wait.
            SanderlingError: what the model's run raised.
        """
        now_ms = self._now_ms()
        ticket = Ticket(call, Request(name, rows=call.rows, deadline_ms=now_ms + deadline_ms, priority=priority))
        with self._lock:
            dispatch = self._accept(ticket, now_ms, inline=True)
        if dispatch is not None:
            self._execute(dispatch)
        return self._wait(ticket)

    def submit(
        self,
        name: str,
        call: Call,
        *,
        deadline_ms: float = NEVER,
        priority: int = 0,
        stream: Hashable = None,
    ) -> Future[Outputs]:
        """Run one request and return at once; results of a stream and priority come in the order of submission.

        Args:
            name: of the model.
            call: checked; its arrays must not change until the future is done.
            deadline_ms: from now.
            priority: larger is sooner.
            stream: whose order is kept; the calling thread's by default.

        Raises:
            DeadlineError: it could not be finished in time even now.
            QueueFullError: too many requests wait.
        """
        now_ms = self._now_ms()
        ticket = Ticket(call, Request(name, rows=call.rows, deadline_ms=now_ms + deadline_ms, priority=priority))
        with self._lock:
            self._accept(ticket, now_ms, inline=False)
            ticket.link = self._streams.join((threading.get_ident() if stream is None else stream, priority))
        future = ticket.future
        assert future is not None
        future.add_done_callback(lambda future: self._cancelled(ticket) if future.cancelled() else None)
        return future

    def switch(self, name: str, lane: int, reason: str) -> None:
        """Use a lane from the next batch on; -1 lets the policy choose again. Batches that run are not disturbed."""
        with self._lock:
            self._dispatcher.switch(name, lane, self._now_ms(), reason)
            self._work.notify_all()
        self._tell_switches()

    def sense(self, temperatures_c: dict[str, float]) -> None:
        """Temperatures of devices were read."""
        with self._lock:
            for device, temperature_c in temperatures_c.items():
                self._dispatcher.sense(device, temperature_c, self._now_ms())
            self._work.notify_all()
        self._tell_switches()

    def presence(self, device: str, *, present: bool) -> None:
        """A device vanished, or is there again."""
        with self._lock:
            self._dispatcher.presence(device, present=present, now_ms=self._now_ms())
            self._work.notify_all()
        self._tell_switches()

    def add_lane(self, name: str, rule: LaneRule, latency: LatencyModel, *, cost: int) -> None:
        """Add a way of running as the last resort of a model."""
        with self._lock:
            self._dispatcher.add_lane(name, rule, latency, cost=cost)

    def active(self, name: str) -> int:
        """Index of the lane that a model uses now; the first one after the model was removed."""
        with self._lock:
            return self._dispatcher.placement(name).active if name in self._served else 0

    def queued(self, name: str) -> int:
        """Requests of a model that wait."""
        with self._lock:
            return self._dispatcher.queued(name)

    def is_busy(self, name: str) -> bool:
        """Whether requests of a model wait or run."""
        with self._lock:
            running = any(run.dispatch.model == name for run in self._running.values())
            return bool(running or self._dispatcher.queued(name))

    def utilization(self, device: str) -> float:
        """Share of a device's recent time that it was busy, in [0, 1]."""
        with self._lock:
            return self._dispatcher.utilization(device, self._now_ms())

    def latency(self, name: str, lane: int) -> LatencyModel:
        """What is known of a lane's latency."""
        with self._lock:
            return self._dispatcher.latency(name, lane)

    def tallies(self) -> tuple[Counter[str], list[float]]:
        """Counts, and milliseconds from arrival to result of the last requests."""
        with self._lock:
            return Counter(self.counts), list(self.latencies_ms)

    def tell(self, event: Event, *, model: str = "") -> None:
        """Keep an event and pass it on."""
        timed = TimedEvent(time.time(), model, event)
        self.events.append(timed)
        for listener in tuple(self._listeners):
            listener(timed)

    def listen(self, listener: Callable[[TimedEvent], None]) -> None:
        """Tell this about every event from now on as well, outside of any lock."""
        self._listeners.append(listener)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Let what waits and runs end within ``drain_s``, tell the rest that it is closed, and end the threads."""
        if self._pid != os.getpid():
            return
        for name in list(self._served):
            self.remove(name, reason="the session was closed before this request ran", drain_s=drain_s)
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._room.notify_all()
        busy = {run.thread for run in self._running.values()} | {threading.current_thread()}
        for thread in self._threads:
            if thread not in busy:
                thread.join(timeout=1.0)

    def _accept(self, ticket: Ticket, now_ms: float, *, inline: bool) -> Dispatch | None:
        """Take a request in, under the lock; returns its dispatch where the caller's own thread should run it."""
        request = ticket.request
        self._check_open(request.model)
        self.counts["requests"] += 1
        while (refusal := self._dispatcher.submit(request, now_ms)) == "full" and self._wait_when_full:
            self._room.wait(1.0)
            self._check_open(request.model)
            now_ms = self._now_ms()
        if refusal == "full":
            self.counts["rejected"] += 1
            waiting = self._dispatcher.queued(request.model)
            raise QueueFullError(
                f"{waiting} requests of '{request.model}' wait already: send fewer at a time, or raise queueLimit"
            )
        if refusal == "late":
            self.counts["late"] += 1
            raise _late(request, now_ms)
        if inline and self._dispatcher.waiting == 1:
            dispatch = self._dispatcher.next(now_ms)
            if dispatch is not None:
                ticket.started = True
                self._started(dispatch, is_runner=False)
                return dispatch
        ticket.future = Future()
        self._wake()
        return None

    def _check_open(self, name: str) -> None:
        if self._pid != os.getpid():
            raise EngineError("the session was opened before this process was forked; load the package in this process")
        if self._closing or name not in self._served:
            raise EngineError("the session is closed; load the package again")

    def _wake(self) -> None:
        """Let a runner look, and see that there are enough; under the lock."""
        if self._runners < self._wanted_runners:
            self._runners += 1
            self._start(self._serve, "sanderling-runner")
        if self._hang_timeout_ms != NEVER and not self._watching:
            self._watching = True
            self._start(self._watch, "sanderling-watch")
        self._work.notify()

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads = [known for known in self._threads if known.is_alive()] + [thread]
        thread.start()

    def _serve(self) -> None:
        """Run batches until the runtime is closed, or a batch took so long that another runner has replaced this."""
        while True:
            with self._lock:
                dispatch = self._next_or_wait()
            self._tell_dropped()
            if self._closing and dispatch is None:
                return
            if dispatch is not None:
                self._execute(dispatch)
            if threading.current_thread() in self._replaced:
                return

    def _next_or_wait(self) -> Dispatch | None:
        """The next batch; None when requests were dropped, or after closing."""
        while not self._closing:
            now_ms = self._now_ms()
            dispatch = self._dispatcher.next(now_ms)
            if dispatch is not None:
                self._started(dispatch, is_runner=True)
                self._room.notify_all()
                if self._dispatcher.waiting:
                    self._work.notify()
            if dispatch is not None or self._dispatcher.dropped:
                return dispatch
            wake_ms = self._dispatcher.wake_ms()
            self._work.wait(None if wake_ms == NEVER else max((wake_ms - now_ms) / 1e3, 1e-4))
        return None

    def _watch(self) -> None:
        """Give up batches that hang: their requests run elsewhere, and what the hung call returns is thrown away."""
        while not self._closing:
            time.sleep(min(self._hang_timeout_ms / 4e3, _WATCH_S))
            now_s = time.monotonic()
            for run in list(self._running.values()):
                if (now_s - run.since_s) * 1e3 > self._hang_timeout_ms:
                    self._give_up(run)

    def _give_up(self, run: _Running) -> None:
        error = EngineError(f"a call gave no answer for {self._hang_timeout_ms:g} ms and counts as hung")
        with self._lock:
            if self._running.pop(id(run.dispatch), None) is None:
                return
            if run.is_runner:
                self._runners -= 1
                self._replaced.add(run.thread)
            lost = self._failed(run.dispatch, error)
        self._tell_failed(run.dispatch, lost, error)

    def _started(self, dispatch: Dispatch, *, is_runner: bool) -> None:
        self._running[id(dispatch)] = _Running(dispatch, time.monotonic(), threading.current_thread(), is_runner)

    def _execute(self, dispatch: Dispatch) -> None:
        """Run a batch and deliver its results, unless it was given up meanwhile."""
        served = self._served.get(dispatch.model)
        live = [ticket for ticket in map(_ticket, dispatch.requests) if ticket.started or _starts(ticket)]
        warm = served is not None and served.is_ready(dispatch.lane)
        results: list[Outputs | SanderlingError] = []
        failure: Exception | None = None
        try:
            if served is None:
                raise EngineError("the session is closed; load the package again")
            if live:
                results = served.compute(dispatch.lane, [ticket.call for ticket in live], dispatch.call_rows)
        except Exception as error:  # noqa: BLE001 - whatever an engine raises must reach the callers
            failure = error
        lost: list[Request] = []
        with self._lock:
            if self._running.pop(id(dispatch), None) is None:
                return
            now_ms = self._now_ms()
            if failure is None:
                self._dispatcher.complete(dispatch, now_ms, learn=warm and bool(live))
                self._count(live, results, now_ms)
            else:
                lost = self._failed(dispatch, failure)
            if self._dispatcher.waiting:
                self._wake()
            self._room.notify_all()
        if failure is not None:
            self._tell_failed(dispatch, lost, failure)
        for ticket, result in zip(live, results, strict=failure is None):
            self._finish(ticket, result)
        self._tell_switches()

    def _count(self, live: list[Ticket], results: list[Outputs | SanderlingError], now_ms: float) -> None:
        self.counts["batches"] += 1
        for ticket, result in zip(live, results, strict=True):
            self.counts["completed" if isinstance(result, Outputs) else "failed"] += 1
            self.counts["completed late"] += now_ms > ticket.request.deadline_ms
            self.latencies_ms.append(now_ms - ticket.request.arrival_ms)

    def _failed(self, dispatch: Dispatch, failure: Exception) -> list[Request]:
        """Requests that no lane could run; the others wait again. Under the lock."""
        self.counts["failed batches"] += 1
        for ticket in map(_ticket, dispatch.requests):
            ticket.future = ticket.future or _running_future()
        lost = self._dispatcher.fail(dispatch, first_line(failure), self._now_ms())
        self.counts["failed"] += len(lost)
        self._wake()
        return lost

    def _tell_failed(self, dispatch: Dispatch, lost: list[Request], failure: Exception) -> None:
        served = self._served.get(dispatch.model)
        lane = served.lane_name(dispatch.lane) if served is not None else ""
        event = Event(kind="batch-failed", subject=f"{dispatch.model} on {lane}", reason=first_line(failure))
        self.tell(event, model=dispatch.model)
        for request in lost:
            self._finish(_ticket(request), self._failure(request, failure))
        self._tell_switches()

    def _failure(self, request: Request, last: Exception) -> Exception:
        """The only failure as it is; several in one error that names each."""
        served = self._served.get(request.model)
        if len(request.failures) < 2 or served is None:
            return last if isinstance(last, SanderlingError) else EngineError(first_line(last))
        told = "; ".join(f"{served.lane_name(lane)}: {reason}" for lane, reason in request.failures)
        return EngineError(f"every way of running '{request.model}' failed for this request: {told}")

    def _wait(self, ticket: Ticket) -> Outputs:
        """Wait for a request; one that still waits at its deadline is taken back."""
        if isinstance(ticket.outcome, Outputs):
            return ticket.outcome
        if ticket.outcome is not None:
            raise ticket.outcome
        deadline_ms, future = ticket.request.deadline_ms, ticket.future
        assert future is not None
        try:
            if deadline_ms == NEVER or future.done():
                return future.result()
            try:
                return future.result(max(deadline_ms - self._now_ms(), 0.0) / 1e3)
            except FutureTimeout:
                if not self._take_back(ticket, "late"):
                    return future.result()
        except KeyboardInterrupt:
            self._take_back(ticket, "cancelled")
            raise
        raise _late(ticket.request, self._now_ms())

    def _take_back(self, ticket: Ticket, kind: str) -> bool:
        with self._lock:
            taken = self._dispatcher.cancel(ticket.request)
            self.counts[kind] += taken
            return taken

    def _cancelled(self, ticket: Ticket) -> None:
        """A caller cancelled its future while it waited."""
        if not self._take_back(ticket, "cancelled"):
            with self._lock:  # a runner had it already, and leaves it out
                self.counts["cancelled"] += 1
        if ticket.link is not None:
            self._streams.settle(ticket.link, _nothing)

    def _finish(self, ticket: Ticket, outcome: Outputs | BaseException) -> None:
        """Give a request its result, after those before it in its stream."""
        if ticket.future is None:
            ticket.outcome = outcome
        elif ticket.link is None:
            _deliver(ticket.future, outcome)
        else:
            self._streams.settle(ticket.link, partial(_deliver, ticket.future, outcome))

    def _tell_dropped(self) -> None:
        with self._lock:
            dropped, self._dispatcher.dropped = self._dispatcher.dropped, []
            self.counts["late"] += len(dropped)
        for request in dropped:
            self._finish(_ticket(request), _late(request, self._now_ms()))

    def _tell_switches(self) -> None:
        if not self._dispatcher.switches:
            return
        with self._lock:
            switches, self._dispatcher.switches = self._dispatcher.switches, []
        for model, (source, target, reason), _ in switches:
            served = self._served.get(model)
            if served is not None:
                self.counts["switches"] += 1
                subject = f"{model}: {served.lane_name(source)} → {served.lane_name(target)}"
                self.tell(Event(kind="switched", subject=subject, reason=reason), model=model)

    @staticmethod
    def _now_ms() -> float:
        return time.monotonic() * 1e3


def _ticket(request: Request) -> Ticket:
    assert isinstance(request.payload, Ticket)
    return request.payload


def _starts(ticket: Ticket) -> bool:
    """Whether the caller still wants the result; it can no longer be cancelled then."""
    assert ticket.future is not None
    ticket.started = ticket.future.set_running_or_notify_cancel()
    return ticket.started


def _running_future() -> Future[Outputs]:
    future: Future[Outputs] = Future()
    future.set_running_or_notify_cancel()
    return future


def _deliver(future: Future[Outputs], outcome: Outputs | BaseException) -> None:
    try:
        if isinstance(outcome, Outputs):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
    except InvalidStateError:  # its caller cancelled it at this moment
        return


def _late(request: Request, now_ms: float) -> DeadlineError:
    left_ms = request.deadline_ms - now_ms
    told = f"{left_ms:.1f} ms are left" if left_ms > 0 else f"it was due {-left_ms:.1f} ms ago"
    return DeadlineError(f"a request of '{request.model}' cannot be finished in time: {told}")


def _nothing() -> None:
    """A place in a stream without a result."""
