"""Joins the policy's decisions: requests come in, batches for devices come out. No clock, no thread, no array.

The live runtime calls it under its lock with the real time, the twin with a virtual one. Time is in milliseconds from
any zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from sanderling.run.policy import NEVER, placement
from sanderling.run.policy.batching import BatchRules, batch_rows, call_rows
from sanderling.run.policy.latency import LatencyModel, least_ms, observe, predict_ms, unsure
from sanderling.run.policy.placement import LaneRule, PlacementState, RecoveryRule, Switch
from sanderling.run.policy.scheduling import (
    SchedulingRules,
    call_limit_ms,
    capped_for_ms,
    is_late,
    may_leave,
    spills,
    urgency,
    utilization_after,
)

Refusal = Literal["late", "full"]
_TRUSTED_MS = 10_000.0  # since a model's last call: then a request that seems too late is let through, to measure again
_LATER_MS = 1e-3  # than the last moment to start: then a request is late in spite of rounding
_FORGOTTEN = 64  # cancelled requests that a queue may hold beside as many as wait


class Request:
    """One call of a caller.

    Attributes:
        model: that it is for.
        rows: that it brings.
        deadline_ms: infinite without one.
        priority: larger is sooner; below 0 is background work.
        payload: whatever the host keeps with it.
        failures: lanes that failed it, with the reasons.
        failed_alone: lanes that failed it when no other request was in the batch.
        waiting: whether it is in a queue.
        is_probe: it seemed too late when it came, and was let through to measure again.
    """

    __slots__ = (
        "arrival_ms",
        "deadline_ms",
        "failed_alone",
        "failures",
        "is_probe",
        "key",
        "model",
        "number",
        "payload",
        "priority",
        "rows",
        "waiting",
    )

    def __init__(
        self, model: str, *, rows: int = 1, deadline_ms: float = NEVER, priority: int = 0, payload: object = None
    ) -> None:
        self.model = model
        self.rows = rows
        self.deadline_ms = deadline_ms
        self.priority = priority
        self.payload = payload
        self.waiting = False
        self.is_probe = False
        self.failures: tuple[tuple[int, str], ...] = ()
        self.failed_alone: frozenset[int] = frozenset()
        self.arrival_ms = 0.0
        self.number = 0
        self.key = (0, 0.0)


class Dispatch(NamedTuple):
    """A batch that a device runs now.

    Attributes:
        lane: index of the model's way of running.
        device: that it occupies, with ``cost`` of its capacity.
        rows: of all requests together.
        call_rows: rows of the engine's call: ``rows``, or the profile that holds them.
    """

    model: str
    lane: int
    device: str
    cost: int
    requests: tuple[Request, ...]
    rows: int
    call_rows: int
    started_ms: float
    predicted_ms: float


class ModelSwitch(NamedTuple):
    """A model changed its lane."""

    model: str
    switch: Switch
    at_ms: float


@dataclass
class _Device:
    name: str
    capacity: int
    in_use: int = 0
    free_ms: float = 0.0  # when what runs now should have ended
    since_ms: float = 0.0  # it has been busy, or idle, since
    utilization: float = 0.0


@dataclass
class _Model:
    name: str
    lanes: tuple[LaneRule, ...]
    costs: tuple[int, ...]
    latencies: list[LatencyModel]
    batching: BatchRules
    recovery: RecoveryRule
    state: PlacementState
    since: int  # number of the last request that came before it
    devices: list[_Device]  # of each lane
    least_ms: list[float]  # of one row on each lane
    queue: list[tuple[int, float, int, Request]] = field(default_factory=list)
    waiting: int = 0
    waiting_rows: int = 0
    latest_deadline_ms: float = 0.0
    full_rows: int = 0  # of a full batch on the lane in use; 0 until it is asked for
    full_ms: float = 0.0
    shortest_ms: float = 0.0
    heard_ms: float | None = None  # when a call last ended, or was let through for that


class _Head(NamedTuple):
    """A model's most urgent request, its own lane, and when that would have finished it; 0 if it waits anyway."""

    model: _Model
    request: Request
    own: int
    own_finish_ms: float


def _by_urgency(head: _Head) -> tuple[tuple[int, float], int]:
    return head.request.key, head.request.number


class Dispatcher:
    """Queues, placement and learned latencies of several models on several devices.

    Attributes:
        dropped: requests that could not be finished in time, since the host last took them.
        switches: lanes that changed, since the host last took them.
    """

    def __init__(self, rules: SchedulingRules) -> None:
        self.rules = rules
        self.dropped: list[Request] = []
        self.switches: list[ModelSwitch] = []
        self.waiting = 0
        self._devices: dict[str, _Device] = {}
        self._models: dict[str, _Model] = {}
        self._backlogs_ms: dict[str, float] = {}
        self._numbers = 0
        self._capped_until_ms = NEVER
        self._wake_ms = NEVER  # when a hold-off of some model ends

    def add_model(
        self,
        name: str,
        lanes: Sequence[LaneRule],
        latencies: Sequence[LatencyModel],
        *,
        batching: BatchRules,
        recovery: RecoveryRule,
        costs: Sequence[int] = (),
        capacities: dict[str, int] | None = None,
    ) -> None:
        """Take in a model.

        Args:
            name: that requests call it by.
            lanes: ways of running it, the preferred one first.
            latencies: what is known of each.
            batching: of the policy.
            recovery: of the policy.
            costs: how much of its device's capacity each lane takes; all of a capacity of 1 by default.
            capacities: of devices that are not known yet; 1 by default.
        """
        for rule in lanes:
            if rule.device not in self._devices:
                self._devices[rule.device] = _Device(rule.device, (capacities or {}).get(rule.device, 1))
        model = _Model(
            name,
            tuple(lanes),
            tuple(costs) or (1,) * len(lanes),
            list(latencies),
            batching,
            recovery,
            placement.start(tuple(lanes)),
            self._numbers,
            [self._devices[rule.device] for rule in lanes],
            [least_ms(latency, call_rows(batching, 1)) for latency in latencies],
        )
        self._models[name] = model
        self._refresh(model)

    @property
    def capacity(self) -> int:
        """Calls that can run at once at most."""
        return sum(device.capacity for device in self._devices.values())

    def has_room_for(self, models: Sequence[str]) -> bool:
        """Whether a call of each of these models can run at once on the lanes that they use now."""
        taken: Counter[str] = Counter()
        for model in map(self._models.__getitem__, models):
            taken[model.devices[model.state.active].name] += model.costs[model.state.active]
        return all(cost <= self._devices[name].capacity for name, cost in taken.items())

    def add_lane(self, model_name: str, rule: LaneRule, latency: LatencyModel, *, cost: int = 1) -> None:
        """Add a way of running as the last in a model's ranking."""
        model = self._models[model_name]
        model.devices.append(self._devices.setdefault(rule.device, _Device(rule.device, 1)))
        model.least_ms.append(least_ms(latency, call_rows(model.batching, 1)))
        model.lanes, model.costs = (*model.lanes, rule), (*model.costs, cost)
        model.latencies.append(latency)
        model.state = model.state._replace(lanes=(*model.state.lanes, placement.LaneState()))

    def remove_model(self, name: str) -> list[Request]:
        """Forget a model; returns the requests that still waited."""
        model = self._models.pop(name)
        self._wake_ms = min((each.state.wake_ms for each in self._models.values()), default=NEVER)
        left = [request for *_, request in sorted(model.queue, key=lambda item: item[:3]) if request.waiting]
        for request in left:
            self._uncount(model, request)
        return left

    def submit(self, request: Request, now_ms: float) -> Refusal | None:
        """Take in a request, unless its queue is full or it is too late for it already."""
        model = self._models[request.model]
        if model.waiting >= self.rules.queue_limit:
            return "full"
        if model.heard_ms is None:
            model.heard_ms = now_ms
        request.is_probe = False
        if self._is_late(model, request, now_ms):
            request.is_probe = not model.waiting and now_ms - model.heard_ms >= _TRUSTED_MS
            if self._is_late(model, request, now_ms):
                return "late"
            model.heard_ms = now_ms
        self._numbers += 1
        request.number = self._numbers
        request.arrival_ms = now_ms
        request.key = urgency(self.rules, priority=request.priority, arrival_ms=now_ms, deadline_ms=request.deadline_ms)
        model.latest_deadline_ms = max(model.latest_deadline_ms, request.key[1]) if model.waiting else request.key[1]
        self._push(model, request)
        return None

    def cancel(self, request: Request) -> bool:
        """Take back a request that waits; False when it runs already or is done."""
        if not request.waiting:
            return False
        model = self._models[request.model]
        self._uncount(model, request)
        if len(model.queue) > 2 * model.waiting + _FORGOTTEN:
            model.queue = [entry for entry in model.queue if entry[3].waiting]
            heapify(model.queue)
        return True

    def next(self, now_ms: float) -> Dispatch | None:
        """The next batch that a free device should run now, or None.

        Requests that are too late for any device are moved to ``dropped``.
        """
        self._capped_until_ms = NEVER
        if not self.waiting:
            return None
        if self._wake_ms <= now_ms:
            for model in self._models.values():
                self._switched(model, placement.choose(model.state, now_ms=now_ms), now_ms)
        free = [device for device in self._devices.values() if device.in_use < device.capacity]
        if not free:
            self._drop_late(now_ms)
            return None
        heads = self._heads(now_ms)
        for device in free:
            dispatch = self._next_on(device, heads, now_ms)
            if dispatch is not None:
                return dispatch
        return None

    def wake_ms(self) -> float:
        """When ``next`` should be asked again although nothing has happened; infinite if never.

        When a hold-off or a cap ends, or the most urgent request of a model becomes late.
        """
        if not self.waiting:
            return NEVER
        soonest_ms = min(self._capped_until_ms, self._wake_ms)
        if self.rules.drop_late:
            for model in self._models.values():
                if model.queue:
                    head = model.queue[0][3]
                    late_ms = head.deadline_ms - self._shortest_ms(model, head) + _LATER_MS
                    if late_ms < soonest_ms:
                        soonest_ms = late_ms
        return soonest_ms

    def complete(self, dispatch: Dispatch, now_ms: float, *, learn: bool = True) -> None:
        """A batch has run.

        Args:
            dispatch: as ``next`` gave it.
            now_ms: when it ended.
            learn: whether its latency says something; False where it includes loading.
        """
        model = self._model_of(dispatch)
        self._release(dispatch, now_ms)
        if model is None or not learn or dispatch.call_rows > model.batching.max_rows:
            return  # a request that is larger than any batch says nothing of batches
        latency_ms = now_ms - dispatch.started_ms
        lane = dispatch.lane
        model.heard_ms = now_ms
        known = model.latencies[lane]
        known = unsure(known) if any(request.is_probe for request in dispatch.requests) else known
        model.latencies[lane] = observe(known, dispatch.call_rows, latency_ms)
        model.least_ms[lane] = least_ms(model.latencies[lane], call_rows(model.batching, 1))
        outcome = placement.after_call(
            model.lanes,
            model.recovery,
            model.state,
            lane=lane,
            latency_ms=latency_ms,
            now_ms=now_ms,
            other_ms=self._other_ms(model, dispatch, now_ms) if latency_ms > model.lanes[lane].slow_ms else 0.0,
        )
        self._switched(model, outcome, now_ms)
        self._refresh(model)

    @staticmethod
    def _other_ms(model: _Model, dispatch: Dispatch, now_ms: float) -> float:
        """What the quickest other lane that could be used takes for such a call; 0 where that is not known."""
        return min(
            (
                predict_ms(latency, dispatch.call_rows)
                for lane, latency in enumerate(model.latencies)
                if lane != dispatch.lane and not placement.blocked(model.state.lanes[lane], now_ms)
            ),
            default=NEVER,
        )

    def expire(self, now_ms: float) -> None:
        """Move waiting requests that are too late for any device to ``dropped``, also while no device is free."""
        if not self.waiting or not self.rules.drop_late:
            return
        for model in self._models.values():
            for *_, request in model.queue if model.waiting else ():
                if request.waiting and self._is_late(model, request, now_ms):
                    self._uncount(model, request)
                    self.dropped.append(request)

    def fail(self, dispatch: Dispatch, reason: str, now_ms: float, *, hung: bool = False) -> list[Request]:
        """A batch failed: its requests are tried again, each by itself, so that one cannot spoil the rest.

        Another lane is preferred; one that failed a request together with others is tried once more for it alone,
        unless it hung.

        Returns:
            Requests that every lane failed when they were alone, and those of a model that is gone. The lanes are
            pardoned for the former.
        """
        model = self._model_of(dispatch)
        self._release(dispatch, now_ms)
        if model is None:
            return list(dispatch.requests)
        outcome = placement.after_failure(model.recovery, model.state, lane=dispatch.lane, reason=reason, now_ms=now_ms)
        self._switched(model, outcome, now_ms)
        lost = []
        for request in dispatch.requests:
            request.failures = (*request.failures, (dispatch.lane, reason))
            if hung or len(dispatch.requests) == 1:
                request.failed_alone |= {dispatch.lane}
            if len(request.failed_alone) < len(model.lanes):
                self._push(model, request)
                continue
            lost.append(request)
            lanes = tuple(range(len(model.lanes)))
            self._switched(model, placement.after_pardon(model.state, lanes=lanes, now_ms=now_ms), now_ms)
        self._refresh(model)
        return lost

    def sense(self, device: str, temperature_c: float, now_ms: float) -> None:
        """A device's temperature was read."""
        for model in self._models.values():
            outcome = placement.after_temperature(
                model.lanes, model.state, device=device, temperature_c=temperature_c, now_ms=now_ms
            )
            self._switched(model, outcome, now_ms)

    def presence(self, device: str, *, present: bool, now_ms: float) -> None:
        """A device vanished, or is there again."""
        for model in self._models.values():
            outcome = placement.after_presence(model.lanes, model.state, device=device, present=present, now_ms=now_ms)
            self._switched(model, outcome, now_ms)

    def switch(self, model_name: str, lane: int, now_ms: float, reason: str) -> None:
        """Use a lane from the next batch on, as long as it is not blocked; -1 lets the policy choose again."""
        model = self._models[model_name]
        self._switched(model, placement.pin(model.state, lane=lane, reason=reason, now_ms=now_ms), now_ms)

    def placement(self, model_name: str) -> PlacementState:
        """Where a model runs now."""
        return self._models[model_name].state

    def latency(self, model_name: str, lane: int) -> LatencyModel:
        """What is known of a lane's latency."""
        return self._models[model_name].latencies[lane]

    def expected_ms(self, model_name: str) -> float:
        """Milliseconds that a model's next call with one row should take; infinite where nothing is known."""
        model = self._models[model_name]
        latency = model.latencies[model.state.active]
        return predict_ms(latency, 1) if latency.sizes else NEVER

    def queued(self, model_name: str) -> int:
        """Requests of a model that wait."""
        return self._models[model_name].waiting

    def utilization(self, device: str, now_ms: float | None = None) -> float:
        """Share of a device's recent time that it was busy; without a time, when it last ended a batch."""
        known = self._devices[device]
        if now_ms is None:
            return known.utilization
        passed_ms = max(now_ms - known.since_ms, 0.0)
        busy_ms = passed_ms if known.in_use else 0.0
        return utilization_after(known.utilization, idle_ms=passed_ms - busy_ms, busy_ms=busy_ms)

    def _drop_late(self, now_ms: float) -> None:
        for model in self._models.values():
            self._head(model, now_ms)

    def _heads(self, now_ms: float) -> list[_Head]:
        """Each model's most urgent request, the most urgent first."""
        heads = []
        for model in self._models.values():
            request = self._head(model, now_ms) if model.waiting else None
            if request is None:
                continue
            lane = self._retry_lane(model, request) if request.failures else model.state.active
            heads.append(_Head(model, request, lane, self._own_finish_ms(model, request, lane, now_ms)))
        if len(heads) > 1:
            heads.sort(key=_by_urgency)
        return heads

    def _next_on(self, device: _Device, heads: list[_Head], now_ms: float) -> Dispatch | None:
        for head in heads:
            lane = self._lane_on(device, head, now_ms)
            if lane is not None and not self._is_capped(device, head.request, now_ms):
                return self._batch(device, head.model, head.request, lane, now_ms)
        return None

    def _model_of(self, dispatch: Dispatch) -> _Model | None:
        """The model that a batch was for, unless it is gone; another may have its name by now."""
        model = self._models.get(dispatch.model)
        return model if model is not None and dispatch.requests[0].number > model.since else None

    def _head(self, model: _Model, now_ms: float) -> Request | None:
        """The most urgent request that can still be in time; later ones are dropped, cancelled ones forgotten."""
        drops = self.rules.drop_late
        while model.queue:
            request = model.queue[0][3]
            if not request.waiting:
                heappop(model.queue)
            elif drops and is_late(
                now_ms=now_ms, deadline_ms=request.deadline_ms, shortest_ms=self._shortest_ms(model, request)
            ):
                heappop(model.queue)
                self._uncount(model, request)
                self.dropped.append(request)
            else:
                return request
        return None

    def _is_late(self, model: _Model, request: Request, now_ms: float) -> bool:
        return (
            request.deadline_ms != NEVER
            and self.rules.drop_late
            and is_late(now_ms=now_ms, deadline_ms=request.deadline_ms, shortest_ms=self._shortest_ms(model, request))
        )

    @staticmethod
    def _shortest_ms(model: _Model, request: Request) -> float:
        return 0.0 if request.is_probe else model.shortest_ms

    def _lane_on(self, device: _Device, head: _Head, now_ms: float) -> int | None:
        """The lane on which this device should run a model's next request, or None if it should wait for another."""
        model, request, own, own_finish_ms = head
        if model.devices[own] is device:
            return own if self._fits(device, model.costs[own]) else None
        return self._spill_lane(device, model, request, own_finish_ms, now_ms) if own_finish_ms else None

    @staticmethod
    def _retry_lane(model: _Model, request: Request) -> int:
        """The lane in use, or the first that has not failed a request yet; at last one that did not fail it alone."""
        order: list[int] = [model.state.active, *range(len(model.lanes))]
        failed = {lane for lane, _ in request.failures}
        untried: list[int] = [lane for lane in order if lane not in failed]
        return (untried or [lane for lane in order if lane not in request.failed_alone])[0]

    def _own_finish_ms(self, model: _Model, request: Request, own: int, now_ms: float) -> float:
        """When a request's own device would have finished it; 0 if it waits for that one in any case."""
        if self.rules.spill == "never" or request.failures:
            return 0.0
        busy = model.devices[own]
        if self._fits(busy, model.costs[own]):
            return 0.0
        backlog_ms = self._backlogs_ms.get(busy.name)
        own_finish_ms = max(busy.free_ms, now_ms) + (self._backlog_ms(busy) if backlog_ms is None else backlog_ms)
        late_ms = model.latest_deadline_ms if request.deadline_ms != NEVER else NEVER
        leaves = may_leave(self.rules, own_finish_ms=own_finish_ms, deadline_ms=late_ms, utilization=busy.utilization)
        return own_finish_ms if leaves else 0.0

    def _spill_lane(
        self, device: _Device, model: _Model, request: Request, own_finish_ms: float, now_ms: float
    ) -> int | None:
        for lane, found in enumerate(model.devices):
            if found is not device or not self._fits(device, model.costs[lane]):
                continue
            if not model.latencies[lane].sizes or placement.blocked(model.state.lanes[lane], now_ms):
                continue
            other_finish_ms = now_ms + predict_ms(model.latencies[lane], call_rows(model.batching, request.rows))
            if spills(own_finish_ms=own_finish_ms, other_finish_ms=other_finish_ms, deadline_ms=request.deadline_ms):
                return lane
        return None

    def _backlog_ms(self, device: _Device) -> float:
        """Milliseconds that all requests whose own device this is would take; kept until one of them changes."""
        backlog_ms = 0.0
        for model in self._models.values():
            if model.waiting and model.devices[model.state.active] is device:
                if not model.full_rows:
                    latency = model.latencies[model.state.active]
                    model.full_rows = batch_rows(model.batching, latency, model.batching.max_rows)
                    model.full_ms = predict_ms(latency, call_rows(model.batching, model.full_rows))
                backlog_ms += model.full_ms * max(model.waiting_rows / model.full_rows, 1.0)
        self._backlogs_ms[device.name] = backlog_ms
        return backlog_ms

    def _is_capped(self, device: _Device, head: Request, now_ms: float) -> bool:
        wait_ms = capped_for_ms(
            self.rules,
            utilization=device.utilization,
            idle_ms=now_ms - device.since_ms if not device.in_use else 0.0,
            priority=head.priority,
        )
        if wait_ms > 0:
            self._capped_until_ms = min(self._capped_until_ms, now_ms + wait_ms)
        return wait_ms > 0

    def _batch(self, device: _Device, model: _Model, head: Request, lane: int, now_ms: float) -> Dispatch:
        latency = model.latencies[lane]
        limit_ms = call_limit_ms(
            self.rules,
            now_ms=now_ms,
            deadline_ms=head.deadline_ms,
            others_wait=self.waiting > model.waiting,
        )
        limit_ms = min(limit_ms, model.lanes[lane].slow_ms)  # a batch must not count as slow for its size
        waiting = model.waiting_rows if not head.failures else 1
        most = batch_rows(model.batching, latency, waiting, limit_ms=limit_ms) if waiting > 1 else 1
        taken: list[Request] = []
        rows = 0
        while (request := self._head(model, now_ms)) is not None:
            if taken and (rows + request.rows > most or request.failures or head.failures):
                break
            heappop(model.queue)
            self._uncount(model, request)
            taken.append(request)
            rows += request.rows
        size = call_rows(model.batching, rows)
        predicted_ms = predict_ms(latency, size)
        cost = model.costs[lane]
        self._occupy(device, cost, now_ms, predicted_ms)
        return Dispatch(model.name, lane, device.name, cost, tuple(taken), rows, size, now_ms, predicted_ms)

    def _occupy(self, device: _Device, cost: int, now_ms: float, predicted_ms: float) -> None:
        if not device.in_use:
            device.utilization = utilization_after(
                device.utilization, idle_ms=max(now_ms - device.since_ms, 0.0), busy_ms=0.0
            )
            device.since_ms = now_ms
        device.in_use += cost
        device.free_ms = max(now_ms + predicted_ms, device.free_ms if device.in_use > cost else 0.0)

    def _release(self, dispatch: Dispatch, now_ms: float) -> None:
        device = self._devices[dispatch.device]
        device.in_use -= dispatch.cost
        if not device.in_use:
            busy_ms = max(now_ms - device.since_ms, 0.0)
            device.utilization = utilization_after(device.utilization, idle_ms=0.0, busy_ms=busy_ms)
            device.since_ms = device.free_ms = now_ms

    @staticmethod
    def _fits(device: _Device, cost: int) -> bool:
        return not device.in_use or device.in_use + cost <= device.capacity

    def _push(self, model: _Model, request: Request) -> None:
        heappush(model.queue, (*request.key, request.number, request))
        request.waiting = True
        model.waiting += 1
        model.waiting_rows += request.rows
        self.waiting += 1
        self._backlogs_ms.clear()

    def _uncount(self, model: _Model, request: Request) -> None:
        request.waiting = False
        model.waiting -= 1
        model.waiting_rows -= request.rows
        self.waiting -= 1
        self._backlogs_ms.clear()

    def _switched(self, model: _Model, outcome: tuple[PlacementState, Switch | None], now_ms: float) -> None:
        old, (model.state, switch) = model.state, outcome
        if model.state.wake_ms != old.wake_ms:
            self._wake_ms = min(each.state.wake_ms for each in self._models.values())
        if switch is not None:
            self.switches.append(ModelSwitch(model.name, switch, now_ms))
            self._refresh(model)

    def _refresh(self, model: _Model) -> None:
        """Note the shortest way to an answer; a full batch is measured out again when it is asked for."""
        model.full_rows = 0
        self._backlogs_ms.clear()
        shortest_ms = model.least_ms[model.state.active]
        if self.rules.spill != "never":
            for lane, known in enumerate(model.state.lanes):
                lane_ms = model.least_ms[lane]
                if lane_ms < shortest_ms and model.latencies[lane].sizes and not (known.hot or known.missing):
                    shortest_ms = lane_ms
        model.shortest_ms = shortest_ms
