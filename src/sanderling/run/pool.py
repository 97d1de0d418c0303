"""The pool: several packages on the same devices, with limits on what they hold in memory."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sanderling.core.closing import Closing
from sanderling.core.errors import EngineError, OptionError, SanderlingError
from sanderling.core.progress import Event
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.conditions import Conditions
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.lanes import rank_lanes
from sanderling.run.policy.document import Policy, read_policy
from sanderling.run.policy.memory import LEAST_USED, NOTHING, Loaded, Release, release_for_limits, release_in_emergency
from sanderling.run.policy.rules import memory_rules
from sanderling.run.results import Outputs
from sanderling.run.runtime import DRAIN_S
from sanderling.run.sensors import Reading, Sensors, SystemSensors
from sanderling.run.session import Session, check_tensors, new_runtime
from sanderling.run.text.limits import TextLimits
from sanderling.run.text.loading import text_place
from sanderling.run.text.pooled import PooledText

Member: TypeAlias = Session | PooledText
_RECOVERED = 0.02  # of the memory limit below the threshold: readings that waver around it are one emergency
_CLOSED = "the pool is closed: make another one"


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


class Pool(Closing):
    """Several packages that share devices, queues and memory. Close it, or use it in a ``with`` block.

    A model that is released to make room keeps its place: its next request loads it again.

    Args:
        policy: a policy, or its file, for all models; one that allows three models by default.
        sensors: to read instead of this machine's.
        emulate: devices that stand in for hardware that is not here, as of ``sanderling.load``.

    Attributes:
        policy: of all models.
        runtime: that runs the requests of all models.
        conditions: what the sensors say.
    """

    def __init__(
        self,
        policy: str | Path | Policy | None = None,
        *,
        sensors: Sensors | None = None,
        emulate: EmulatedDevices | None = None,
    ) -> None:
        self.policy = policy if isinstance(policy, Policy) else Policy() if policy is None else read_policy(policy)
        self.runtime = new_runtime(self.policy)
        self._rules = memory_rules(self.policy)
        self._emulate = emulate
        self._sessions: dict[str, Member] = {}
        self._pinned: set[str] = set()
        self._coming: set[str] = set()
        self._lock = threading.RLock()
        self._is_over = self._is_short = self._told_short = self._closed = False
        self.conditions = Conditions(
            self.runtime, self.policy, {}, sensors or emulate or SystemSensors(), receive=self._check_memory
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
        return [timed.event for timed in list(self.runtime.events)]

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
        check_tensors(package)
        key = name or package.manifest.name
        plans, events = rank_lanes(
            package, self.policy, variant=variant, threads=threads, lean=lean, emulated=self._emulate
        )
        self._take_name(key)
        try:
            session = Session(package, self.policy, plans, events, shared=self, name=key)
            self._take_in(key, session, pinned=pinned)
        finally:
            self._coming.discard(key)
        self._check_open(session)
        return session

    def load_text(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        pinned: bool = False,
        variant: str | None = None,
        engine: str | None = None,
        threads: int = 0,
        limits: TextLimits | None = None,
        check_hashes: bool = True,
    ) -> PooledText:
        """Load a package of a language model, whose steps take turns with the requests of other models.

        Args:
            path: package folder, or a zip of one.
            name: that requests call it by; the package's own by default.
            pinned: never release it.
            variant: id such as ``int8``; the plan's or the chosen one by default.
            engine: such as ``onnxruntime``; the plan's or the variant's first by default.
            threads: of one step; 0 leaves it to the plan, or takes all cores.
            limits: of its requests.
            check_hashes: compare every file's hash before it is used.

        Raises:
            OptionError: there is a model of that name already, or the package is another kind of model.
            PackageError: the package is broken or altered.
            UnavailableError: its engine is not installed.
        """
        package = Package.open(path, check_hashes=check_hashes)
        key = name or package.manifest.name
        self._take_name(key)
        try:
            session = PooledText(
                package,
                self.policy,
                shared=self,
                name=key,
                place=text_place(package, variant=variant, engine=engine, threads=threads),
                limits=limits,
            )
            self._take_in(key, session, pinned=pinned)
        finally:
            self._coming.discard(key)
        self._check_open(session)
        return session

    def __getitem__(self, name: str) -> Session:
        """The session of a model; as long as the pool has it, it stays usable.

        Raises:
            OptionError: the pool has no such model, or it is a language model.
        """
        session = self._known(name)
        if isinstance(session, PooledText):
            raise OptionError(f"model '{name}' is a language model: what load_text returned takes its requests")
        return session

    def run(
        self,
        name: str,
        feeds: Feeds | Array,
        outputs: Feeds | None = None,
        *,
        deadline_ms: float | None = None,
        priority: int = 0,
    ) -> Outputs:
        """Run one model; arguments and errors as of ``Session.run``."""
        return self[name].run(feeds, outputs, deadline_ms=deadline_ms, priority=priority)

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
        self._known(name).close(drain_s=drain_s)

    def pin(self, name: str, *, pinned: bool = True) -> None:
        """Never release a model from now on, or let it be released again.

        Raises:
            OptionError: the pool has no such model.
        """
        with self._lock:
            self._known(name)
            (self._pinned.add if pinned else self._pinned.discard)(name)

    def excess_bytes(self, size_bytes: int) -> float:
        """What a model of that size is over the limit, with all that can be released gone; 0 where it has room.

        Models that are busy now count as such that can be released: they are not for long.
        """
        with self._lock:
            held = sum(model.size_bytes for model in self._loaded() if model.pinned)
        return max(held + size_bytes - self._rules.max_bytes, 0.0)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Unload everything, within ``drain_s`` and what ending the engines takes; a second call does nothing."""
        self._closed = True
        self.conditions.close()
        end_s = time.monotonic() + drain_s
        for session in list(self._sessions.values()):
            session.close(drain_s=max(end_s - time.monotonic(), 0.0))
        self.runtime.close(drain_s=0.0)

    def make_room(self, name: str, size_bytes: int) -> None:
        """Release other models, so that one that is about to hold so many bytes keeps the limits."""
        with self._lock:
            others = tuple(model for model in self._loaded() if model.name != name)
            self._release(release_for_limits(self._rules, others, incoming_bytes=size_bytes))

    def forget(self, session: object) -> None:
        """Take out a session that was closed."""
        with self._lock:
            for name in [name for name, known in self._sessions.items() if known is session]:
                del self._sessions[name]
                self._pinned.discard(name)

    def _known(self, name: str) -> Member:
        try:
            return self._sessions[name]
        except KeyError:
            known = ", ".join(list(self._sessions)) or "none"
            raise OptionError(f"the pool has no model '{name}': loaded are {known}") from None

    def _take_in(self, name: str, session: Member, *, pinned: bool) -> None:
        with self._lock:
            self._sessions[name] = session
            if pinned:
                self._pinned.add(name)
            self.conditions.devices.update(session.devices)

    def _check_open(self, session: Member) -> None:
        """Close a session that came while the pool was closed."""
        if self._closed:
            session.close()
            raise EngineError(_CLOSED)

    def _take_name(self, name: str) -> None:
        with self._lock:
            if self._closed:
                raise EngineError(_CLOSED)
            if name in self._sessions or name in self._coming:
                raise OptionError(
                    f"the pool has a model '{name}' already: unload it first, or give this one another name"
                )
            self._coming.add(name)

    def _loaded(self) -> tuple[Loaded, ...]:
        return tuple(
            Loaded(
                name,
                session.size_bytes,
                session.used_s * 1e3,
                pinned=name in self._pinned,
                busy=session.is_busy,
            )
            for name, session in self._sessions.items()
            if session.is_loaded
        )

    def _check_memory(self, reading: Reading) -> None:
        """Release what is over the limits by now, and more when memory runs out."""
        with self._lock:
            loaded = sorted(self._loaded(), key=lambda model: model.used_ms)
            if loaded:  # as if the last one was just coming: models that came at once were busy
                *others, last = loaded
                self._keep_limits(release_for_limits(self._rules, tuple(others), incoming_bytes=last.size_bytes))
            if reading.memory_limit_bytes and reading.memory_used_bytes is not None:
                self._relieve(reading.memory_used_bytes, reading.memory_limit_bytes)

    def _keep_limits(self, release: Release) -> None:
        """Release models, and tell where the limits stay exceeded; a model that is busy for a moment is no news."""
        self._release(release)
        is_over = release != NOTHING and release.reason != LEAST_USED
        if is_over and not self._is_over:
            self.runtime.tell(Event(kind="limit-exceeded", subject="pool", reason=release.reason))
        self._is_over = is_over

    def _relieve(self, used_bytes: int, limit_bytes: int) -> None:
        """Release what the policy says from its threshold on; the emergency ends a little below."""
        release = release_in_emergency(
            self._rules,
            self._loaded(),
            used_bytes=used_bytes,
            limit_bytes=limit_bytes,
            pool_bytes=sum(session.pooled_bytes for session in self._sessions.values()),
        )
        if release == NOTHING:
            if self._is_short and used_bytes < (self._rules.threshold - _RECOVERED) * limit_bytes:
                reason = f"{100 * used_bytes / limit_bytes:.0f} % of the memory is used"
                self.runtime.tell(Event(kind="memory-recovered", subject="pool", reason=reason))
                self._is_short = self._told_short = False
            return
        self._is_short = True
        for kind in self._rules.release_order:
            if kind == "models":
                self._release(release)
            elif release.tensor_pool:
                freed = sum(session.clear_buffers() for session in self._sessions.values())
                self.runtime.tell(Event(kind="tensor-pool-released", subject=f"{freed} bytes", reason=release.reason))
        if release.tensor_pool:
            _trim()
        if not release.models and not release.tensor_pool and not self._told_short:
            self._told_short = True
            reason = f"{release.reason}; nothing can be released: models are pinned, busy or not loaded"
            self.runtime.tell(Event(kind="memory-short", subject="pool", reason=reason))

    def _release(self, release: Release) -> None:
        for name in release.models:
            if self._sessions[name].release():
                self.runtime.tell(Event(kind="model-released", subject=name, reason=release.reason), model=name)
        if release.models:
            _trim()


def _trim() -> None:
    """Let glibc give freed memory back to the system; elsewhere it decides itself."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
