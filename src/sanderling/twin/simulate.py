"""Plays a trace on a virtual clock: the same dispatcher as live, calls from a latency table, heat from a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sanderling.core.progress import Progress, Silent
from sanderling.run.dispatcher import Dispatch, ModelSwitch, Refusal, Request
from sanderling.run.emulation.heat import Heat, HeatRule, after_power, cold, slowdown
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.policy import NEVER
from sanderling.run.policy.latency import LatencyModel, predict_ms
from sanderling.twin.traces import Floats, Integers, Trace

TICK_MS = 1_000.0
_LEAST_WAKE_MS = 1e-3
_NOISE_BLOCK = 4096


class Outcome(IntEnum):
    """How a request ended."""

    DONE = 0
    REFUSED_LATE = 1
    REFUSED_FULL = 2
    DROPPED = 3


class Scheduler(Protocol):
    """What is played: the dispatcher, or a policy to compare it with.

    Attributes:
        dropped: requests that were given up, since they were last taken.
        switches: lanes that changed, since they were last taken.
        waiting: requests in queues.
    """

    dropped: list[Request]
    switches: list[ModelSwitch]
    waiting: int

    def submit(self, request: Request, now_ms: float) -> Refusal | None:
        """Take in a request, or refuse it."""

    def next(self, now_ms: float) -> Dispatch | None:
        """The next batch that a free device should run now."""

    def wake_ms(self) -> float:
        """When ``next`` should be asked again although nothing has happened."""

    def complete(self, dispatch: Dispatch, now_ms: float) -> None:
        """A batch has run."""

    def sense(self, device: str, temperature_c: float, now_ms: float) -> None:
        """A device's temperature was read."""


@dataclass(frozen=True)
class Contender:
    """A scheduler that is to be played.

    Attributes:
        lanes: the devices of each model, as its lanes are numbered.
        default_deadline_ms: from arrival on, for requests that bring none.
        thresholds_c: by device the temperatures at which it leaves and returns.
    """

    name: str
    scheduler: Scheduler
    lanes: dict[str, tuple[str, ...]]
    default_deadline_ms: float = NEVER
    thresholds_c: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceSwitch:
    """A model changed the device that it prefers."""

    at_ms: float
    model: str
    source: str
    target: str
    reason: str


@dataclass(frozen=True)
class Played:
    """What happened. Requests are in the trace's order, shape (n,); ticks are seconds, shape (t,).

    Attributes:
        contender: its scheduler is used up.
        devices: names, as the table orders them.
        outcome: ``Outcome`` of each request.
        end_ms: when each request was done, refused or dropped.
        device: index of the device that ran it; -1 where none did.
        rows: of the call that ran it; 0 where none did.
        tick_ms: end of each tick, the last one may be shorter.
        temperature_c: at the end of each tick, shape (t, devices).
        busy_share: of each tick, shape (t, devices), in [0, 1].
        power_w: mean of each tick, shape (t, devices).
        switches: changed lanes, by time, with the device before and after.
    """

    contender: Contender
    trace: Trace
    devices: tuple[str, ...]
    outcome: Integers
    end_ms: Floats
    device: Integers
    rows: Integers
    tick_ms: Floats
    temperature_c: Floats
    busy_share: Floats
    power_w: Floats
    switches: tuple[DeviceSwitch, ...]


class _Device:
    """A device's work and heat within the running tick."""

    def __init__(self, index: int, idle_w: float, power_w: float, capacity: int, rule: HeatRule) -> None:
        self.index = index
        self.idle_w, self.power_w, self.capacity = idle_w, power_w, capacity
        self.rule = rule
        self.heat: Heat = cold(rule)
        self.slowdown = 1.0
        self.in_use = 0
        self.since_ms = 0.0
        self.busy_ms = 0.0  # of this tick, times the capacity that was in use

    def use(self, change: int, now_ms: float) -> None:
        """A call begins or ends."""
        self.busy_ms += self.in_use * (now_ms - self.since_ms)
        self.since_ms = now_ms
        self.in_use += change

    def tick(self, now_ms: float, length_ms: float) -> tuple[float, float, float]:
        """End a tick: temperature, share of the time that it was busy, mean power."""
        self.use(0, now_ms)
        share = min(self.busy_ms / (length_ms * self.capacity), 1.0)
        power_w = self.idle_w + (self.power_w - self.idle_w) * share
        self.heat = after_power(self.rule, self.heat, power_w=power_w, seconds=length_ms / 1e3)
        self.slowdown = slowdown(self.rule, self.heat)
        self.busy_ms = 0.0
        return self.heat.temperature_c, share, power_w


def play(
    contender: Contender, trace: Trace, table: LatencyTable, *, seed: int = 0, progress: Progress | None = None
) -> Played:
    """Play a trace to its last request's end.

    A tick is one second: then devices are stepped by their mean power, and their temperatures are told to the
    scheduler. The latency of a call is the table's, times what heat makes of it, times a log-normal factor of mean 1
    and the table's jitter.

    Args:
        contender: fresh, made for this table and the trace's models.
        trace: not empty.
        table: with all models of the trace.
        seed: of the jitter.
        progress: advanced by one a minute of the trace.

    Returns:
        The same for the same arguments.

    Raises:
        OptionError: the table lacks a model.
    """
    return _Player(contender, trace, table, seed, progress or Silent()).play()


class _Player:
    def __init__(self, contender: Contender, trace: Trace, table: LatencyTable, seed: int, progress: Progress) -> None:
        self._contender, self._scheduler, self._trace, self._progress = contender, contender.scheduler, trace, progress
        self._noise = _standard_normal(seed)
        self._latencies: dict[tuple[str, str], tuple[LatencyModel, float, float]] = {}
        for model in trace.models:
            for device, entry in table.model(model).items():
                sigma = math.sqrt(math.log1p(entry.jitter**2))
                self._latencies[model, device] = entry.latency, sigma, -sigma * sigma / 2
        self._devices: dict[str, _Device] = {}
        for index, device in enumerate(table.device_kinds):
            entry_ = table.device(device)
            self._devices[device] = _Device(
                index, entry_.idle_w, entry_.power_w, entry_.capacity, entry_.thermal.rule()
            )
        count = len(trace)
        self._outcome = [-1] * count
        self._end_ms = [math.nan] * count
        self._device = [-1] * count
        self._rows = [0] * count
        self._ticks: list[tuple[float, list[tuple[float, float, float]]]] = []
        self._switches: list[DeviceSwitch] = []
        self._running: list[tuple[float, int, Dispatch]] = []
        self._calls = 0

    def play(self) -> Played:
        arrivals = self._arrivals()
        following = next(arrivals, None)
        tick_ms = TICK_MS
        now_ms = 0.0
        scheduler, running = self._scheduler, self._running
        while following is not None or running or scheduler.waiting:
            arrival_ms = following[0] if following is not None else NEVER
            end_ms = running[0][0] if running else NEVER
            wake_ms = max(scheduler.wake_ms(), now_ms + _LEAST_WAKE_MS) if scheduler.waiting else NEVER
            soonest_ms = min(arrival_ms, end_ms, wake_ms)
            assert soonest_ms < NEVER, f"{scheduler.waiting} requests would wait for ever"
            if tick_ms <= soonest_ms:
                now_ms = tick_ms
                self._tick(now_ms)
                tick_ms += TICK_MS
            elif end_ms <= soonest_ms:
                now_ms = end_ms
                self._complete(heappop(running)[2], now_ms)
            elif following is not None and arrival_ms <= soonest_ms:
                now_ms = arrival_ms
                self._submit(following[1], now_ms)
                following = next(arrivals, None)
            else:
                now_ms = wake_ms
            while (dispatch := scheduler.next(now_ms)) is not None:
                self._start(dispatch, now_ms)
            if scheduler.dropped:
                self._take_dropped(now_ms)
            if scheduler.switches:
                self._take_switches()
        last_ms = self._ticks[-1][0] if self._ticks else 0.0
        if now_ms > last_ms:
            self._tick(now_ms, now_ms - last_ms)
        return self._played()

    def _arrivals(self) -> Iterator[tuple[float, Request]]:
        trace = self._trace
        deadlines = np.where(np.isinf(trace.deadline_ms), self._contender.default_deadline_ms, trace.deadline_ms)
        columns: Sequence[npt.NDArray[np.generic]] = (
            trace.time_ms, trace.model, trace.time_ms + deadlines, trace.priority, trace.rows
        )  # fmt: skip
        names = trace.models
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (time_ms, model, deadline_ms, priority, count) in enumerate(rows):
            yield (
                time_ms,
                Request(names[model], rows=count, deadline_ms=deadline_ms, priority=priority, payload=index),
            )

    def _submit(self, request: Request, now_ms: float) -> None:
        refusal = self._scheduler.submit(request, now_ms)
        if refusal is not None:
            outcome = Outcome.REFUSED_FULL if refusal == "full" else Outcome.REFUSED_LATE
            self._finish(request, outcome, now_ms)

    def _start(self, dispatch: Dispatch, now_ms: float) -> None:
        device = self._devices[dispatch.device]
        device.use(dispatch.cost, now_ms)
        latency, sigma, shift = self._latencies[dispatch.model, dispatch.device]
        latency_ms = predict_ms(latency, dispatch.call_rows) * device.slowdown
        if sigma:
            latency_ms *= math.exp(sigma * next(self._noise) + shift)
        self._calls += 1
        heappush(self._running, (now_ms + latency_ms, self._calls, dispatch))

    def _complete(self, dispatch: Dispatch, now_ms: float) -> None:
        device = self._devices[dispatch.device]
        device.use(-dispatch.cost, now_ms)
        self._scheduler.complete(dispatch, now_ms)
        for request in dispatch.requests:
            index: int = request.payload  # type: ignore[assignment]
            self._device[index] = device.index
            self._rows[index] = dispatch.rows
            self._finish(request, Outcome.DONE, now_ms)

    def _finish(self, request: Request, outcome: Outcome, now_ms: float) -> None:
        index: int = request.payload  # type: ignore[assignment]
        assert self._outcome[index] < 0, "a request ends once"
        self._outcome[index] = outcome
        self._end_ms[index] = now_ms

    def _take_dropped(self, now_ms: float) -> None:
        for request in self._scheduler.dropped:
            self._finish(request, Outcome.DROPPED, now_ms)
        self._scheduler.dropped.clear()

    def _take_switches(self) -> None:
        for model, switch, at_ms in self._scheduler.switches:
            lanes = self._contender.lanes[model]
            self._switches.append(DeviceSwitch(at_ms, model, lanes[switch.source], lanes[switch.target], switch.reason))
        self._scheduler.switches.clear()

    def _tick(self, now_ms: float, length_ms: float = TICK_MS) -> None:
        measured = []
        for name, device in self._devices.items():
            measured.append(device.tick(now_ms, length_ms))
            self._scheduler.sense(name, device.heat.temperature_c, now_ms)
        self._ticks.append((now_ms, measured))
        if len(self._ticks) % 60 == 0:
            self._progress.advance()

    def _played(self) -> Played:
        measured = np.array([values for _, values in self._ticks])  # (t, devices, 3)
        return Played(
            contender=self._contender,
            trace=self._trace,
            devices=tuple(self._devices),
            outcome=np.array(self._outcome),
            end_ms=np.array(self._end_ms),
            device=np.array(self._device),
            rows=np.array(self._rows),
            tick_ms=np.array([at_ms for at_ms, _ in self._ticks]),
            temperature_c=measured[:, :, 0],
            busy_share=measured[:, :, 1],
            power_w=measured[:, :, 2],
            switches=tuple(self._switches),
        )


def _standard_normal(seed: int) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.standard_normal(_NOISE_BLOCK).tolist()
