"""The pool: several packages on the same devices, with limits on what they hold in memory."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sanderling.core.errors import OptionError, SanderlingError
from sanderling.core.progress import Event
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.conditions import Conditions
from sanderling.run.lanes import rank_lanes
from sanderling.run.policy.document import Policy, read_policy
from sanderling.run.policy.memory import NOTHING, Loaded, Release, release_for_limits, release_in_emergency
from sanderling.run.policy.rules import memory_rules
from sanderling.run.results import Outputs
from sanderling.run.runtime import DRAIN_S, Runtime
from sanderling.run.sensors import Reading, Sensors, SystemSensors
from sanderling.run.session import Session, new_runtime


@dataclass(frozen=True)
class PooledModel:
    """A model of a pool.

    Attributes:
        size_bytes: what its loaded variants take, as measured when the package was built or tuned, else their files'.
        loaded: whether it holds memory now; a request loads it again.
    """

    name: str
    size_bytes: int
    loaded: bool
    pinned: bool


class Pool:
    """Several packages that share devices, queues and memory. Close it, or use it in a ``with`` block.

    A model that is released to make room keeps its place: its next request loads it again.

    Args:
        policy: a policy, or its file, for all models; one that allows three models by default.
        sensors: to read instead of this machine's.
    """

    def __init__(self, policy: str | Path | Policy | None = None, *, sensors: Sensors | None = None) -> None:
        self.policy = policy if isinstance(policy, Policy) else Policy() if policy is None else read_policy(policy)
        self._rules = memory_rules(self.policy)
        self._runtime = new_runtime(self.policy)
        self._sessions: dict[str, Session] = {}
        self._pinned: set[str] = set()
        self._lock = threading.RLock()
        self._emergency = NOTHING
        self._conditions = Conditions(
            self._runtime, self.policy, {}, sensors or SystemSensors(), receive=self._check_memory
        )

    @property
    def models(self) -> tuple[PooledModel, ...]:
        """All models of the pool, the least recently used first."""
        with self._lock:
            sessions = sorted(self._sessions.items(), key=lambda item: item[1].used_s)
            return tuple(
                PooledModel(name, session.size_bytes, session.is_loaded, name in self._pinned)
                for name, session in sessions
            )

    @property
    def events(self) -> list[Event]:
        """What was released, switched or given up, with the reason; the last thousand."""
        return [timed.event for timed in self._runtime.events]

    @property
    def conditions(self) -> Conditions:
        """What the sensors say."""
        return self._conditions

    @property
    def runtime(self) -> Runtime:
        """What runs the requests of all models."""
        return self._runtime

    def load(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        pinned: bool = False,
        variant: str | None = None,
        threads: int = 0,
        lean: bool = False,
        check_hashes: bool = True,
    ) -> Session:
        """Load a package, and release others where the policy's limits ask for it.

        Args:
            path: package folder, or a zip of one.
            name: that requests call it by; the package's own by default.
            pinned: never release it.
            variant: as of ``sanderling.load``.
            threads: as of ``sanderling.load``.
            lean: as of ``sanderling.load``.
            check_hashes: as of ``sanderling.load``.

        Raises:
            OptionError: there is a model of that name already.
            PackageError: the package is broken or altered.
            UnavailableError: none of the policy's devices is here.
        """
        package = Package.open(path, check_hashes=check_hashes)
        key = name or package.manifest.name
        with self._lock:
            if key in self._sessions:
                raise OptionError(
                    f"the pool has a model '{key}' already: unload it first, or give this one another name"
                )
            plans, events = rank_lanes(package, self.policy, variant=variant, threads=threads, lean=lean)
            self._make_room(plans[0].size_bytes)
            session = Session(package, self.policy, plans, events, runtime=self._runtime, name=key)
            session.before_load(lambda: self._make_room(0, keep=key))
            self._sessions[key] = session
            if pinned:
                self._pinned.add(key)
            self._conditions.devices.update(session.devices)
            return session

    def __getitem__(self, name: str) -> Session:
        """The session of a model; as long as the pool has it, it stays usable.

        Raises:
            OptionError: the pool has no such model.
        """
        try:
            return self._sessions[name]
        except KeyError:
            known = ", ".join(self._sessions) or "none"
            raise OptionError(f"the pool has no model '{name}': loaded are {known}") from None

    def run(self, name: str, feeds: Feeds | Array, *, deadline_ms: float | None = None, priority: int = 0) -> Outputs:
        """Run one model; arguments and errors as of ``Session.run``."""
        return self[name].run(feeds, deadline_ms=deadline_ms, priority=priority)

    def run_all(
        self, names: Sequence[str], feeds: Feeds | Array, *, deadline_ms: float | None = None, priority: int = 0
    ) -> dict[str, Outputs]:
        """Run several models on the same input, which is not copied, on all devices that they use at once.

        Raises:
            SanderlingError: the first that failed; the others have ended as well then.
        """
        futures: dict[str, Future[Outputs]] = {}
        try:
            for name in names:
                futures[name] = self[name].submit(feeds, deadline_ms=deadline_ms, priority=priority, stream=object())
        except SanderlingError:
            for future in futures.values():
                future.cancel()
            raise
        failed = [error for future in futures.values() if (error := future.exception()) is not None]
        if failed:
            raise failed[0]
        return {name: future.result() for name, future in futures.items()}

    def unload(self, name: str, *, drain_s: float = DRAIN_S) -> None:
        """Take a model out of the pool, after what waits and runs of it has ended.

        Raises:
            OptionError: the pool has no such model.
        """
        session = self[name]
        session.close(drain_s=drain_s)
        with self._lock:
            self._sessions.pop(name, None)
            self._pinned.discard(name)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Unload everything; a second call does nothing."""
        self._conditions.close()
        for name in list(self._sessions):
            self.unload(name, drain_s=drain_s)
        self._runtime.close(drain_s=drain_s)

    def _loaded(self, keep: str = "") -> tuple[Loaded, ...]:
        return tuple(
            Loaded(
                name,
                session.size_bytes,
                session.used_s * 1e3,
                pinned=name in self._pinned or name == keep,
                busy=self._runtime.is_busy(name),
            )
            for name, session in self._sessions.items()
            if session.is_loaded
        )

    def _make_room(self, incoming_bytes: int, keep: str = "") -> None:
        """Release models so that one more keeps the limits."""
        with self._lock:
            self._release(release_for_limits(self._rules, self._loaded(keep), incoming_bytes=incoming_bytes))

    def _check_memory(self, reading: Reading) -> None:
        """Release what the policy says when memory runs out."""
        if not reading.memory_limit_bytes or reading.memory_used_bytes is None:
            return
        with self._lock:
            release = release_in_emergency(
                self._rules,
                self._loaded(),
                used_bytes=reading.memory_used_bytes,
                limit_bytes=reading.memory_limit_bytes,
                pool_bytes=sum(session.pooled_bytes for session in self._sessions.values()),
            )
            if release.tensor_pool:
                freed = sum(session.clear_buffers() for session in self._sessions.values())
                event = Event(kind="tensor-pool-released", subject=f"{freed} bytes", reason=release.reason)
                self._runtime.tell(event)
            self._release(release)
            if release == NOTHING and self._emergency != NOTHING:
                self._runtime.tell(Event(kind="memory-recovered", subject="pool", reason="it is below the threshold"))
            elif release != NOTHING and not release.models and not release.tensor_pool and self._emergency == NOTHING:
                reason = f"{release.reason}; nothing can be released: models are pinned, busy or not loaded"
                self._runtime.tell(Event(kind="memory-short", subject="pool", reason=reason))
            self._emergency = release

    def _release(self, release: Release) -> None:
        for name in release.models:
            if self._sessions[name].release():
                event = Event(kind="model-released", subject=name, reason=release.reason)
                self._runtime.tell(event, model=name)
        if release.models or release.tensor_pool:
            _trim()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _trim() -> None:
    """Let glibc give freed memory back to the system; elsewhere it decides itself."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
