"""What a program keeps: sessions, threads, array memory; and resident memory over load and unload cycles."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import psutil

from sanderling.measure.doctor.findings import Finding, fault, warning
from sanderling.run.session import Session, open_sessions

_NUMPY_DOMAIN = np.lib.tracemalloc_domain
_LEAST_ARRAY_BYTES = 64 << 10
_NAMED_PLACES = 3
_FRAMES = 12
_LIBRARIES = ("site-packages", "<frozen", str(Path(__file__).parents[2]))


def leaks() -> LeakWatch:
    """Watch a block of a program for what it keeps.

    ``with sanderling.leaks() as watch: …``; afterwards ``watch.findings`` names every session that was opened inside
    and not closed, threads that still run, and the lines whose arrays are still held. Tracing arrays slows Python down
    several times: this is for tests, not for production.
    """
    return LeakWatch()


@dataclass
class LeakWatch:
    """A block that is watched.

    Attributes:
        findings: ``session-leak``, ``thread-leak`` and ``array-leak``, filled when the block ends.
    """

    findings: tuple[Finding, ...] = ()
    _sessions: frozenset[int] = frozenset()
    _threads: frozenset[int | None] = frozenset()
    _native: int = 0
    _arrays: tracemalloc.Snapshot | None = None
    _tracing: bool = field(default=False)

    def __enter__(self) -> LeakWatch:
        gc.collect()
        self._sessions = frozenset(session.number for session in open_sessions())
        self._threads = frozenset(thread.ident for thread in threading.enumerate())
        self._native = psutil.Process().num_threads()
        self._tracing = tracemalloc.is_tracing()
        if not self._tracing:
            tracemalloc.start(_FRAMES)
        self._arrays = _array_snapshot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.collect()
        arrays = _array_snapshot()
        if not self._tracing:
            tracemalloc.stop()
        kept = [session for session in open_sessions() if session.number not in self._sessions]
        assert self._arrays is not None
        self.findings = (*kept_sessions(kept), *self._kept_threads(bool(kept)), *_kept_arrays(self._arrays, arrays))

    def _kept_threads(self, sessions_kept: bool) -> list[Finding]:
        """Python's threads by name; threads of an engine's pool by their number, unless an open session owns them."""
        kept = [thread.name for thread in threading.enumerate() if thread.ident not in self._threads]
        native = psutil.Process().num_threads() - self._native - len(kept)
        found = []
        if kept:
            evidence = f"{len(kept)} threads that were started here still run"
            remedy = "join them, or close what started them"
            found.append(fault("thread-leak", ", ".join(kept), evidence, remedy, threads=len(kept)))
        if native > 0 and not sessions_kept:
            evidence = f"{native} threads outside Python still run, and no session that was opened here is open"
            remedy = "run the block twice: a pool that is made once is no leak"
            found.append(warning("thread-leak", "native threads", evidence, remedy, threads=native))
        return found


def kept_sessions(sessions: list[Session]) -> list[Finding]:
    """One fault for each place of a program that keeps sessions open."""
    places: dict[tuple[str, str], int] = {}
    for session in sessions:
        key = (f"{session.manifest.name}/{session.variant.id} on {session.engine}", session.opened_at)
        places[key] = places.get(key, 0) + 1
    return [
        fault(
            "session-leak",
            subject,
            f"{count} session{'s' if count > 1 else ''} opened at {place} still open",
            "close it, or load it in a with block",
            sessions=count,
        )
        for (subject, place), count in places.items()
    ]


def _array_snapshot() -> tracemalloc.Snapshot:
    """Memory of NumPy arrays by the line that made them."""
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, _NUMPY_DOMAIN)])


def _kept_arrays(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[Finding]:
    """One warning for each line whose arrays grew; a cache that is wanted looks the same."""
    grown: dict[str, tuple[int, int]] = {}
    for entry in after.compare_to(before, "traceback"):
        size, count = grown.get(_place(entry.traceback), (0, 0))
        grown[_place(entry.traceback)] = (size + entry.size_diff, count + entry.count_diff)
    found = []
    for place, (size, count) in sorted(grown.items(), key=lambda pair: -pair[1][0])[:_NAMED_PLACES]:
        if size >= _LEAST_ARRAY_BYTES:
            evidence = f"{count} arrays of {size / 1e6:.2f} MB in all are still held"
            remedy = "drop them, unless they are kept on purpose"
            found.append(warning("array-leak", place, evidence, remedy, size_bytes=size, arrays=count))
    return found


def _place(traceback: tracemalloc.Traceback) -> str:
    """The nearest line of the program itself, else the nearest of all."""
    own = [frame for frame in traceback if not any(part in frame.filename for part in _LIBRARIES)]
    frame = (own or list(traceback))[-1]
    return f"{frame.filename}:{frame.lineno}"
