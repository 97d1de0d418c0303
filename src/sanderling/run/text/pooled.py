"""A language model in a pool: it shares the processor and the memory with the other models there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sanderling.core.errors import EngineError
from sanderling.core.tensor import TensorSpec
from sanderling.model.manifest import Manifest
from sanderling.model.package import Package
from sanderling.run.conditions import Conditions
from sanderling.run.policy.document import Policy
from sanderling.run.runtime import DRAIN_S, Runtime
from sanderling.run.session import Shared
from sanderling.run.text.base import GREEDY, Sampling
from sanderling.run.text.limits import TextLimits, TextStatistics
from sanderling.run.text.loading import TextPlace, load_model, text_spec
from sanderling.run.text.session import Prompt, TextSession
from sanderling.run.text.stream import TextStream
from sanderling.run.text.turns import SharedTurns

_CPU = "cpu"


class PooledText:
    """Generates text with a package of a pool. What the pool and a server ask any session for is here as well.

    A model that was released to make room is loaded again by the next request.

    Args:
        package: of a language model.
        policy: of the pool.
        shared: the pool.
        name: that its requests are called by.
        place: which variant runs, on which engine, with how many threads.
        limits: see there.

    Raises:
        OptionError: the package is another kind of model.
        UnavailableError: the engine is not installed.
        EngineError: loading failed.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    accepted: tuple[TensorSpec, ...] = ()
    returned: tuple[TensorSpec, ...] = ()
    device = _CPU
    copied_bytes = 0

    def __init__(
        self,
        package: Package,
        policy: Policy,
        *,
        shared: Shared,
        name: str,
        place: TextPlace,
        limits: TextLimits | None = None,
    ) -> None:
        self.spec = text_spec(package)
        self.package = package
        self.policy = policy
        self.name = name
        self.variant = place.variant
        self.engine = place.engine
        self.lane = f"{place.engine}/{_CPU}/{place.variant.id}"
        self.lanes = (self.lane,)
        self.devices = {_CPU: _CPU}
        self.guard_counts: dict[str, int] = {}
        self.conditions: Conditions | None = shared.conditions
        self.used_s = time.monotonic()
        self._shared = shared
        self._place = place
        self._limits = limits
        self._session: TextSession | None = None
        self._calls = 0
        self._closed = False
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._turns = SharedTurns(shared.runtime, policy, name=name, lane=self.lane, threads=place.threads)
        try:
            self._ready()
        except BaseException:
            self.runtime.remove(name, reason="it could not be loaded", drain_s=0.0)
            raise

    @property
    def manifest(self) -> Manifest:
        """The package's manifest."""
        return self.package.manifest

    @property
    def runtime(self) -> Runtime:
        """The pool's."""
        return self._shared.runtime

    @property
    def is_loaded(self) -> bool:
        """Whether it holds memory."""
        return self._session is not None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        session = self._session
        return session.waiting if session is not None else 0

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or run."""
        session = self._session
        return self._calls > 0 or (session is not None and session.is_busy)

    @property
    def size_bytes(self) -> int:
        """What the loaded variant takes, as measured when the package was built, else the size of its files."""
        return (self.variant.memory_bytes or self.variant.size_bytes) if self.is_loaded else 0

    @property
    def pooled_bytes(self) -> int:
        """Bytes of keys and values, those that are kept for later included."""
        session = self._session
        return session.held_bytes if session is not None else 0

    def start(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        *,
        stop: Sequence[str] = (),
        schema: str = "",
        priority: int = 0,
        notify: Callable[[], None] | None = None,
    ) -> TextStream:
        """Begin an answer; arguments and errors as of ``TextSession.start``."""
        with self._used() as session:
            return session.start(prompt, sampling, stop=stop, schema=schema, priority=priority, notify=notify)

    def load(self) -> None:
        """Load it if it is not.

        Raises:
            EngineError: loading failed, or it is closed.
        """
        with self._used():
            pass

    def statistics(self) -> TextStatistics | None:
        """What has happened since it was loaded; None where it is not."""
        session = self._session
        return session.statistics() if session is not None else None

    def clear_buffers(self) -> int:
        """Drop sequences that are kept for later; returns their bytes."""
        session = self._session
        return session.forget() if session is not None else 0

    def release(self) -> bool:
        """Give memory back until the next request; False where requests run, or nothing is held."""
        with self._lock:
            session = self._session
            if session is None or self._calls or session.is_busy:
                return False
            self._session = None
        session.close()
        return True

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Let requests end within ``drain_s``, and give back what it holds; a second call does nothing."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            session.close(drain_s=drain_s)
        self.runtime.remove(self.name, reason="the session was closed before this step ran", drain_s=0.0)
        self._shared.forget(self)

    @contextmanager
    def _used(self) -> Iterator[TextSession]:
        """The session, loaded if it is not, and not released meanwhile."""
        with self._lock:
            self._calls += 1
        self.used_s = time.monotonic()
        try:
            yield self._ready()
        finally:
            with self._lock:
                self._calls -= 1

    def _ready(self) -> TextSession:
        with self._loading:
            if self._closed:
                raise EngineError("the session is closed; load the package again")
            session = self._session
            if session is None:
                size_bytes = self.variant.memory_bytes or self.variant.size_bytes
                self._shared.make_room(self.name, size_bytes)
                model = load_model(self.package, self.variant, threads=self._place.threads, engine=self.engine)
                events = (self._place.event,) if self._place.event else ()
                self._session = session = TextSession(model, limits=self._limits, turns=self._turns, events=events)
            return session
