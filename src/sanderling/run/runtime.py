"""The live runtime: the dispatcher under a lock, with the real clock and threads that run what it hands out.

A request that finds its device free and nobody waiting runs in its caller's thread. Everything else waits in the
dispatcher, and runner threads take batches from it as soon as a device is free. So does every request of a model with
other ways of running and engines in this process: a thread that hangs in an engine cannot be rescued, and if it is not
its caller's, the request can. The change of threads takes about 30 µs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial

from sanderling.core.errors import EngineError, QueueFullError, SanderlingError, first_line
from sanderling.core.progress import Event
from sanderling.run.dispatcher import Dispatch, Dispatcher
from sanderling.run.policy import NEVER
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.latency import LatencyModel, least_ms
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules
from sanderling.run.results import Outputs
from sanderling.run.served import Batch, Served, failure_of
from sanderling.run.short_calls import ShortCalls
from sanderling.run.streams import Streams
from sanderling.run.tickets import ALONE, Call, Fate, Ticket, TicketFuture, deliver, late, ticket_of

FATES = ("requests", "completed", "completed late", "failed", "late", "rejected", "cancelled")
DRAIN_S = 10.0
_VISIT_MS = 50.0  # after which a runner does what a thread with other work did not come to
_TURN_MS = 2.0  # that a thread with other work runs short calls at a time
_KEPT_EVENTS = 1000
_KEPT_LATENCIES = 1000
_WATCH_S = 0.05
_QUIET_ROUNDS = 20  # of the watch, before it sleeps until there is work
_ROOM_S = 1.0
_END_S = 1.0
_LOAD_S = 120.0  # a call that loads first may take as long, whatever counts as a hang
_LATELY_MS = 2_000.0
_SAFE = 0.7  # of the time that a call may take: its own time is not known exactly
_CLOSED = "the session is closed; load the package again"


@dataclass(frozen=True)
class TimedEvent:
    """An event of a model, and seconds since the epoch."""

    at_s: float
    model: str
    event: Event


class Runtime:
    """Runs requests of several models on several devices.

    Args:
        rules: of the policy's scheduling.
        wait_when_full: let callers wait where a queue is full.
        hang_timeout_ms: after which a call counts as hung.
        on_event: told about every event, outside of any lock.

    Attributes:
        counts: requests by what became of them, each once, and batches.
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
        self._rules = rules
        self._dispatcher = Dispatcher(rules)
        self._wait_when_full = wait_when_full
        self._hang_timeout_ms = hang_timeout_ms
        self._listeners = [on_event] if on_event is not None else []
        self._is_forked = False
        self._begin_empty()
        _RUNTIMES.add(self)

    def _begin_empty(self) -> None:
        """Locks that nobody holds, and no threads."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._watched = threading.Condition(self._lock)
        self._streams = Streams()
        self._short = ShortCalls()
        self._served: dict[str, Served] = {}
        self._leaving: set[str] = set()
        self._asked: dict[str, tuple[float, float]] = {}  # when a model was last asked, and milliseconds it had then
        self._running: dict[int, Batch] = {}
        self._handed: deque[Batch] = deque()  # begun, for a runner
        self._visiting = 0  # requests that wait for a thread with other work
        self._visit_asked_ms = 0.0
        self._threads: list[threading.Thread] = []
        self._runners: set[threading.Thread] = set()  # those that wait for work or run it
        self._idle = 0
        self._delivering = 0  # runners that hand over results, and run callers' callbacks for that
        self._wanted_runners = 0
        self._watching = False
        self._watch_sleeps = False
        self._closing = False

    def disown(self) -> None:
        """Refuse everything from now on: this is a forked process, which has the object and none of its threads."""
        self._is_forked = True
        self._begin_empty()

    @property
    def is_forked(self) -> bool:
        """Whether it was made before this process was forked."""
        return self._is_forked

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
        """Stop serving a model, and take no more requests for it.

        What waits or runs may end within ``drain_s``, the rest is told ``reason``.
        """
        end_s = time.monotonic() + drain_s
        with self._lock:
            if name in self._served:
                self._leaving.add(name)
            while name in self._served and self._is_busy(name) and (left_s := end_s - time.monotonic()) > 0:
                self._work.notify_all()
                self._room.wait(min(left_s, _WATCH_S))
            if name not in self._served:
                return
            left_over = self._cut_off(name)
            self._room.notify_all()
        for ticket in left_over:
            self._finish(ticket, EngineError(reason))

    def _cut_off(self, name: str) -> list[Ticket]:
        """Forget a model; returns its requests that wait or run. Under the lock."""
        del self._served[name]
        self._asked.pop(name, None)
        self._short.forget(name)
        self._leaving.discard(name)
        left_over = list(map(ticket_of, self._dispatcher.remove_model(name)))
        for batch in [batch for batch in self._running.values() if batch.dispatch.model == name]:
            self._abandon(batch)
            self._dispatcher.complete(batch.dispatch, self._now_ms(), learn=False)
            left_over += batch.live
        return [ticket for ticket in left_over if self._settle(ticket, "failed")]

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
        ticket = Ticket(name, call, deadline_ms=now_ms + deadline_ms, priority=priority)
        with self._lock:
            batch = self._accept(ticket, now_ms, inline=True, wait=True)
        if batch is not None:
            self._execute(batch)
        return self._wait(ticket)

    def submit(
        self,
        name: str,
        call: Call,
        *,
        deadline_ms: float = NEVER,
        priority: int = 0,
        wait: bool = True,
        visit: Callable[[], None] | None = None,
    ) -> Future[Outputs]:
        """Run one request and return at once; results of a stream and priority come in the order of submission.

        Args:
            name: of the model.
            call: checked; its arrays must not change until the future is done.
            deadline_ms: from now.
            priority: larger is sooner.
            wait: for room, where the policy says so.
            visit: called where the call is short, under a lock: it must see that ``run_short`` is called soon, in a
                thread that waits for nothing. No other thread is woken then.

        Raises:
            DeadlineError: it could not be finished in time even now.
            QueueFullError: too many requests wait.
        """
        now_ms = self._now_ms()
        ticket = Ticket(name, call, deadline_ms=now_ms + deadline_ms, priority=priority)
        with self._lock:
            self._accept(ticket, now_ms, inline=False, wait=wait, visit=visit)
            if call.stream is not ALONE:
                ticket.link = self._streams.join((call.stream, priority))
            future = ticket.future
        assert future is not None
        return future

    def run_short(self) -> bool:
        """Run what waits in this thread, batch after batch, as long as each is short; what is not, a runner gets.

        Returns:
            Whether some is left for the next time, so that this thread can do something else meanwhile.
        """
        end_ms = self._now_ms() + _TURN_MS
        while True:
            with self._lock:
                batch = self._next_short()
            self._tell_dropped()
            if batch is None:
                return False
            begun_s = self._short.begin(batch.dispatch.model)
            self._execute(batch, wakes=False)
            if begun_s is not None:
                self._short.observe(batch.dispatch.model, (time.thread_time() - begun_s) * 1e3, now_ms=self._now_ms())
            if self._now_ms() >= end_ms:
                return self._dispatcher.waiting > 0

    def switch(self, name: str, lane: int, reason: str) -> None:
        """Use a lane from the next batch on; -1 lets the policy choose again. Batches that run are not disturbed."""
        with self._lock:
            if name not in self._served:
                raise EngineError(_CLOSED)
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
            self._check_open(name)
            self._dispatcher.add_lane(name, rule, latency, cost=cost)
            self._wanted_runners = self._dispatcher.capacity

    def active(self, name: str) -> int:
        """Index of the lane that a model uses now; the first one after the model was removed."""
        with self._lock:
            return self._dispatcher.placement(name).active if name in self._served else 0

    def queued(self, name: str) -> int:
        """Requests of a model that wait; none after the model was removed."""
        with self._lock:
            return self._dispatcher.queued(name) if name in self._served else 0

    def is_busy(self, name: str) -> bool:
        """Whether requests of a model wait or run."""
        with self._lock:
            return name in self._served and self._is_busy(name)

    def _is_busy(self, name: str) -> bool:
        running = any(batch.dispatch.model == name for batch in self._running.values())
        return running or self._dispatcher.queued(name) > 0

    def utilization(self, device: str) -> float:
        """Share of a device's recent time that it was busy, in [0, 1]."""
        with self._lock:
            return self._dispatcher.utilization(device, self._now_ms())

    def slice_ms(self, name: str) -> float:
        """Milliseconds that a call of a model may take now, for the sake of the others.

        The policy's time slice, or less where a model that was asked in the last seconds would be late if its next
        request came as the call begins and had to wait for it; infinite where no other model was asked.
        """
        with self._lock:
            now_ms = self._now_ms()
            others = [each for each, (at_ms, _) in self._asked.items() if each != name and now_ms - at_ms < _LATELY_MS]
            slice_ms = self._rules.time_slice_ms if others else NEVER
            if not others or name not in self._served or self._dispatcher.has_room_for([name, *others]):
                return slice_ms
            for other in others:
                _, given_ms = self._asked[other]
                latency = self._dispatcher.latency(other, self._dispatcher.placement(other).active)
                own_ms = least_ms(latency, 1) if latency.sizes else 0.0
                slice_ms = min(slice_ms, _SAFE * max(given_ms - own_ms, 0.0))
        return slice_ms

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
            try:
                listener(timed)
            except Exception as failure:  # noqa: BLE001 - a listener's fault must not lose a result
                shown = (type(failure), failure, failure.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(shown))

    def listen(self, listener: Callable[[TimedEvent], None]) -> None:
        """Tell this about every event from now on as well, outside of any lock."""
        self._listeners.append(listener)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Let what waits and runs end within ``drain_s``, tell the rest that it is closed, and end the threads."""
        for name in list(self._served):
            self.remove(name, reason="the session was closed before this request ran", drain_s=drain_s)
        with self._lock:
            self._closing = True
            for condition in (self._work, self._room, self._watched):
                condition.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        end_s = time.monotonic() + _END_S
        for thread in threads:  # one that hangs in an engine ends when that returns
            thread.join(max(end_s - time.monotonic(), 0.0))

    def _accept(
        self,
        ticket: Ticket,
        now_ms: float,
        *,
        inline: bool,
        wait: bool,
        visit: Callable[[], None] | None = None,
    ) -> Batch | None:
        """Take a request in, under the lock; returns its batch where the caller's own thread should run it."""
        self._check_open(ticket.model)
        self._asked[ticket.model] = now_ms, ticket.deadline_ms - now_ms
        now_ms = self._admit(ticket, now_ms, wait=wait)
        if inline and self._dispatcher.waiting == 1 and not self._served[ticket.model].has_rescue:
            dispatch = self._dispatcher.next(now_ms)
            if dispatch is not None:
                return self._begin(dispatch, is_runners=False)
        ticket.future = Future() if inline else TicketFuture(ticket, self._cancelled)
        if visit is None or not self._is_short(ticket.model, now_ms):
            self._wake()
        else:
            self._ask_for(visit, now_ms)
        return None

    def _admit(self, ticket: Ticket, now_ms: float, *, wait: bool) -> float:
        """Put a request into its queue, after a wait for room where the policy says so; returns the time then.

        Raises:
            DeadlineError: it could not be finished in time even now.
            QueueFullError: the model's queue is full.
        """
        refusal = self._dispatcher.submit(ticket, now_ms)
        while refusal == "full" and self._wait_when_full:
            left_ms = ticket.deadline_ms - now_ms if self._rules.drop_late else NEVER
            if left_ms <= 0:
                refusal = "late"
            if left_ms <= 0 or not wait:
                break
            self._room.wait(min(left_ms / 1e3, _ROOM_S))
            self._check_open(ticket.model)
            now_ms = self._now_ms()
            refusal = self._dispatcher.submit(ticket, now_ms)
        if refusal == "full":
            if not self._wait_when_full:  # else its caller asks again
                self.counts["requests"] += 1
                self._settle(ticket, "rejected")
            waiting = self._dispatcher.queued(ticket.model)
            raise QueueFullError(
                f"{waiting} requests of '{ticket.model}' wait already: send fewer at a time, or raise queueLimit"
            )
        self.counts["requests"] += 1
        if refusal == "late":
            self._settle(ticket, "late")
            raise late(ticket, now_ms)
        return now_ms

    def _ask_for(self, visit: Callable[[], None], now_ms: float) -> None:
        """Ask a thread with other work to run what waits; under the lock."""
        if not self._visiting:
            self._visit_asked_ms = now_ms
        self._visiting += 1
        visit()
        self._see_watched()

    def _is_short(self, name: str, now_ms: float) -> bool:
        """Whether a model's calls may run in a thread with other work; under the lock."""
        served = self._served[name]
        if not served.is_simple or not served.is_ready(0):
            return False
        return self._short.has(name, expected_ms=self._dispatcher.expected_ms(name), now_ms=now_ms)

    def _check_open(self, name: str) -> None:
        if self._is_forked:
            raise EngineError("the session was opened before this process was forked; load the package in this process")
        if self._closing or name not in self._served or name in self._leaving:
            raise EngineError(_CLOSED)

    def _wake(self) -> None:
        """See that a runner looks for work, and that somebody watches; under the lock."""
        if self._idle:
            self._work.notify()
        elif len(self._runners) < self._wanted_runners:
            self._runners.add(self._start(self._serve, "sanderling-runner"))
        self._see_watched()

    def _see_watched(self) -> None:
        """See that somebody watches; under the lock."""
        if not self._watching:
            self._watching = True
            self._start(self._watch, "sanderling-watch")
        elif self._watch_sleeps:
            self._watched.notify()

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads = [known for known in self._threads if known.is_alive()] + [thread]
        return thread

    def _serve(self) -> None:
        """Run batches until the runtime is closed, or one counts as hung and another runner has replaced this."""
        thread = threading.current_thread()
        has_delivered = False
        try:
            while True:
                with self._lock:
                    self._delivering -= has_delivered
                    batch = self._next_or_wait()
                self._tell_dropped()
                has_delivered = batch is not None and self._execute(batch)
                if self._closing or thread not in self._runners:
                    return
        finally:
            with self._lock:
                self._delivering -= has_delivered
                self._runners.discard(thread)

    def _next_or_wait(self) -> Batch | None:
        """The next batch; None when requests were dropped, or after closing."""
        while not self._closing:
            if self._handed:
                handed = self._handed.popleft()
                if id(handed) in self._running:  # not given up meanwhile
                    handed.thread = threading.current_thread()
                    return handed
                continue
            now_ms = self._now_ms()
            dispatch = self._dispatcher.next(now_ms)
            if dispatch is not None:
                begun = self._begin(dispatch, is_runners=True)
                self._room.notify_all()
                if begun is None:
                    continue
                if self._dispatcher.waiting:
                    self._wake()
                return begun
            if self._dispatcher.dropped:
                return None
            wake_ms = self._dispatcher.wake_ms()
            self._idle += 1
            self._work.wait(None if wake_ms == NEVER else max((wake_ms - now_ms) / 1e3, 1e-4))
            self._idle -= 1
        return None

    def _next_short(self) -> Batch | None:
        """The next batch where that is short; a runner gets any other, and sees to what must still wait.

        Under the lock.
        """
        self._visiting = 0
        while (dispatch := self._dispatcher.next(self._now_ms())) is not None:
            is_short = self._is_short(dispatch.model, dispatch.started_ms)
            batch = self._begin(dispatch, is_runners=not is_short)
            if batch is None:
                continue
            if is_short:
                self._room.notify_all()
                return batch
            self._handed.append(batch)
            self._wake()
        if self._dispatcher.waiting:
            self._wake()
        return None

    def _begin(self, dispatch: Dispatch, *, is_runners: bool) -> Batch | None:
        """The batch that this thread runs now; None where all of its requests were cancelled. Under the lock."""
        live = [ticket for ticket in map(ticket_of, dispatch.requests) if ticket.start()]
        if not live:
            self._dispatcher.complete(dispatch, dispatch.started_ms, learn=False)
            return None
        if len(live) < len(dispatch.requests):
            dispatch = dispatch._replace(requests=tuple(live))
        served = self._served[dispatch.model]
        batch = Batch(
            dispatch,
            live,
            served,
            threading.current_thread(),
            time.monotonic(),
            served.is_ready(dispatch.lane),
            is_runners,
        )
        self._running[id(batch)] = batch
        return batch

    def _watch(self) -> None:
        """Give up batches that hang, and tell requests whose deadline passes while no device is free."""
        quiet = 0
        period_s = min(self._hang_timeout_ms / 4e3, _WATCH_S)
        while not self._closing:
            with self._lock:
                now_s = time.monotonic()
                self._dispatcher.expire(self._now_ms())
                hung = [batch for batch in self._running.values() if now_s - batch.since_s > self._limit_s(batch)]
                quiet = 0 if self._running or self._dispatcher.waiting else quiet + 1
                self._stand_in()
            for batch in hung:
                self._give_up(batch)
            self._tell_dropped()
            with self._lock:
                has_work = bool(self._running) or self._dispatcher.waiting > 0
                self._watch_sleeps = quiet > _QUIET_ROUNDS and not has_work
                if not self._closing:
                    self._watched.wait(None if self._watch_sleeps else period_s)
                self._watch_sleeps = False

    def _stand_in(self) -> None:
        """See to a runner where a thread does not do what it should; under the lock.

        Callers' callbacks, which may wait for other results, may hold all up, and a thread with other work may not come
        to short calls.
        """
        if self._visiting and self._now_ms() - self._visit_asked_ms > _VISIT_MS:
            self._visiting = 0
            self._wake()
        free = len(self._runners) - self._delivering
        waiting = self._dispatcher.waiting > self._visiting or self._handed
        if waiting and not self._idle and free < self._wanted_runners and not self._closing:
            self._runners.add(self._start(self._serve, "sanderling-runner"))

    def _limit_s(self, batch: Batch) -> float:
        limit_s = self._hang_timeout_ms / 1e3
        return limit_s if batch.is_warm else max(limit_s, _LOAD_S)

    def _give_up(self, batch: Batch) -> None:
        """A batch hangs: its requests run elsewhere, and what the call returns one day is thrown away."""
        error = EngineError(f"a call gave no answer for {self._hang_timeout_ms:g} ms and counts as hung")
        with self._lock:
            if id(batch) not in self._running:
                return
            self._abandon(batch)
            lost = self._failed(batch, error, hung=True)
        self._tell_failed(batch, lost, error, hung=True)

    def _abandon(self, batch: Batch) -> None:
        """Count neither on a batch nor on its thread; under the lock."""
        del self._running[id(batch)]
        self._runners.discard(batch.thread)
        for ticket in batch.live:
            ticket.detach()

    def _execute(self, batch: Batch, *, wakes: bool = True) -> bool:
        """Run a batch and deliver its results; False if it was given up meanwhile.

        Args:
            batch: that this thread has begun.
            wakes: whether another thread should take what waits, while this one hands over the results.
        """
        results: list[Outputs | SanderlingError] = []
        failure: Exception | None = None
        try:
            calls = [ticket.call for ticket in batch.live]
            results = batch.served.compute(batch.dispatch.lane, calls, batch.dispatch.call_rows)
        except Exception as error:  # noqa: BLE001 - whatever an engine raises must reach the callers
            failure = error
        except BaseException:
            self._interrupted(batch)
            raise
        with self._lock:
            if self._running.pop(id(batch), None) is None:
                return False
            self._delivering += batch.is_runners
            lost = self._ended(batch, results, failure)
            if wakes and self._dispatcher.waiting:
                self._wake()
            self._room.notify_all()
        if failure is not None:
            self._tell_failed(batch, lost, failure)
        for ticket, result in zip(batch.live, results, strict=failure is None):
            self._finish(ticket, result)
        self._tell_switches()
        return True

    def _interrupted(self, batch: Batch) -> None:
        """Ctrl-C or the like ended a call in the thread that runs it."""
        with self._lock:
            if id(batch) not in self._running:
                return
            self._abandon(batch)
            self._dispatcher.complete(batch.dispatch, self._now_ms(), learn=False)
            tickets = [ticket for ticket in batch.live if self._settle(ticket, "cancelled")]
            if self._dispatcher.waiting:
                self._wake()
            self._room.notify_all()
        for ticket in tickets:
            self._finish(ticket, EngineError("the call was interrupted"))

    def _ended(self, batch: Batch, results: list[Outputs | SanderlingError], failure: Exception | None) -> list[Ticket]:
        """Note how a batch ended; returns requests that no lane could run. Under the lock."""
        if failure is not None:
            return self._failed(batch, failure)
        now_ms = self._now_ms()
        self._dispatcher.complete(batch.dispatch, now_ms, learn=batch.is_warm)
        self.counts["batches"] += 1
        for ticket, result in zip(batch.live, results, strict=True):
            if not isinstance(result, Outputs):
                self._settle(ticket, "failed")
                continue
            self._settle(ticket, "completed")
            result.batch_requests = len(batch.live)
            result.queue_ms = batch.dispatch.started_ms - ticket.arrival_ms
            result.compute_ms = now_ms - batch.dispatch.started_ms
            self.counts["completed late"] += now_ms > ticket.deadline_ms
            self.latencies_ms.append(now_ms - ticket.arrival_ms)
        return []

    def _failed(self, batch: Batch, failure: Exception, *, hung: bool = False) -> list[Ticket]:
        """Requests that no lane could run; the others wait again. Under the lock."""
        self.counts["failed batches"] += 1
        for ticket in batch.live:
            ticket.detach()
        lost = self._dispatcher.fail(batch.dispatch, first_line(failure), self._now_ms(), hung=hung)
        if hung:  # the call may write to its callers' arrays at any time
            lost += [ticket for ticket in batch.live if ticket.call.outputs and self._dispatcher.cancel(ticket)]
        self._wake()
        return [ticket for ticket in map(ticket_of, lost) if self._settle(ticket, "failed")]

    def _tell_failed(self, batch: Batch, lost: list[Ticket], failure: Exception, *, hung: bool = False) -> None:
        dispatch = batch.dispatch
        subject = f"{dispatch.model} on {batch.served.lane_name(dispatch.lane)}"
        self.tell(Event(kind="batch-failed", subject=subject, reason=first_line(failure)), model=dispatch.model)
        for ticket in lost:
            self._finish(ticket, failure_of(ticket, batch.served, failure, hung=hung))
        self._tell_switches()

    def _wait(self, ticket: Ticket) -> Outputs:
        """Wait for a request; one that still waits at its deadline is taken back."""
        future = ticket.future
        if future is None:
            if isinstance(ticket.outcome, Outputs):
                return ticket.outcome
            assert ticket.outcome is not None
            raise ticket.outcome
        try:
            if ticket.deadline_ms != NEVER and self._rules.drop_late and not future.done():
                try:
                    return future.result(max(ticket.deadline_ms - self._now_ms(), 0.0) / 1e3)
                except FutureTimeout:
                    if self._take_back(ticket, "late"):
                        raise late(ticket, self._now_ms()) from None
            return future.result()
        except BaseException:  # an interrupt; a request that failed does not wait
            self._take_back(ticket, "cancelled")
            raise

    def _take_back(self, ticket: Ticket, fate: Fate) -> bool:
        """Take a request out of its queue; False when it runs already or is done."""
        with self._lock:
            taken = self._dispatcher.cancel(ticket) and self._settle(ticket, fate)
            if taken:
                ticket.forget_arrays()
                self._room.notify()
            return taken

    def _cancelled(self, ticket: Ticket) -> None:
        """A caller cancelled its future before its batch began."""
        with self._lock:
            self._dispatcher.cancel(ticket)
            is_first = self._settle(ticket, "cancelled")
            self._room.notify()
        if is_first:
            ticket.forget_arrays()
            ticket.future = None
        if is_first and ticket.link is not None:
            self._streams.settle(ticket.link, _nothing)

    def _settle(self, ticket: Ticket, fate: Fate) -> bool:
        """Note what becomes of a request, unless that is noted already; under the lock."""
        if ticket.fate:
            return False
        ticket.fate = fate
        self.counts[fate] += 1
        return True

    def _finish(self, ticket: Ticket, outcome: Outputs | BaseException) -> None:
        """Give a request that was settled its result, after those before it in its stream."""
        future, link = ticket.future, ticket.link
        ticket.forget_arrays()
        if isinstance(future, TicketFuture):
            ticket.future = None  # which holds the ticket
        if future is None:
            ticket.outcome = outcome
        elif link is None:
            deliver(future, outcome)
        else:
            self._streams.settle(link, partial(deliver, future, outcome))

    def _tell_dropped(self) -> None:
        if not self._dispatcher.dropped:
            return
        with self._lock:
            dropped, self._dispatcher.dropped = self._dispatcher.dropped, []
            tickets = [ticket for ticket in map(ticket_of, dropped) if self._settle(ticket, "late")]
            self._room.notify_all()
        for ticket in tickets:
            self._finish(ticket, late(ticket, self._now_ms()))

    def _tell_switches(self) -> None:
        if not self._dispatcher.switches:
            return
        with self._lock:
            switches, self._dispatcher.switches = self._dispatcher.switches, []
            known = [(self._served[switch.model], switch) for switch in switches if switch.model in self._served]
            self.counts["switches"] += len(known)
        for served, (model, (source, target, reason), _) in known:
            subject = f"{model}: {served.lane_name(source)} → {served.lane_name(target)}"
            self.tell(Event(kind="switched", subject=subject, reason=reason), model=model)

    @staticmethod
    def _now_ms() -> float:
        return time.monotonic() * 1e3


_RUNTIMES: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _disown_all() -> None:
    for runtime in list(_RUNTIMES):
        runtime.disown()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_disown_all)


def _nothing() -> None:
    """A place in a stream without a result."""
