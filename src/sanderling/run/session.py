"""The session: a package, loaded, that takes arrays and returns arrays, by the rules of a policy."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from sanderling.core.closing import Closing
from sanderling.core.errors import EngineError, OptionError, QueueFullError, SanderlingError, TensorError
from sanderling.core.machine import usable_cores
from sanderling.core.progress import Event
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array, Feeds, TensorSpec, check_feeds, check_outputs, empty_arrays
from sanderling.model.manifest import Manifest, RowCost, Variant
from sanderling.model.package import Package
from sanderling.model.plan import PlanEntry
from sanderling.run.batches import Rows, TensorPool
from sanderling.run.conditions import Conditions, limits_heat
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.engines.base import DeviceKind, Placement
from sanderling.run.guard.response import GuardResponse
from sanderling.run.isolated import IsolatedExecutable
from sanderling.run.lanes import Lane, LanePlan, matches, plan_lane, rank_lanes
from sanderling.run.placing import Requirement, check_placement, choose_place, parse_requirement
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.document import POLICY, BatchTuning, Guard, Policy, read_policy
from sanderling.run.policy.latency import LatencyModel, from_density, from_table
from sanderling.run.policy.placement import LaneRule
from sanderling.run.policy.rules import batch_rules, deadline_at, lane_rule, recovery_rule, scheduling_rules
from sanderling.run.results import Outputs
from sanderling.run.runtime import DRAIN_S, FATES, Runtime
from sanderling.run.sensors import Sensors, SystemSensors
from sanderling.run.serving import ServedPackage
from sanderling.run.statistics import Statistics
from sanderling.run.tickets import Call

_NUMBERS = itertools.count()
_OPEN: weakref.WeakSet[Session] = weakref.WeakSet()
_FIRST_RETRY_S = 0.001  # of a coroutine that waits for room in a queue, doubled
_FULL_RETRY_S = 0.032
PLAIN = Policy(batch_tuning=BatchTuning(max_batch_size=1), guard=Guard(check_finite=False))


class Shared(Protocol):
    """What the sessions of a pool have in common."""

    @property
    def runtime(self) -> Runtime:
        """That runs the requests of all."""

    @property
    def conditions(self) -> Conditions | None:
        """What the sensors say, where they are read."""

    def make_room(self, name: str, size_bytes: int) -> None:
        """A model is about to hold as many bytes."""

    def forget(self, session: object) -> None:
        """A session was closed."""


class Session(Closing):
    """Runs a package. Close it, or use it in a ``with`` block.

    Attributes:
        package: that was opened.
        policy: that it follows.
        conditions: what the sensors say, where the policy limits heat or sensors were given; the pool's in a pool.
        opened_at: file and line of the program that opened it.
        number: of sessions that this process opened before.
    """

    def __init__(
        self,
        package: Package,
        policy: Policy,
        plans: Sequence[LanePlan],
        events: Sequence[Event] = (),
        *,
        requirement: Requirement | None = None,
        sensors: Sensors | None = None,
        shared: Shared | None = None,
        name: str = "",
    ) -> None:
        self.package = package
        self.policy = policy
        self.opened_at = _caller()
        self.number = next(_NUMBERS)
        rows = Rows(self.inputs, self.outputs, profiles=policy.batch_tuning.profiles)
        self._adding = threading.Lock()
        self._shared = shared
        self._runtime = shared.runtime if shared is not None else new_runtime(policy)
        self._closed = False
        lanes = [self._lane(plan) for plan in plans]
        self._served = ServedPackage(
            name or package.manifest.name, package, lanes, rows, TensorPool(policy.tensor_pool_size)
        )
        for event in events:
            self._runtime.tell(event, model=self._served.name)
        try:
            first = self._load_first(hot=policy.recovery.loading == "hot")
            if requirement is not None:
                check_placement(lanes[first].load().placement, requirement)
            if policy.guard.checks_anything:
                self._served.guard = self._guard(lanes[first])
            self._runtime.add(
                self._served,
                [self._rule(lane) for lane in lanes],
                [_prior(lane, self.manifest.row_cost) for lane in lanes],
                batching=_batching(policy, rows),
                recovery=recovery_rule(policy),
                costs=[lane.plan.cost for lane in lanes],
                capacities=_capacities(lanes),
            )
        except BaseException:
            self._close_lanes()
            raise
        self.conditions = shared.conditions if shared is not None else self._conditions(sensors)
        _OPEN.add(self)

    @property
    def name(self) -> str:
        """That its runtime knows it by."""
        return self._served.name

    @property
    def runtime(self) -> Runtime:
        """What runs its requests; that of the pool in a pool."""
        return self._runtime

    @property
    def manifest(self) -> Manifest:
        """The package's manifest."""
        return self.package.manifest

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What ``run`` expects."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What ``run`` returns."""
        return self.manifest.outputs

    @property
    def accepted(self) -> tuple[TensorSpec, ...]:
        """What one request may bring: any number of rows where calls of a fixed size are filled up."""
        return self._served.rows.accepted

    @property
    def returned(self) -> tuple[TensorSpec, ...]:
        """What one request gets for that; an axis of one name has the size that it has in the inputs."""
        return self._served.rows.returned

    @property
    def variant(self) -> Variant:
        """The variant that runs now."""
        return self._active.variant

    @property
    def engine(self) -> str:
        """The engine that runs it now, by name."""
        return self._active.plan.place.engine

    @property
    def device(self) -> str:
        """The device that it runs on now."""
        return self._active.plan.device

    @property
    def plan_entry(self) -> PlanEntry | None:
        """Of the package's plan that is followed now; None when there is none for this kind of device."""
        return self._active.plan.place.entry

    @property
    def placement(self) -> Placement:
        """Where the engine says that the graph runs."""
        return self._active.load().placement

    @property
    def lane(self) -> str:
        """The way of running it that is used now, by name."""
        return self._active.name

    @property
    def guard_counts(self) -> dict[str, int]:
        """Trips, retries, stale results and shadow runs so far; empty where nothing is checked."""
        return self._served.guard.counts if self._served.guard is not None else {}

    @property
    def lanes(self) -> tuple[str, ...]:
        """The ways of running it, the preferred one first, such as ``openvino/cpu/int8``."""
        return tuple(lane.name for lane in self._served.lanes)

    @property
    def events(self) -> list[Event]:
        """What was not done as planned, switched or given up, with the reason; the last thousand."""
        alone, name = self._shared is None, self._served.name
        return [timed.event for timed in list(self._runtime.events) if alone or timed.model == name]

    @property
    def copied_bytes(self) -> int:
        """Bytes copied so far between arrays that were given and the engines, and to join callers' rows."""
        return self._served.copied_bytes

    def run(
        self,
        feeds: Feeds | Array,
        outputs: Feeds | None = None,
        *,
        deadline_ms: float | None = None,
        priority: int = 0,
    ) -> Outputs:
        """Run once.

        Args:
            feeds: an array for every input by name; a single array when there is one input.
            outputs: an array for every output by name, which the results are written to; new ones by default.
            deadline_ms: milliseconds from now in which the result is of use; the policy's default without it.
            priority: larger is sooner; below 0 is background work.

        Returns:
            An array for every output by name, those of ``outputs`` where they are given. Rows of a batch are views
            of one array.

        Raises:
            TensorError: a name, dtype or shape is wrong, or an output cannot be written to.
            DeadlineError: it could not be finished in time.
            QueueFullError: too many requests wait.
            EngineError: execution failed on every lane, or the session is closed.
        """
        call = self._call(feeds, outputs)
        return self._runtime.run(self._served.name, call, deadline_ms=self._due_ms(deadline_ms), priority=priority)

    def submit(
        self,
        feeds: Feeds | Array,
        outputs: Feeds | None = None,
        *,
        deadline_ms: float | None = None,
        priority: int = 0,
        stream: Hashable = None,
        wait: bool = True,
        visit: Callable[[], None] | None = None,
    ) -> Future[Outputs]:
        """Run once and return at once; arguments and errors as of ``run``.

        Results come in the order of submission, for each stream and priority.

        Args:
            feeds: must not change until the future is done.
            outputs: as of ``run``.
            deadline_ms: as of ``run``.
            priority: as of ``run``.
            stream: whose order is kept, and whose last good result a guard may give again; the calling thread's by
                default.
            wait: for room in a full queue, where the policy says so; without it a full queue always refuses.
            visit: as of ``Runtime.submit``.

        Returns:
            A future that may be cancelled until its batch starts.
        """
        return self._runtime.submit(
            self._served.name,
            self._call(feeds, outputs, stream),
            deadline_ms=self._due_ms(deadline_ms),
            priority=priority,
            wait=wait,
            visit=visit,
        )

    async def run_async(self, feeds: Feeds | Array, *, deadline_ms: float | None = None, priority: int = 0) -> Outputs:
        """Run once without blocking the event loop; arguments and errors as of ``run``. A task is a stream."""
        call = self._call(feeds, None, asyncio.current_task())
        end_ms = time.monotonic() * 1e3 + self._due_ms(deadline_ms)
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                future = self._runtime.submit(
                    self._served.name,
                    call,
                    deadline_ms=max(end_ms - time.monotonic() * 1e3, 0.0),
                    priority=priority,
                    wait=False,
                )
            except QueueFullError:
                if self.policy.scheduling.when_full == "reject":
                    raise
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _FULL_RETRY_S)
            else:
                return await asyncio.wrap_future(future)

    def buffers(self, rows: int = 1) -> tuple[dict[str, Array], dict[str, Array]]:
        """Arrays for the inputs and for ``outputs`` that the engine in use reads and writes without a copy.

        Where it runs in a process of its own, they are memory that both share: the same one every time, for one call at
        a time. After a switch, a release or a crash they are copied as any other array. Where the engine runs in this
        process, they are new arrays.

        Args:
            rows: along a dynamic first axis; any other dynamic axis is 1.

        Raises:
            TensorError: an input or output is of strings.
            EngineError: the session is closed, or loading failed.
        """
        executable = self._active.load()
        if isinstance(executable, IsolatedExecutable):
            returned = executable.output_buffers(rows)
            return executable.buffers(rows), {spec.name: returned[spec.name] for spec in self.outputs}
        ways = self._served.rows
        return empty_arrays(ways.accepted, rows), empty_arrays(ways.returned, rows)

    def switch(self, *, device: str | None = None, precision: str | None = None) -> str:
        """Use another device or precision from the next batch on; without arguments the policy chooses again.

        What runs is not disturbed, what waits is not lost. A lane that fails, or whose device is hot, is left again.

        Args:
            device: kind or name, such as ``gpu`` or ``gpu:0``.
            precision: such as ``int8``; a variant's id does as well.

        Returns:
            Name of the lane.

        Raises:
            OptionError: there is no such way of running here; the message says which there are.
        """
        if self._served.guard is not None:
            self._served.guard.reset()
        if device is None and precision is None:
            self._runtime.switch(self._served.name, -1, "the policy chooses again")
            return self._active.name
        lane = self._find_lane(device, precision)
        self._runtime.switch(self._served.name, lane, "asked for")
        return self._served.lanes[lane].name

    def statistics(self) -> Statistics:
        """What has happened so far; of all models in a pool where requests and latencies are concerned."""
        counts, latencies = self._runtime.tallies()
        reading = self.conditions.last if self.conditions is not None else None
        first = self.conditions.first if self.conditions is not None else None
        energy_j = None
        if reading is not None and first is not None and reading.energy_j is not None and first.energy_j is not None:
            energy_j = (reading.energy_j - first.energy_j) / counts["completed"] if counts["completed"] else None
        return Statistics(
            lane=self.lane,
            requests={kind: counts[kind] for kind in FATES},
            batches=counts["batches"],
            failed_batches=counts["failed batches"],
            switches=counts["switches"],
            waiting=self._runtime.queued(self._served.name),
            latency_ms=percentiles(latencies) if latencies else None,
            copied_bytes=self.copied_bytes,
            guard=self.guard_counts,
            energy_j_per_inference=energy_j,
        )

    @property
    def devices(self) -> dict[str, str]:
        """Kind of every device that it may use, by name."""
        return {lane.plan.device: lane.plan.kind.value for lane in self._served.lanes}

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._runtime.queued(self._served.name)

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or run."""
        return self._runtime.is_busy(self._served.name)

    @property
    def is_loaded(self) -> bool:
        """Whether any of its ways of running holds memory."""
        return any(lane.loaded for lane in self._served.lanes)

    @property
    def loaded_lanes(self) -> tuple[Lane, ...]:
        """Its ways of running that hold memory; calls of them pass by the queue and the guard."""
        return tuple(lane for lane in self._served.lanes if lane.loaded)

    @property
    def size_bytes(self) -> int:
        """What the loaded ways of running take, as measured when the package was built or tuned, else their files'."""
        return sum(lane.plan.size_bytes for lane in self._served.lanes if lane.loaded)

    @property
    def used_s(self) -> float:
        """When a request last ran, on the monotonic clock."""
        return self._served.used_s

    @property
    def pooled_bytes(self) -> int:
        """Bytes of buffers for batches that are kept for later."""
        return self._served.pool.held_bytes

    def clear_buffers(self) -> int:
        """Drop buffers that are kept for later; returns their bytes."""
        return self._served.pool.clear()

    def load(self) -> None:
        """Load the way of running that is in use, if it is not.

        Raises:
            EngineError: loading failed, or the session is closed.
        """
        self._active.load()

    def release(self) -> bool:
        """Give memory back until the next request; False where requests run, or nothing is held."""
        released = [lane.release() for lane in self._served.lanes]
        return any(released)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Let what waits and runs end within ``drain_s``, and give back what the session holds.

        A second call does nothing.
        """
        if self._closed or self._runtime.is_forked:
            return
        if self._served.guard is not None:
            self._served.guard.close()
        self._runtime.remove(
            self._served.name, reason="the session was closed before this request ran", drain_s=drain_s
        )
        if self._shared is not None:
            self._shared.forget(self)
        else:
            if self.conditions is not None:
                self.conditions.close()
            self._runtime.close()
        self._close_lanes()
        self._closed = True
        _OPEN.discard(self)

    @property
    def _active(self) -> Lane:
        return self._served.lanes[self._runtime.active(self._served.name)]

    def _call(self, feeds: Feeds | Array, outputs: Feeds | None, stream: Hashable = None) -> Call:
        named = feeds if isinstance(feeds, Mapping) else self._only_input(feeds)
        check_feeds(named, self.accepted)
        rows = self._served.rows
        count = rows.check_count(named)
        if outputs is not None:
            check_outputs(outputs, rows.returned, named)
        return Call(named, count, outputs, threading.get_ident() if stream is None else stream)

    def _due_ms(self, deadline_ms: float | None) -> float:
        due_ms = deadline_at(self.policy, arrival_ms=0.0, deadline_ms=deadline_ms)
        if math.isnan(due_ms):
            raise OptionError("deadline_ms is not a number: expected milliseconds from now")
        return due_ms

    def _only_input(self, array: Array) -> Feeds:
        if len(self.inputs) != 1:
            raise TensorError(f"one array was given: the model has inputs {'; '.join(map(str, self.inputs))}")
        return {self.inputs[0].name: array}

    def _find_lane(self, device: str | None, precision: str | None) -> int:
        for index, lane in enumerate(self._served.lanes):
            names = (lane.variant.id, lane.variant.precision.value)
            if device is not None and not matches(device.lower(), lane.plan.device, lane.plan.kind):
                continue
            if precision is None or precision.lower() in names:
                return index
        variant = None if precision is None else self.manifest.variant(precision.lower())
        if variant is not None and device is None:
            return self._add_lane(plan_lane(choose_place(self.package, variant=variant.id, threads=0, lean=False)))
        wanted = " and ".join(f"'{word}'" for word in (device, precision) if word)
        raise OptionError(f"no way of running {wanted} here: available are {', '.join(self.lanes)}")

    def _lane(self, plan: LanePlan) -> Lane:
        if self._shared is not None:
            plan = plan.without_spinning()
        isolated = self.policy.isolation == "process"
        return Lane(
            self.package,
            plan,
            isolated=isolated,
            timeout_s=self.policy.recovery.hang_timeout / 1e3,
            watched=self.policy.guard.inner_tensors,
            before_load=self._make_room if self._shared is not None else None,
        )

    def _make_room(self, lane: Lane) -> None:
        assert self._shared is not None
        self._shared.make_room(self._served.name, self.size_bytes + lane.plan.size_bytes)

    def _guard(self, first: Lane) -> GuardResponse:
        guard = GuardResponse(
            self.package,
            self.policy,
            lambda: self._served.lanes,
            run_again=self._served.run_again,
            tell=partial(self._runtime.tell, model=self._served.name),
            take_safe=lambda lane: self._runtime.switch(self._served.name, lane, "the breaker has opened"),
        )
        guard.learn(first)
        return guard

    def _add_lane(self, plan: LanePlan) -> int:
        lane = self._lane(plan)
        with self._adding:
            for index, known in enumerate(self._served.lanes):
                if known.name == lane.name:  # another thread was sooner
                    return index
            self._served.lanes = (*self._served.lanes, lane)
            self._runtime.add_lane(
                self._served.name, self._rule(lane), _prior(lane, self.manifest.row_cost), cost=plan.cost
            )
            return len(self._served.lanes) - 1

    def _conditions(self, sensors: Sensors | None) -> Conditions | None:
        if sensors is None and not limits_heat(self.policy):
            return None
        return Conditions(self._runtime, self.policy, self.devices, sensors or SystemSensors())

    def _rule(self, lane: Lane) -> LaneRule:
        return lane_rule(self.policy, lane.name, lane.plan.device, lane.plan.kind.value)

    def _load_first(self, *, hot: bool) -> int:
        """Load the first lane that can be, or all of them; returns the first one's index."""
        failures: list[str] = []
        first: int | None = None
        for index, lane in enumerate(self._served.lanes):
            try:
                lane.load()
            except SanderlingError as error:
                if len(self._served.lanes) == 1:
                    raise
                failures.append(f"{lane.name}: {error}")
                event = Event(kind="load-failed", subject=lane.name, reason=str(error))
                self._runtime.tell(event, model=self._served.name)
            else:
                first = index if first is None else first
                if not hot:
                    break
        if first is None:
            raise EngineError(f"no way of running {self.manifest.name} loads: {'; '.join(failures)}")
        return first

    def _close_lanes(self) -> None:
        for lane in self._served.lanes:
            lane.close()


def load(
    path: str | Path,
    *,
    policy: str | Path | Policy | None = None,
    variant: str | None = None,
    threads: int = 0,
    lean: bool = False,
    require: str | None = None,
    check_hashes: bool = True,
    sensors: Sensors | None = None,
    emulate: EmulatedDevices | None = None,
) -> Session:
    """Open a package and load it as its plan for this kind of device says, or its chosen variant without a plan.

    Args:
        path: package folder, or a zip of one.
        policy: a policy, or its file; the package's own, or none, by default. Without one, calls are neither joined
            to batches nor checked, and nothing is fallen back to.
        variant: id such as ``int8``; the plan's, or the chosen one, by default.
        threads: of one call; 0 leaves it to the plan or the engine.
        lean: prefer little resident memory to the last few percent of speed.
        require: where the graph must run, such as ``npu=95%``; never a silent fallback.
        check_hashes: compare every file's hash before it is used.
        sensors: to read instead of this machine's.
        emulate: devices that stand in for hardware that is not here, see ``sanderling.run.emulation``.

    Raises:
        PackageError: the package is broken or altered.
        OptionError: there is no such variant, the requirement has another form, or the policy has a fault.
        UnavailableError: none of the policy's devices is here.
        NotMetError: less of the graph than required runs there.
    """
    requirement = parse_requirement(require) if require else None
    package = Package.open(path, check_hashes=check_hashes)
    check_tensors(package)
    rules = read_rules(package, policy)
    plans, events = rank_lanes(package, rules, variant=variant, threads=threads, lean=lean, emulated=emulate)
    return Session(package, rules, plans, events, requirement=requirement, sensors=sensors or emulate)


def check_tensors(package: Package) -> None:
    """Check that a package takes and returns arrays.

    Raises:
        OptionError: it is a language model's.
    """
    if package.manifest.text is not None:
        raise OptionError(
            f"package '{package.manifest.name}' is a language model: use sanderling chat, sanderling generate or "
            "sanderling.tasks.text"
        )


def check_one_graph(package: Package) -> None:
    """Check that a package is one graph that takes and returns arrays.

    Raises:
        OptionError: it is a language model's, or has several branches.
    """
    check_tensors(package)
    if package.manifest.multimodal is not None:
        folders = ", ".join(branch.folder for branch in package.manifest.multimodal.branches)
        raise OptionError(
            f"package '{package.manifest.name}' has several graphs: give the package of one of its branches, {folders}"
        )


def read_rules(package: Package, policy: str | Path | Policy | None) -> Policy:
    """The policy that was given, else the package's own, else one that changes nothing."""
    if isinstance(policy, Policy):
        return policy
    if policy is not None:
        return read_policy(policy)
    return read_policy(package.file(POLICY)) if POLICY in package.manifest.files else PLAIN


def new_runtime(policy: Policy) -> Runtime:
    """A runtime by a policy's rules."""
    return Runtime(
        scheduling_rules(policy),
        wait_when_full=policy.scheduling.when_full == "wait",
        hang_timeout_ms=policy.recovery.hang_timeout,
    )


def open_sessions() -> tuple[Session, ...]:
    """Sessions of this process that are alive and not closed, oldest first."""
    return tuple(sorted(_OPEN, key=lambda session: session.number))


def _batching(policy: Policy, rows: Rows) -> BatchRules:
    if not rows.batched:
        return BatchRules(max_rows=1)
    return batch_rules(policy, (rows.fixed,) if rows.fixed else ())


def _prior(lane: Lane, cost: RowCost | None) -> LatencyModel:
    """What the package's plan says about a lane's latency, and its computation about that of batches."""
    entry = lane.plan.place.entry
    if entry is None:
        return LatencyModel()
    if cost is None or entry.batch != 1:
        return from_table({entry.batch: entry.p50_ms})
    return from_density(cost.macs, cost.weight_bytes, cost.activation_bytes, row_ms=entry.p50_ms)


def _capacities(lanes: Sequence[Lane]) -> dict[str, int]:
    """How much of each device there is: the processor has its cores, any other device runs one call at a time."""
    return {lane.plan.device: usable_cores() if lane.plan.kind is DeviceKind.CPU else 1 for lane in lanes}


def _caller() -> str:
    """File and line of the nearest caller outside Sanderling."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "sanderling":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
