"""Policies to compare with, each with what its source gives it and nothing more: none reads temperatures.

All know the table's latencies before the first call and learn from each call, as Band does. All but fixed-delay
batching run each request by itself.

Sources: Jeong et al., "Band: Coordinated Multi-DNN Inference on Heterogeneous Mobile Processors", MobiSys 2022, and the
schedulers of its repository (github.com/mrsnu/band); Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity
task scheduling for heterogeneous computing", IEEE TPDS 13 (2002) 260, for HEFT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from sanderling.core.errors import OptionError
from sanderling.run.dispatcher import Dispatch, ModelSwitch, Refusal, Request
from sanderling.run.policy import NEVER
from sanderling.run.policy.latency import LatencyModel, observe, predict_ms
from sanderling.twin.simulate import Scheduler

QUEUE_LIMIT = 1024  # requests of one model, as in our own default policy


class Known(NamedTuple):
    """What a baseline is told: capacities by device, the best first, and latencies by model and device."""

    capacities: dict[str, int]
    latencies: dict[str, dict[str, LatencyModel]]


def baseline(name: str, known: Known, options: Mapping[str, str]) -> Scheduler:
    """Make a baseline.

    Args:
        name: one of ``BASELINES``.
        known: devices and models.
        options: ``device`` of ``fixed``; ``device``, ``delay`` (milliseconds) and ``batch`` of ``fixed-delay``.

    Raises:
        OptionError: an unknown name, option or device, or a value that does not fit.
    """
    if name not in BASELINES:
        raise OptionError(f"unknown baseline '{name}': available are {', '.join(BASELINES)}")
    kind, takes = BASELINES[name]
    strange = next((key for key in options if key not in takes), None)
    if strange is not None:
        raise OptionError(f"baseline '{name}' has no option '{strange}': it has {', '.join(takes) or 'none'}")
    return kind(known, options)


class _Baseline:
    """Devices that are busy or not, and latencies that are learned."""

    def __init__(self, known: Known) -> None:
        self.dropped: list[Request] = []
        self.switches: list[ModelSwitch] = []
        self.waiting = 0
        self._capacities = known.capacities
        self._latencies = {model: dict(entries) for model, entries in known.latencies.items()}
        self._lanes = {model: tuple(entries) for model, entries in known.latencies.items()}
        self._ends_ms: dict[str, list[float]] = {device: [] for device in known.capacities}
        self._queued = dict.fromkeys(known.latencies, 0)

    def submit(self, request: Request, now_ms: float) -> Refusal | None:
        """Take in a request, unless the queue of its model is full."""
        if self._queued[request.model] >= QUEUE_LIMIT:
            return "full"
        request.arrival_ms = now_ms
        self._queued[request.model] += 1
        self.waiting += 1
        self._take(request, now_ms)
        return None

    def next(self, now_ms: float) -> Dispatch | None:
        """The next call."""
        return self._next(now_ms) if self.waiting else None

    def wake_ms(self) -> float:
        """Nothing happens by itself."""
        return NEVER

    def complete(self, dispatch: Dispatch, now_ms: float) -> None:
        """A call ended: its latency is learned."""
        self._ends_ms[dispatch.device].remove(dispatch.started_ms + dispatch.predicted_ms)
        entries = self._latencies[dispatch.model]
        entries[dispatch.device] = observe(entries[dispatch.device], dispatch.rows, now_ms - dispatch.started_ms)

    def sense(self, device: str, temperature_c: float, now_ms: float) -> None:
        """Heat is not looked at."""

    def _take(self, request: Request, now_ms: float) -> None:
        raise NotImplementedError

    def _next(self, now_ms: float) -> Dispatch | None:
        raise NotImplementedError

    def _idle(self, device: str) -> bool:
        return len(self._ends_ms[device]) < self._capacities[device]

    def _wait_ms(self, device: str, now_ms: float) -> float:
        """Milliseconds until a call could begin there."""
        return 0.0 if self._idle(device) else max(min(self._ends_ms[device]) - now_ms, 0.0)

    def _each_ms(self, request: Request, device: str) -> float:
        return predict_ms(self._latencies[request.model][device], request.rows)

    def _start(self, device: str, requests: list[Request], now_ms: float) -> Dispatch:
        self._forget(requests)
        model = requests[0].model
        rows = sum(request.rows for request in requests)
        predicted_ms = predict_ms(self._latencies[model][device], rows)
        self._ends_ms[device].append(now_ms + predicted_ms)
        lane = self._lanes[model].index(device)
        return Dispatch(model, lane, device, 1, tuple(requests), rows, rows, now_ms, predicted_ms)

    def _forget(self, requests: list[Request]) -> None:
        self.waiting -= len(requests)
        for request in requests:
            self._queued[request.model] -= 1

    def _chosen_device(self, wanted: str | None) -> dict[str, str]:
        """Of each model the device that was named, or its first."""
        for model, lanes in self._lanes.items():
            if wanted is not None and wanted not in lanes:
                raise OptionError(f"model '{model}' does not run on device '{wanted}': it runs on {', '.join(lanes)}")
        return {model: wanted or lanes[0] for model, lanes in self._lanes.items()}


class FixedDevice(_Baseline):
    """Each model on one device, first come, first served: what TensorFlow Lite and most frameworks do."""

    def __init__(self, known: Known, options: Mapping[str, str]) -> None:
        super().__init__(known)
        self._device = self._chosen_device(options.get("device"))
        self._queues: dict[str, deque[Request]] = {device: deque() for device in known.capacities}

    def _take(self, request: Request, now_ms: float) -> None:  # noqa: ARG002
        self._queues[self._device[request.model]].append(request)

    def _next(self, now_ms: float) -> Dispatch | None:
        for device, queue in self._queues.items():
            if queue and self._idle(device):
                return self._start(device, [queue.popleft()], now_ms)
        return None


class RoundRobin(_Baseline):
    """Every idle device in turn takes the oldest request that it can run: Band's ``RoundRobinScheduler``."""

    def __init__(self, known: Known, options: Mapping[str, str]) -> None:  # noqa: ARG002
        super().__init__(known)
        self._queue: deque[Request] = deque()

    def _take(self, request: Request, now_ms: float) -> None:  # noqa: ARG002
        self._queue.append(request)

    def _next(self, now_ms: float) -> Dispatch | None:
        for device in self._capacities:
            if not self._idle(device):
                continue
            for place, request in enumerate(self._queue):
                if device in self._latencies[request.model]:
                    del self._queue[place]
                    return self._start(device, [request], now_ms)
        return None


class ShortestExpectedLatency(_Baseline):
    """Each request joins, as it comes, the queue of the device that should end it first, and stays there.

    Band's ``ShortestExpectedLatencyScheduler``: it looks at what waits and what runs, not at deadlines.
    """

    def __init__(self, known: Known, options: Mapping[str, str]) -> None:  # noqa: ARG002
        super().__init__(known)
        self._queues: dict[str, deque[tuple[Request, float]]] = {device: deque() for device in known.capacities}
        self._backlog_ms = dict.fromkeys(known.capacities, 0.0)

    def _take(self, request: Request, now_ms: float) -> None:
        best, best_end_ms, best_each_ms = "", NEVER, 0.0
        for device in self._lanes[request.model]:
            each_ms = self._each_ms(request, device)
            end_ms = self._wait_ms(device, now_ms) + self._backlog_ms[device] / self._capacities[device] + each_ms
            if end_ms < best_end_ms:
                best, best_end_ms, best_each_ms = device, end_ms, each_ms
        self._queues[best].append((request, best_each_ms))
        self._backlog_ms[best] += best_each_ms

    def _next(self, now_ms: float) -> Dispatch | None:
        for device, queue in self._queues.items():
            if queue and self._idle(device):
                request, each_ms = queue.popleft()
                self._backlog_ms[device] = self._backlog_ms[device] - each_ms if queue else 0.0
                return self._start(device, [request], now_ms)
        return None


class LeastSlack(_Baseline):
    """The request with the least time to spare first, on the device that would end it first, if that one is idle.

    Band's ``LeastSlackFirstScheduler``: slack is the time until the deadline less the shortest expected latency;
    a request that cannot be in time on any device is given up; one without a deadline has all the time.
    """

    def __init__(self, known: Known, options: Mapping[str, str]) -> None:  # noqa: ARG002
        super().__init__(known)
        self._queues: dict[str, list[tuple[float, int, Request]]] = {model: [] for model in known.latencies}
        self._number = 0

    def _take(self, request: Request, now_ms: float) -> None:  # noqa: ARG002
        self._number += 1
        heappush(self._queues[request.model], (request.deadline_ms, self._number, request))

    def _next(self, now_ms: float) -> Dispatch | None:
        best: tuple[float, int, str, Request] | None = None
        for queue in self._queues.values():
            while queue:
                deadline_ms, number, request = queue[0]
                device, cost_ms = self._shortest(request, now_ms)
                slack_ms = deadline_ms - now_ms - cost_ms
                if slack_ms < 0:
                    heappop(queue)
                    self._forget([request])
                    self.dropped.append(request)
                    continue
                if self._idle(device) and (best is None or (slack_ms, number) < best[:2]):
                    best = slack_ms, number, device, request
                break
        if best is None:
            return None
        heappop(self._queues[best[3].model])
        return self._start(best[2], [best[3]], now_ms)

    def _shortest(self, request: Request, now_ms: float) -> tuple[str, float]:
        costs = (
            (self._wait_ms(device, now_ms) + self._each_ms(request, device), place)
            for place, device in enumerate(self._lanes[request.model])
        )
        cost_ms, place = min(costs)
        return self._lanes[request.model][place], cost_ms


class EarliestFinish(_Baseline):
    """Heterogeneous earliest finish time: the request whose best end is latest first, on the device of that end.

    Band's ``HEFTScheduler``: where that device is busy, the request stays, its time there is reserved, and the next
    one is looked at. Deadlines are not looked at.
    """

    def __init__(self, known: Known, options: Mapping[str, str]) -> None:  # noqa: ARG002
        super().__init__(known)
        self._queues: dict[str, deque[Request]] = {model: deque() for model in known.latencies}

    def _take(self, request: Request, now_ms: float) -> None:  # noqa: ARG002
        self._queues[request.model].append(request)

    def _next(self, now_ms: float) -> Dispatch | None:
        if not any(self._idle(device) for device in self._capacities):
            return None
        waits_ms = {device: self._wait_ms(device, now_ms) for device in self._capacities}
        heads = {model: 0 for model, queue in self._queues.items() if queue}
        while heads:
            cost_ms, model, device = max(self._best_ends(heads, waits_ms), key=lambda end: end[0])
            queue, place = self._queues[model], heads[model]
            if self._idle(device):
                request = queue[place]
                del queue[place]
                return self._start(device, [request], now_ms)
            waits_ms[device] = cost_ms
            heads[model] += 1
            if heads[model] >= len(queue):
                del heads[model]
        return None

    def _best_ends(self, heads: dict[str, int], waits_ms: dict[str, float]) -> Iterator[tuple[float, str, str]]:
        for model, place in heads.items():
            request = self._queues[model][place]
            lanes = self._lanes[model]
            end_ms, lane = min(
                (waits_ms[device] + self._each_ms(request, device), at) for at, device in enumerate(lanes)
            )
            yield end_ms, model, lanes[lane]


class FixedDelay(_Baseline):
    """A batch runs when it is full or its oldest request has waited so long, on the first device.

    As in NVIDIA Triton's dynamic batcher (``max_queue_delay_microseconds``) and TensorFlow Serving's
    (``batch_timeout_micros``): the delay is paid although the device is idle, and deadlines are not looked at. With the
    device ``any``, the first idle one takes it.
    """

    def __init__(self, known: Known, options: Mapping[str, str]) -> None:
        super().__init__(known)
        wanted = options.get("device")
        first = {} if wanted == "any" else self._chosen_device(wanted)
        self._usable = {model: (first[model],) if first else lanes for model, lanes in self._lanes.items()}
        self._delay_ms = _option(options, "delay", 5.0, least=0.0)
        self._batch = int(_option(options, "batch", 8.0, least=1.0))
        self._queues: dict[str, deque[Request]] = {model: deque() for model in known.latencies}
        self._rows = dict.fromkeys(known.latencies, 0)
        self._wake_ms = NEVER

    def wake_ms(self) -> float:
        """When the next delay is over that a device could end."""
        return self._wake_ms

    def _take(self, request: Request, now_ms: float) -> None:  # noqa: ARG002
        self._queues[request.model].append(request)
        self._rows[request.model] += request.rows

    def _next(self, now_ms: float) -> Dispatch | None:
        self._wake_ms = NEVER
        best: tuple[float, str, str] | None = None
        for model, queue in self._queues.items():
            device = next((device for device in self._usable[model] if self._idle(device)), None)
            if not queue or device is None:
                continue
            due_ms = now_ms if self._rows[model] >= self._batch else queue[0].arrival_ms + self._delay_ms
            if due_ms > now_ms:
                self._wake_ms = min(self._wake_ms, due_ms)
            elif best is None or queue[0].arrival_ms < best[0]:
                best = queue[0].arrival_ms, model, device
        if best is None:
            return None
        _, model, device = best
        taken: list[Request] = []
        queue, rows = self._queues[model], 0
        while queue and (not taken or rows + queue[0].rows <= self._batch):
            taken.append(queue.popleft())
            rows += taken[-1].rows
        self._rows[model] -= rows
        return self._start(device, taken, now_ms)


def _option(options: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    text = options.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= 1e6:
        raise OptionError(f"{name} '{text}' of a baseline is no number between {least:g} and 1000000")
    return value


BASELINES: dict[str, tuple[Callable[[Known, Mapping[str, str]], Scheduler], tuple[str, ...]]] = {
    "fixed": (FixedDevice, ("device",)),
    "round-robin": (RoundRobin, ()),
    "sel": (ShortestExpectedLatency, ()),
    "least-slack": (LeastSlack, ()),
    "heft": (EarliestFinish, ()),
    "fixed-delay": (FixedDelay, ("device", "delay", "batch")),
}
