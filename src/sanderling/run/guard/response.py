"""What a failed check leads to: FP32 instead, the last good result, or an error; and at last the circuit breaker."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

from sanderling.core.errors import GuardError, OutputError, SanderlingError
from sanderling.core.machine import describe_machine
from sanderling.core.progress import Event
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.guard.checks import Checks
from sanderling.run.guard.fault import Fault
from sanderling.run.guard.inner import rows_of, split
from sanderling.run.guard.reproducer import write_reproducer
from sanderling.run.guard.shadow import ShadowSampler, Tolerance, disagreement
from sanderling.run.lanes import SAFE_VARIANT, Lane
from sanderling.run.policy.breaker import BreakerState, after_trip
from sanderling.run.policy.document import Policy
from sanderling.run.policy.rules import breaker_rules
from sanderling.run.results import Outputs
from sanderling.run.tickets import ALONE, Call

_SHADOWS = 16  # that may wait to be compared
_END_S = 1.0
_KINDS = 64  # streams and shapes of inputs whose last good result is kept

_Kind = tuple[Hashable, tuple[tuple[int, ...], ...]]
_Shadow = tuple[Lane, Lane, Call, dict[str, Array]]


class GuardResponse:
    """Checks the results of one package, and acts by the policy. Usable from several threads.

    Args:
        package: that runs.
        policy: with what is checked.
        lanes: gives the ways of running; the first with FP32 is the safe one.
        run_again: runs a request by itself on a lane; returns the model's own outputs.
        tell: told about every trip.
        take_safe: called with the safe lane's index when the breaker opens.
    """

    def __init__(
        self,
        package: Package,
        policy: Policy,
        lanes: Callable[[], Sequence[Lane]],
        *,
        run_again: Callable[[Lane, Feeds], dict[str, Array]],
        tell: Callable[[Event], None],
        take_safe: Callable[[int], None],
    ) -> None:
        self._counts: Counter[str] = Counter()
        self._package = package
        self._policy = policy
        self._checks = Checks.of(policy.guard, package, package.manifest.outputs)
        self._lanes = lanes
        self._run_again = run_again
        self._tell, self._take_safe = tell, take_safe
        self._rules = breaker_rules(policy)
        self._breaker = BreakerState()
        self._last_good: dict[_Kind, dict[str, Array]] = {}  # the latest of them last
        self._closed = False
        self._lock = threading.Lock()
        self._sampler = ShadowSampler(policy.guard.shadow_share)
        self._numbers = itertools.count()
        self._shadows: queue.Queue[_Shadow | None] = queue.Queue(_SHADOWS)
        self._shadow_thread: threading.Thread | None = None
        for note in self._checks.notes:
            tell(note)

    @property
    def counts(self) -> dict[str, int]:
        """Trips, retries, stale results, shadow runs and those that were left out because too many waited."""
        with self._lock:
            return dict(self._counts)

    def reset(self) -> None:
        """Close the breaker: the session has left the safe variant."""
        with self._lock:
            self._breaker = BreakerState()

    def learn(self, lane: Lane) -> None:
        """Take the limits of watched tensors from the golden inputs."""
        if self._policy.guard.inner_tensors:
            golden = self._package.golden()
            self._checks.learn([split(lane.run(golden.call(index)))[1] for index in range(len(golden))])

    def checked(
        self,
        lane: Lane,
        arrays: Mapping[str, Array],
        calls: Sequence[Call],
        parts: Callable[[dict[str, Array]], list[dict[str, Array]]],
        rows: int,
    ) -> list[Outputs | SanderlingError]:
        """Check a call's results, and give each request what the policy says.

        Args:
            lane: that ran.
            arrays: its results, with those of watched tensors.
            calls: what each request brought.
            parts: splits results into those of each request.
            rows: of the call.
        """
        own, inner = split(arrays) if self._policy.guard.inner_tensors else (dict(arrays), {})
        each = parts(own)
        fault = self._checks.fault(own, rows_of(inner, 0, sum(call.rows for call in calls), batch=rows))
        results: list[Outputs | SanderlingError] = []
        first = 0
        for call, result in zip(calls, each, strict=True):
            if fault is not None:
                fault_here = self._checks.fault(result, rows_of(inner, first, call.rows, batch=rows))
                first += call.rows
                if fault_here is not None:
                    results.append(self._tripped(lane, call, result, fault_here, rows))
                    continue
            results.append(Outputs(result, lane=lane.name, variant=lane.variant.id, batch_rows=rows))
            self._keep(lane, call, result)
        return results

    def close(self) -> None:
        """End the shadow runs; those that wait are given up."""
        with self._lock:
            self._closed = True
            thread = self._shadow_thread
        if thread is None:
            return
        while True:
            try:
                self._shadows.get_nowait()
            except queue.Empty:
                break
        self._shadows.put(None)  # nobody else puts anything there any more
        thread.join(timeout=_END_S)

    def _tripped(
        self, lane: Lane, call: Call, result: dict[str, Array], fault: Fault, rows: int
    ) -> Outputs | SanderlingError:
        """What a request gets whose result failed a check."""
        action = self._note(lane, call, result, fault)
        told = str(fault)
        if action == "retry-fp32":
            safe = self._safe()
            if safe is None:
                ways = ", ".join(lane.name for lane in self._lanes())
                return GuardError(f"a result failed its check ({told}), and FP32 is not among the ways to run: {ways}")
            return self._retried(safe[1], call.feeds, told)
        with self._lock:
            last = self._last_good.get(_kind(call))
        if action == "last-good" and last is not None:
            self._count("stale")
            return Outputs(
                _copies(last), lane=lane.name, variant=lane.variant.id, batch_rows=rows, stale=True, tripped=told
            )
        return GuardError(f"a result of '{self._package.manifest.name}' failed its check: {told}")

    def _safe(self) -> tuple[int, Lane] | None:
        """The safe lane with its index."""
        return next(((index, lane) for index, lane in enumerate(self._lanes()) if _is_safe(lane)), None)

    def _retried(self, safe: Lane, feeds: Feeds, told: str) -> Outputs | SanderlingError:
        self._count("retries")
        try:
            result = self._run_again(safe, feeds)
        except SanderlingError as error:
            return GuardError(f"a result failed its check ({told}), and FP32 failed as well: {error}")
        again = self._checks.fault(result)
        if again is not None:
            return GuardError(f"a result failed its check ({told}), and FP32's does so, too: {again}")
        return Outputs(result, lane=safe.name, variant=safe.variant.id, tripped=told)

    def _note(self, lane: Lane, call: Call, result: Mapping[str, Array], fault: Fault) -> str:
        """Count a trip, tell it, keep a reproducer, and open the breaker where it is due; returns what to do."""
        with self._lock:
            self._counts["trips"] += 1
            self._breaker, action, opens = after_trip(
                self._rules,
                self._breaker,
                now_ms=time.monotonic() * 1e3,
                has_last_good=_kind(call) in self._last_good,
                is_safe=_is_safe(lane),
            )
        kept = self._reproducer(lane, call.feeds, result, fault)
        self._tell(Event(kind="guard-tripped", subject=lane.name, reason=f"{fault}; {action}{kept}"))
        if opens and (safe := self._safe()) is not None:
            reason = f"{self._rules.trips} trips within {self._rules.window_ms / 1e3:g} s"
            self._tell(Event(kind="breaker-opened", subject=safe[1].name, reason=reason))
            self._take_safe(safe[0])
        return action

    def _reproducer(self, lane: Lane, feeds: Feeds, result: Mapping[str, Array], fault: Fault) -> str:
        folder = self._policy.guard.reproducers
        if folder is None:
            return ""
        try:
            path = write_reproducer(
                Path(folder),
                package=self._package,
                variant=lane.variant,
                engine=lane.plan.place.engine,
                device=lane.plan.device,
                versions=describe_machine().versions,
                fault=fault,
                feeds=feeds,
                outputs=result,
            )
        except OutputError as error:
            return f"; no reproducer: {error}"
        return f"; kept in {path}" if path is not None else ""

    def _keep(self, lane: Lane, call: Call, result: dict[str, Array]) -> None:
        """Keep a good result where the policy may need it, and let some run again in FP32."""
        if self._policy.guard.on_trip == "last-good" and call.stream is not ALONE:
            kind, copies = _kind(call), _copies(result)
            with self._lock:
                self._last_good.pop(kind, None)
                self._last_good[kind] = copies
                if len(self._last_good) > _KINDS:
                    del self._last_good[next(iter(self._last_good))]
        if not self._sampler.share or _is_safe(lane):
            return
        if not self._sampler.takes(next(self._numbers)) or (safe := self._safe()) is None:
            return
        taken = lane, safe[1], call._replace(feeds=_copies(call.feeds), outputs=None), _copies(result)
        with self._lock:
            if self._closed:
                return
            try:
                self._shadows.put_nowait(taken)
            except queue.Full:
                self._counts["shadows left out"] += 1
                return
            if self._shadow_thread is None:
                self._shadow_thread = threading.Thread(target=self._compare, name="sanderling-shadow", daemon=True)
                self._shadow_thread.start()

    def _compare(self) -> None:
        """Run what was sampled in FP32, and trip where it disagrees."""
        tolerances: dict[str, Tolerance] = {}
        while (taken := self._shadows.get()) is not None:
            lane, safe, call, result = taken
            tolerance = tolerances.get(lane.variant.id)
            try:
                if tolerance is None:
                    tolerance = Tolerance.of(self._package, lane.variant, self._policy.guard.shadow_tolerance)
                    tolerances[lane.variant.id] = tolerance
                    for note in tolerance.notes:
                        self._tell(note)
                reference = self._run_again(safe, call.feeds)
            except SanderlingError as error:
                self._tell(Event(kind="shadow-failed", subject=lane.name, reason=str(error)))
                continue
            self._count("shadows")
            fault = disagreement(result, reference, tolerance)
            if fault is not None:
                self._note(lane, call, result, fault)

    def _count(self, kind: str) -> None:
        with self._lock:
            self._counts[kind] += 1


def _copies(arrays: Feeds) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def _is_safe(lane: Lane) -> bool:
    return lane.variant.id == SAFE_VARIANT


def _kind(call: Call) -> _Kind:
    """What a last good result must have come from: the same stream, and inputs of the same shapes."""
    return call.stream, tuple(array.shape for array in call.feeds.values())
