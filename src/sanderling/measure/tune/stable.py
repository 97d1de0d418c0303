"""Candidates loaded in worker processes, ready to be checked and timed."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np

from sanderling.core.tensor import Feeds
from sanderling.measure.latency import SETTLE_S, WAKE_S
from sanderling.measure.tune.candidates import Candidate
from sanderling.model.package import GoldenVectors, Package
from sanderling.model.plan import PlanEntry
from sanderling.run.engines.base import Compute, Optimization
from sanderling.run.isolated import IsolatedExecutable, Worker

_TIMING_TIMEOUT_S = 120.0


class Stable:
    """Executables in one worker an engine; a crash ends that engine's worker alone, and the next use restarts it."""

    def __init__(self, package: Package, stack: ExitStack) -> None:
        self._package = package
        self._stack = stack
        self._workers: dict[str, Worker] = {}
        self._loaded: dict[Candidate, IsolatedExecutable] = {}
        self._feeds: dict[int, Feeds] = {}
        self._golden = package.golden()

    def executable(self, candidate: Candidate) -> IsolatedExecutable:
        """The candidate's executable, loaded again if its worker was restarted."""
        worker = self._workers.get(candidate.engine)
        if worker is None:
            worker = self._workers[candidate.engine] = self._stack.enter_context(Worker())
        found = self._loaded.get(candidate)
        if found is None or not found.alive:
            model = self._package.file(self._package.variant(candidate.variant).file)
            found = self._loaded[candidate] = worker.load(candidate.engine, model, candidate.options)
        return found

    def time(self, candidate: Candidate, warmup: int, repeats: int) -> list[float]:
        """Milliseconds of some calls on golden inputs, ``candidate.batch`` rows each, with the cores to themselves."""
        if candidate.batch not in self._feeds:
            self._feeds[candidate.batch] = batch_feeds(self._golden, candidate.batch)
        feeds = self._feeds[candidate.batch]
        executable = self.executable(candidate)
        time.sleep(SETTLE_S)
        return executable.time(feeds, warmup=warmup, warmup_s=WAKE_S, repeats=repeats, timeout_s=_TIMING_TIMEOUT_S)


def batch_feeds(golden: GoldenVectors, rows: int) -> Feeds:
    """Golden inputs as one call; more rows are the golden calls again and again along the first axis."""
    if rows == 1:
        return golden.call(0)
    calls = [golden.call(index % len(golden)) for index in range(rows)]
    return {name: np.concatenate([call[name] for call in calls]) for name in golden.inputs}


def candidate_of(entry: PlanEntry) -> Candidate:
    """The candidate that became an entry of a plan."""
    return Candidate(
        entry.engine,
        entry.device,
        entry.variant,
        entry.precision,
        Compute(entry.compute),
        entry.threads,
        entry.batch,
        Optimization(entry.optimization),
    )
