"""The data plane: models by name and version, requests to their sessions, and what is counted about them.

HTTP and gRPC are thin ends on it. Nothing here blocks, so that an event loop may call it; it is usable from several
threads.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sanderling.core.errors import DeadlineError, EngineError, GuardError, OptionError, SanderlingError, TensorError
from sanderling.core.tensor import Array, Feeds
from sanderling.run.pool import Member, Pool
from sanderling.run.results import Outputs
from sanderling.run.runtime import DRAIN_S
from sanderling.run.session import Session
from sanderling.run.text.limits import TextStatistics
from sanderling.run.text.pooled import PooledText
from sanderling.run.tickets import ALONE
from sanderling.serve.errors import ConflictError, NotFoundError, NotReadyError
from sanderling.serve.statistics import ModelStatistics
from sanderling.serve.tensors import to_text
from sanderling.serve.traces import TRACE

_FAILURES = 3  # in a row, after which a model does not count as ready
_RETRY_S = 10.0  # after which it may show again that it works


class Finished(NamedTuple):
    """A request that ended.

    Attributes:
        error: kind of the error, such as ``DeadlineError``; empty where it has a result.
        queue_ms: before its call began; all of its time where it never ran.
        compute_ms: of the call.
        total_ms: from its arrival in the data plane to its result.
        rows: that it brought.
        batch_rows: rows of the call that it was part of; 0 where it never ran.
        batch_requests: requests of that call; 0 where it never ran.
        lane: such as ``openvino/cpu/int8``.
        stale: whether it was given the last good result.
        tripped: which check its first result failed.
        deadline_ms: that the client gave, from the arrival on; None where it gave none.
        priority: that the client gave.
        trace: its ``traceparent``; empty without one.
        tokens: of text that were generated, also where nobody took the rest.
        first_ms: from the request to the first of them; None where there was none.
    """

    model: str
    version: str
    ok: bool
    error: str = ""
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    total_ms: float = 0.0
    rows: int = 1
    batch_rows: int = 0
    batch_requests: int = 0
    lane: str = ""
    device: str = ""
    precision: str = ""
    stale: bool = False
    tripped: str = ""
    deadline_ms: float | None = None
    priority: int = 0
    tokens: int = 0
    first_ms: float | None = None
    trace: str = ""


class _Asked(NamedTuple):
    """What a client has asked for beside results."""

    deadline_ms: float | None = None
    priority: int = 0
    trace: str = ""


_NOTHING_ASKED = _Asked()


class ServedModel:
    """A version of a model that requests can reach.

    Attributes:
        name: that clients call it by.
        version: as clients say it.
        session: that runs it.
        statistics: as the protocol's statistics extension wants them.
        is_leaving: it was taken away, and takes no more requests.
    """

    def __init__(self, name: str, version: str, session: Member, statistics: ModelStatistics | None = None) -> None:
        self.name = name
        self.version = version
        self.session = session
        self.statistics = statistics or ModelStatistics()
        self.is_leaving = False
        self._strings = tuple(spec.name for spec in session.inputs if spec.dtype == "str")
        self._outputs = frozenset(spec.name for spec in session.outputs)
        self._precisions = {variant.id: variant.precision.value for variant in session.manifest.variants}
        self._failures = 0
        self._failed_s = 0.0

    @property
    def tensors(self) -> Session:
        """Its session, where it takes and returns arrays.

        Raises:
            OptionError: it is a language model.
        """
        if isinstance(self.session, PooledText):
            raise OptionError(
                f"model '{self.name}' generates text: ask /v1/chat/completions or /v1/completions, not for tensors"
            )
        return self.session

    @property
    def text(self) -> PooledText:
        """Its session, where it is a language model.

        Raises:
            OptionError: it is none.
        """
        if isinstance(self.session, PooledText):
            return self.session
        raise OptionError(f"model '{self.name}' generates no text: ask /v2/models/{self.name}/infer")

    @property
    def is_text(self) -> bool:
        """Whether it is a language model."""
        return isinstance(self.session, PooledText)

    @property
    def text_statistics(self) -> TextStatistics | None:
        """What a language model has done since it was loaded; None for others, and where it is not."""
        return self.session.statistics() if isinstance(self.session, PooledText) else None

    @property
    def label(self) -> str:
        """For messages and logs, such as ``demo:2``."""
        return f"{self.name}:{self.version}"

    @property
    def is_ready(self) -> bool:
        """Whether a request would be run: it is not leaving, and its last requests did not all fail."""
        is_failing = self._failures >= _FAILURES and time.monotonic() - self._failed_s < _RETRY_S
        return not (self.is_leaving or is_failing)

    def prepared(self, feeds: Feeds) -> Feeds:
        """The feeds with BYTES as text where the model takes strings."""
        if not self._strings:
            return feeds
        return {name: to_text(name, array) if name in self._strings else array for name, array in feeds.items()}

    def check_outputs(self, names: Sequence[str]) -> None:
        """Check names of outputs that a client asks for.

        Raises:
            TensorError: the model has no such output.
        """
        for name in names:
            if name not in self._outputs:
                raise TensorError(
                    f"model '{self.name}' has no output '{name}': available are {', '.join(sorted(self._outputs))}"
                )

    def finished(self, future: Future[Outputs], *, rows: int, since_s: float) -> Finished:
        """What is told about a request that ended."""
        total_ms = (time.monotonic() - since_s) * 1e3
        error = future.exception(0)
        if error is not None:
            self.note(error)
            return self._told(error, rows=rows, total_ms=total_ms)
        outputs = future.result(0)
        self.note(None)
        return Finished(
            self.name,
            self.version,
            True,
            "",
            outputs.queue_ms,
            outputs.compute_ms,
            total_ms,
            rows,
            outputs.batch_rows,
            outputs.batch_requests,
            outputs.lane,
            _device(outputs.lane),
            self._precisions.get(outputs.variant, outputs.variant),
            outputs.stale,
            outputs.tripped,
        )

    def note(self, error: BaseException | None) -> None:
        """Remember whether the engine has failed, which ``is_ready`` depends on."""
        if error is None:
            self._failures = 0
        elif isinstance(error, EngineError):
            self._failures += 1
            self._failed_s = time.monotonic()

    def refused(self, error: BaseException, *, since_s: float) -> Finished:
        """What is told about a request that was not even taken."""
        return self._told(error, rows=0, total_ms=(time.monotonic() - since_s) * 1e3)

    def _told(self, error: BaseException, *, rows: int, total_ms: float) -> Finished:
        kind = type(error).__name__
        return Finished(self.name, self.version, ok=False, error=kind, queue_ms=total_ms, total_ms=total_ms, rows=rows)


@dataclass(frozen=True)
class _Versions:
    """The versions of a model. It is replaced as a whole, never changed.

    Attributes:
        default: that requests without a version get.
        canary: that a share of them gets.
    """

    models: Mapping[str, ServedModel]
    default: str
    canary: str = ""
    share: float = 0.0


class DataPlane:
    """Models by name and version, and the way to them.

    Args:
        pool: whose sessions are served.

    Attributes:
        observers: called with every request that ended, in the thread that ended it: they must be quick and must not
            raise.
        is_accepting: False once the server shuts down.
        is_starting: models are still to come.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.observers: list[Callable[[Finished], None]] = []
        self.is_accepting = True
        self.is_starting = False
        self._versions: dict[str, _Versions] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._pending = 0
        self._pending_lock = threading.Lock()

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All versions of all models."""
        return tuple(model for versions in list(self._versions.values()) for model in versions.models.values())

    @property
    def is_ready(self) -> bool:
        """Whether every model takes requests, by the version that requests without one get."""
        defaults = [versions.models[versions.default] for versions in list(self._versions.values())]
        return self.is_accepting and not self.is_starting and all(model.is_ready for model in defaults)

    @property
    def pending(self) -> int:
        """Requests that wait or run."""
        return self._pending

    def add(self, session: Member, *, name: str, version: str = "1") -> ServedModel:
        """Let requests reach a session. The first version of a model is its default.

        Raises:
            ConflictError: there is that version already.
        """
        model = ServedModel(name, version, session)
        with self._lock:
            known = self._versions.get(name)
            if known is None:
                self._versions[name] = _Versions({version: model}, version)
                return model
            if version in known.models:
                raise ConflictError(f"model '{name}' has a version {version} already: unload it first")
            self._versions[name] = replace(known, models={**known.models, version: model})
        return model

    def remove(self, name: str, version: str = "", *, drain_s: float = DRAIN_S) -> None:
        """Take a version away, or all of them, and close its session when what waits and runs has ended.

        Where the default goes and others stay, the last of those that stay becomes the default.

        Raises:
            NotFoundError: there is no such model or version.
        """
        with self._lock:
            known = self._known(name)
            leaving = [self._version(known, name, version)] if version else list(known.models.values())
            left = {key: model for key, model in known.models.items() if model not in leaving}
            if left:
                default = known.default if known.default in left else list(left)[-1]
                keeps = known.canary in left
                self._versions[name] = _Versions(
                    left, default, known.canary if keeps else "", known.share if keeps else 0.0
                )
            else:
                del self._versions[name]
            for model in leaving:
                model.is_leaving = True
        for model in leaving:
            model.session.close(drain_s=drain_s)

    def exchange(self, pool: Pool, sessions: Mapping[ServedModel, Member]) -> dict[ServedModel, ServedModel]:
        """Let other sessions of the same packages take the places of those that there are, all at once.

        Args:
            pool: of the sessions.
            sessions: for every version of every model.

        Returns:
            What is in whose place; counts go on. What was there takes no more requests, and is not closed.

        Raises:
            ConflictError: versions have come or gone meanwhile.
        """
        with self._lock:
            if set(sessions) != set(self.models):
                raise ConflictError("models were loaded or unloaded meanwhile: try again")
            taking = {
                old: ServedModel(old.name, old.version, session, old.statistics) for old, session in sessions.items()
            }
            self.pool = pool
            for name, known in list(self._versions.items()):
                models = {version: taking[model] for version, model in known.models.items()}
                self._versions[name] = replace(known, models=models)
            for old in taking:
                old.is_leaving = True
        return taking

    def set_default(self, name: str, version: str) -> None:
        """Choose the version that requests without one get from now on; it is no canary then.

        Raises:
            NotFoundError: there is no such model or version.
        """
        with self._lock:
            known = self._known(name)
            self._version(known, name, version)
            keeps = known.canary != version
            self._versions[name] = _Versions(
                known.models, version, known.canary if keeps else "", known.share if keeps else 0.0
            )

    def set_canary(self, name: str, version: str, share: float) -> None:
        """Send a share of the requests without a version to another one; 0 ends that.

        Args:
            name: of the model.
            version: of the canary.
            share: in [0, 1].

        Raises:
            NotFoundError: there is no such model or version.
            OptionError: the share is not in [0, 1].
        """
        if not 0 <= share <= 1:
            raise OptionError(f"a canary's share is {share:g}: expected 0 to 1")
        with self._lock:
            known = self._known(name)
            self._version(known, name, version)
            self._versions[name] = replace(known, canary=version if share else "", share=share)

    def default_version(self, name: str) -> str:
        """The version that requests without one get.

        Raises:
            NotFoundError: there is no such model.
        """
        return self._known(name).default

    def canary(self, name: str) -> tuple[str, float]:
        """A model's canary and its share; empty and 0 without one.

        Raises:
            NotFoundError: there is no such model.
        """
        known = self._known(name)
        return known.canary, known.share

    def model(self, name: str, version: str = "") -> ServedModel:
        """Find a model.

        Args:
            name: of the model.
            version: the default or the canary, by its share, without it.

        Raises:
            NotFoundError: there is no such model or version; the message says which there are.
        """
        known = self._known(name)
        if version:
            return self._version(known, name, version)
        if known.share:
            number = next(self._numbers)
            if math.floor((number + 1) * known.share) > math.floor(number * known.share):
                return known.models[known.canary]
        return known.models[known.default]

    def submit(
        self,
        model: ServedModel,
        feeds: Feeds,
        *,
        outputs: Sequence[str] = (),
        deadline_ms: float | None = None,
        priority: int = 0,
        stream: Hashable = None,
        buffers: Feeds | None = None,
        pinned: bool = False,
        visit: Callable[[], None] | None = None,
        moved: Callable[[ServedModel], None] | None = None,
        trace: str | None = None,
    ) -> Future[Outputs]:
        """Run a request; never waits, not even for room in a queue.

        Args:
            model: from ``model``.
            feeds: must not change until the future is done.
            outputs: names that the client asks for, which are checked; the result has all.
            deadline_ms: from now; the policy's without it.
            priority: larger is sooner; below 0 is background work.
            stream: whose order is kept; none by default.
            buffers: arrays for some results or all, by name, which they are written to.
            pinned: the client named the version, so that no other may answer when it was just taken away.
            visit: as of ``Runtime.submit``.
            trace: ``traceparent`` of the client; that of the current task by default.
            moved: told which version answers instead, where ``model`` was just taken away.

        Returns:
            A future that may be cancelled until its batch starts.

        Raises:
            TensorError: a name, dtype or shape is wrong.
            NotFoundError: the version was just taken away.
            NotReadyError: the server shuts down.
            RefusedError: it cannot be finished in time, or too many requests wait.
        """
        asked = _Asked(deadline_ms, priority, TRACE.get() if trace is None else trace)
        while True:
            since_s = time.monotonic()
            try:
                return self._submitted(
                    model,
                    feeds,
                    asked,
                    outputs=outputs,
                    stream=stream,
                    buffers=buffers,
                    since_s=since_s,
                    visit=visit,
                )
            except SanderlingError as error:
                if isinstance(error, EngineError) and model.is_leaving:
                    model = self.model(model.name, model.version if pinned else "")
                    if moved is not None:
                        moved(model)
                    continue
                self._tell(model, _with(model.refused(error, since_s=since_s), asked))
                raise

    def _submitted(
        self,
        model: ServedModel,
        feeds: Feeds,
        asked: _Asked,
        *,
        outputs: Sequence[str],
        stream: Hashable,
        buffers: Feeds | None,
        since_s: float,
        visit: Callable[[], None] | None,
    ) -> Future[Outputs]:
        if not self.is_accepting:
            raise NotReadyError("the server shuts down and takes no more requests: ask another one")
        if asked.deadline_ms is not None and asked.deadline_ms <= 0:
            raise DeadlineError(f"the request's deadline passed {-asked.deadline_ms:.1f} ms ago")
        model.check_outputs(outputs)
        direct = buffers if buffers is not None and len(buffers) == len(model.session.outputs) else None
        future = model.tensors.submit(
            model.prepared(feeds),
            direct,
            deadline_ms=asked.deadline_ms,
            priority=asked.priority,
            stream=ALONE if stream is None else stream,
            wait=False,
            visit=visit,
        )
        rows = _rows(feeds)
        self.begin()
        future.add_done_callback(lambda done: self._ended(model, done, rows, since_s, asked))
        return future if buffers is None or direct is not None else _copied(future, buffers)

    def _ended(
        self,
        model: ServedModel,
        future: Future[Outputs],
        rows: int,
        since_s: float,
        asked: _Asked,
    ) -> None:
        if future.cancelled():
            finished = model.refused(CancelledError(), since_s=since_s)
        else:
            finished = model.finished(future, rows=rows, since_s=since_s)
        self.end(model, _with(finished, asked))

    def begin(self) -> None:
        """A request waits or runs from now on."""
        with self._pending_lock:
            self._pending += 1

    def end(self, model: ServedModel, finished: Finished) -> None:
        """A request that has begun is over."""
        with self._pending_lock:
            self._pending -= 1
        self._tell(model, finished)

    def _tell(self, model: ServedModel, finished: Finished) -> None:
        model.statistics.add(finished)
        for observer in self.observers:
            observer(finished)

    def _known(self, name: str) -> _Versions:
        known = self._versions.get(name)
        if known is None:
            if self.is_starting:
                raise NotReadyError(f"model '{name[:80]}' is not there yet: the server starts; try again later")
            there = ", ".join(sorted(self._versions)) or "none"
            raise NotFoundError(f"unknown model '{name[:80]}': available are {there}")
        return known

    @staticmethod
    def _version(known: _Versions, name: str, version: str) -> ServedModel:
        model = known.models.get(version)
        if model is None:
            there = ", ".join(sorted(known.models))
            raise NotFoundError(f"model '{name}' has no version '{version[:40]}': available are {there}")
        return model


def _with(finished: Finished, asked: _Asked) -> Finished:
    """The same with what the client asked for."""
    if asked == _NOTHING_ASKED:
        return finished
    return finished._replace(deadline_ms=asked.deadline_ms, priority=asked.priority, trace=asked.trace)


def explained(error: BaseException, feeds: Feeds) -> BaseException:
    """A request's error, or what in its inputs explains it: results cannot be finite if they are not."""
    if isinstance(error, GuardError):
        for name, array in feeds.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return TensorError(f"input '{name}' holds NaN or infinity, and so {error}")
    return error


def _rows(feeds: Feeds) -> int:
    """Rows of a request: the first axis of its first input."""
    first: Array | None = next(iter(feeds.values()), None)
    return len(first) if first is not None and first.ndim else 1


@lru_cache
def _device(lane: str) -> str:
    """The device of a lane such as ``openvino/gpu:0/int8``."""
    return lane.split("/", 1)[-1].rsplit("/", 1)[0]


def _copied(future: Future[Outputs], buffers: Feeds) -> Future[Outputs]:
    """A future whose result was copied to the buffers that there are."""
    copied: Future[Outputs] = Future()

    def copy(done: Future[Outputs]) -> None:
        if done.cancelled():
            copied.cancel()
            return
        if not copied.set_running_or_notify_cancel():
            return
        try:
            result = done.result()
            for name, buffer in buffers.items():
                if result[name].shape != buffer.shape or result[name].dtype != buffer.dtype:
                    raise TensorError(
                        f"output '{name}' is {result[name].dtype.name}{list(result[name].shape)}: "
                        f"its buffer is {buffer.dtype.name}{list(buffer.shape)}"
                    )
                np.copyto(buffer, result[name])
                result[name] = buffer
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the one who waits
            copied.set_exception(error)
        else:
            copied.set_result(result)

    copied.add_done_callback(lambda outer: future.cancel() if outer.cancelled() else None)
    future.add_done_callback(copy)
    return copied
