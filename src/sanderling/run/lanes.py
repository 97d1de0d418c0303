"""Lanes: the ranked ways of running a package, each loaded when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sanderling.core.errors import EngineError, UnavailableError
from sanderling.core.machine import fingerprint, usable_cores
from sanderling.core.progress import Event
from sanderling.core.tensor import Array, Feeds
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.devices import list_engines
from sanderling.run.engines import engine
from sanderling.run.engines.base import DeviceInfo, DeviceKind, Engine, Executable, Fidelity
from sanderling.run.guard.inner import watched_model
from sanderling.run.isolated import RUN_TIMEOUT_S, NotBegun, Worker
from sanderling.run.placing import Place, choose_place, default_options, follow_entry, plan_entries
from sanderling.run.policy.document import Policy, device_names

SAFE_VARIANT = "fp32"
_LANES_A_DEVICE = 3
_CLOSE_S = 1.0


@dataclass(frozen=True)
class LanePlan:
    """A way of running, before it is loaded.

    Attributes:
        device: that it occupies: a kind such as ``cpu``, or a name such as ``gpu:1``.
        provider: engine that loads it, where it is not one of the installed ones.
    """

    place: Place
    device: str
    kind: DeviceKind
    provider: Engine | None = None

    @property
    def name(self) -> str:
        """For events, such as ``openvino/cpu/int8``."""
        return f"{self.place.engine}/{self.device}/{self.place.variant.id}"

    @property
    def size_bytes(self) -> int:
        """What it takes when it is loaded, as measured, else the size of its file."""
        place = self.place
        measured = place.entry.memory_bytes if place.entry is not None else place.variant.memory_bytes
        return measured or place.variant.memory_bytes or place.variant.size_bytes

    def without_spinning(self) -> LanePlan:
        """The same, for a graph that shares the cores with others."""
        return replace(self, place=replace(self.place, options=replace(self.place.options, spin=False)))

    @property
    def cost(self) -> int:
        """Cores that a call takes; 1 for a device that is not the processor."""
        return (self.place.options.threads or usable_cores()) if self.kind is DeviceKind.CPU else 1


class Lane:
    """A way of running that is loaded on first use. Usable from several threads.

    Args:
        package: whose variant it runs.
        plan: how.
        isolated: run the engine in a process of its own.
        timeout_s: after which a process that gives no answer is ended.
        watched: tensors inside the graph whose extremes its results hold as well.
        before_load: called with the lane before it is loaded, while it holds no lock.

    Raises:
        OptionError: the graph has no such tensors.
    """

    def __init__(
        self,
        package: Package,
        plan: LanePlan,
        *,
        isolated: bool = False,
        timeout_s: float = RUN_TIMEOUT_S,
        watched: Sequence[str] = (),
        before_load: Callable[[Lane], None] | None = None,
    ) -> None:
        self.plan = plan
        self._before_load = before_load
        self._copied_before = 0
        self.is_watched = bool(watched)
        variant = plan.place.variant
        self._file = watched_model(package, variant, watched) if watched else package.file(variant.file)
        self._worker = Worker(run_timeout_s=timeout_s) if isolated and plan.provider is None else None
        self._executable: Executable | None = None
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._calls = 0
        self._closed = False

    @property
    def name(self) -> str:
        """For events."""
        return self.plan.name

    @property
    def variant(self) -> Variant:
        """That it runs."""
        return self.plan.place.variant

    @property
    def isolated(self) -> bool:
        """Whether its engine runs in a process of its own."""
        return self._worker is not None

    @property
    def loaded(self) -> bool:
        """Whether a call need not wait for loading."""
        return _is_alive(self._executable)

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied between callers' arrays and its engine so far."""
        executable = self._executable
        return self._copied_before + (executable.copied_bytes if executable is not None else 0)

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once; loaded first if it is not, and again after its process ended.

        Raises:
            EngineError: loading or execution failed, or the lane is closed.
            ModelError: the engine does not take the graph.
        """
        try:
            return self._run_once(feeds, outputs)
        except NotBegun:  # its process ended while this call waited for another one's
            return self._run_once(feeds, outputs)

    def _run_once(self, feeds: Feeds, outputs: Feeds | None) -> dict[str, Array]:
        executable = self._ready(calls=1)
        try:
            return executable.run(feeds, outputs)
        finally:
            with self._lock:
                self._calls -= 1
                if self._closed:
                    self._idle.notify_all()

    def load(self) -> Executable:
        """What runs it, loaded if it is not.

        Raises:
            EngineError: loading failed, or the lane is closed.
            ModelError: the engine does not take the graph.
        """
        return self._ready()

    def release(self) -> bool:
        """Give back what it holds until it is needed again; False where a call runs or nothing is held."""
        with self._lock:
            if self._calls or self._executable is None:
                return False
            self._end()
            return True

    def close(self, *, timeout_s: float = _CLOSE_S) -> None:
        """Give back what it holds for good, once the calls that run have ended.

        A call that does not end in time keeps its engine; its process is ended where it has one.
        """
        with self._lock:
            self._closed = True
            if self._idle.wait_for(lambda: not self._calls, timeout_s) or self._worker is not None:
                self._end()

    def _ready(self, *, calls: int = 0) -> Executable:
        """What runs it, with so many more calls under way; loading, which may hang, holds up nothing but calls."""
        while (executable := self._if_loaded(calls)) is None:
            if self._before_load is not None:
                self._before_load(self)
            with self._loading:
                if self.loaded or self._closed:
                    continue
                made = self._load()
                with self._lock:
                    if not self._closed:
                        self._forget()
                        self._executable = made
                        continue
            made.close()
            if self._worker is not None:  # which began anew for a lane that was closed meanwhile
                self._worker.close()
        return executable

    def _if_loaded(self, calls: int) -> Executable | None:
        with self._lock:
            if self._closed:
                raise EngineError("the session is closed; load the package again")
            if not _is_alive(self._executable):
                return None
            self._calls += calls
            return self._executable

    def _forget(self) -> Executable | None:
        """Drop what ran it, and keep its count of copies."""
        self._copied_before, executable, self._executable = self.copied_bytes, self._executable, None
        return executable

    def _end(self) -> None:
        executable = self._forget()
        if self._worker is not None:
            self._worker.close()
        if executable is not None and not self._calls:
            executable.close()

    def _load(self) -> Executable:
        place = self.plan.place
        file = self._file
        if self._worker is not None:
            return self._worker.load(place.engine, file, place.options)
        return (self.plan.provider or engine(place.engine)).load(file, place.options)


def _is_alive(executable: Executable | None) -> bool:
    return executable is not None and getattr(executable, "alive", True)


def rank_lanes(
    package: Package,
    policy: Policy,
    *,
    variant: str | None = None,
    threads: int = 0,
    lean: bool = False,
    emulated: Engine | None = None,
) -> tuple[list[LanePlan], list[Event]]:
    """The ways of running that a policy allows here, the preferred one first, and what could not be had.

    For each device in the policy's order, and each precision of its ladder: what the package's plan found best there,
    else the first engine here that offers it. Without priorities: the emulated devices as they come, or what the
    package's plan says. FP32 on a device that is in the list comes last, as the safe way.

    Args:
        package: to run.
        policy: its priorities and precision ladder.
        variant: only this one; the plan's, or the chosen one, by default.
        threads: of one call; 0 leaves it to the plan or the engine.
        lean: prefer little memory.
        emulated: an engine whose devices come before the real ones of that name.

    Raises:
        OptionError: there is no such variant.
        UnavailableError: none of the policy's devices is here.
    """
    if package.manifest.multimodal is not None:
        return _of_branches(package, policy, variant, threads)
    first = choose_place(package, variant=variant, threads=threads, lean=lean)
    events = [first.event] if first.event else []
    emulated_names = tuple(info.device for info in emulated.devices()) if emulated is not None else ()
    devices = policy.device_priorities or emulated_names
    if not devices and not policy.precision_ladder:
        lanes = [plan_lane(first)]
        safe = _safe_lanes(package, lanes, variant, threads=threads, lean=lean) if policy.guard.checks_anything else ()
        return [*lanes, *safe], events
    lanes = []
    for device in devices or (plan_lane(first).device,):
        found = list(_on_device(package, policy, device, first, threads=threads, lean=lean, emulated=emulated))
        if not found:
            reason = f"the policy names it, and no engine here has it for a variant of {package.manifest.name}"
            events.append(Event(kind="device-missing", subject=device, reason=reason))
        lanes += found
    if not lanes:
        here = sorted({info.device for info in _hardware(emulated)})
        named = ", ".join(policy.device_priorities)
        raise UnavailableError(f"none of the policy's devices ({named}) is here: available are {', '.join(here)}")
    lanes += _safe_lanes(package, lanes, variant, threads=threads, lean=lean)
    return _distinct(lanes), events


def _of_branches(
    package: Package, policy: Policy, variant: str | None, threads: int
) -> tuple[list[LanePlan], list[Event]]:
    """The only way of running several branches; FP32 is the safe way where results are checked."""
    from sanderling.run.composite import composite_lane  # which needs sessions, and they need lanes

    lanes = [composite_lane(package, variant=variant, threads=threads)]
    if policy.guard.checks_anything and variant is None and lanes[0].place.variant.id != SAFE_VARIANT:
        lanes.append(composite_lane(package, variant=SAFE_VARIANT, threads=threads))
    if not (policy.device_priorities or policy.precision_ladder):
        return lanes, []
    reason = "its branches run where each one's own plan says: the policy's devices and precisions are for one graph"
    return lanes, [Event(kind="policy-not-followed", subject=package.manifest.name, reason=reason)]


def _on_device(
    package: Package, policy: Policy, device: str, first: Place, *, threads: int, lean: bool, emulated: Engine | None
) -> Iterator[LanePlan]:
    """The ways of running on one device, precision by precision."""
    wanted = policy.precision_ladder or (first.variant.precision,)
    infos = [info for info in _hardware(emulated) if matches(device, info.device, info.kind)]
    for precision in wanted:
        variants = [each for each in package.manifest.variants if each.precision is precision]
        if not policy.precision_ladder:
            variants = [first.variant]
        for variant in variants:
            real = [info for info in infos if emulated is None or info.engine != emulated.name]
            for info in infos:
                if emulated is not None and info.engine == emulated.name:
                    options = default_options(variant, threads=threads, lean=lean, device=info.device)
                    yield _on(Place(emulated.name, variant, options), info, emulated)
            yield from _planned(package, variant, real, threads=threads, lean=lean)


def _planned(
    package: Package, variant: Variant, infos: list[DeviceInfo], *, threads: int, lean: bool
) -> Iterator[LanePlan]:
    """What the plan says about a variant on a device; else the first engine of the variant that has the device."""
    own = fingerprint()
    known = {(info.engine, info.device): info for info in infos}
    entries = [
        entry
        for entry in plan_entries(package, own)
        if entry.variant == variant.id and (entry.engine, entry.device) in known
    ]
    for entry in entries[:_LANES_A_DEVICE]:
        place = follow_entry(package, entry, own, threads=threads, lean=lean)
        yield _on(place, known[entry.engine, entry.device])
    if entries:
        return
    order = {name: index for index, name in enumerate(variant.engines)}
    able = [info for info in infos if variant.precision in info.precisions]
    for info in sorted(able, key=lambda info: order.get(info.engine, len(order)))[:1]:
        options = default_options(variant, threads=threads, lean=lean, device=info.device)
        yield _on(Place(info.engine, variant, options), info)


def _safe_lanes(
    package: Package, lanes: list[LanePlan], variant: str | None, *, threads: int, lean: bool
) -> Iterator[LanePlan]:
    """FP32 on the last of the devices that runs it, unless only one variant was asked for."""
    safe = package.manifest.variant(SAFE_VARIANT)
    if safe is None or variant not in (None, SAFE_VARIANT) or any(lane.place.variant is safe for lane in lanes):
        return
    for lane in reversed(lanes):
        if lane.provider is not None:
            options = default_options(safe, threads=threads, lean=lean, device=lane.device)
            yield LanePlan(Place(lane.place.engine, safe, options), lane.device, lane.kind, lane.provider)
            return
        if lane.kind is DeviceKind.CPU:
            yield plan_lane(Place(safe.engines[0], safe, default_options(safe, threads=threads, lean=lean)))
            return


def _hardware(emulated: Engine | None) -> Iterable[DeviceInfo]:
    """Devices that may be chosen: real ones, and those that the user wants emulated."""
    if emulated is not None:
        yield from emulated.devices()
    for state in list_engines():
        yield from (info for info in state.devices if info.fidelity is Fidelity.HARDWARE)


def matches(wanted: str, device: str, kind: DeviceKind) -> bool:
    """Whether a policy's word (``npu``, ``gpu:1``) means a device."""
    return wanted in device_names(device, kind.value)


def plan_lane(place: Place) -> LanePlan:
    """The lane of a place; only where it may not be the processor, the engine is asked for its devices."""
    device = place.options.device
    if device in ("", "cpu"):
        return LanePlan(place, "cpu", DeviceKind.CPU)
    info = next((info for info in engine(place.engine).devices() if info.device == device), None)
    return LanePlan(place, device, info.kind if info is not None else DeviceKind.CPU)


def _on(place: Place, info: DeviceInfo, provider: Engine | None = None) -> LanePlan:
    device = "cpu" if info.kind is DeviceKind.CPU and provider is None else info.device
    return LanePlan(place, device, info.kind, provider)


def _distinct(lanes: list[LanePlan]) -> list[LanePlan]:
    seen: set[tuple[object, ...]] = set()
    kept = []
    for lane in lanes:
        options = lane.place.options
        key = (lane.place.engine, lane.device, lane.place.variant.id, options.compute, options.threads)
        if key not in seen:
            seen.add(key)
            kept.append(lane)
    return kept
