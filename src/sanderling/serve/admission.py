"""How a version comes in: copied, its hashes and golden vectors checked, loaded, and run once on its own lane."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from sanderling.core.errors import NotMetError, RefusedError
from sanderling.core.progress import Silent
from sanderling.measure.golden import wrong_outputs
from sanderling.measure.multimodal_golden import check_branches
from sanderling.measure.text_golden import check_text
from sanderling.measure.verify import check_golden
from sanderling.model.package import Package
from sanderling.run.isolated import Worker
from sanderling.run.pool import Member, Pool
from sanderling.run.text.base import Sampling
from sanderling.run.text.pooled import PooledText
from sanderling.serve.snapshots import Snapshots

_CHECK_THREADS = 1
_NICENESS = 10


class Admission:
    """Checks and loads versions, one at a time.

    Args:
        pool: that holds them.
        snapshots: where their copies are; a folder in the cache by default.
        worker: process that runs golden vectors; one for each version by default.
        threads: of one call; 0 leaves it to the plan or the engine.

    Raises:
        OutputError: copies cannot be written.
    """

    def __init__(
        self, pool: Pool, *, snapshots: Snapshots | None = None, worker: Worker | None = None, threads: int = 0
    ) -> None:
        self._pool = pool
        self._snapshots = snapshots or Snapshots()
        self._worker = worker
        self._threads = threads

    def move(self, pool: Pool) -> None:
        """Load into another pool from now on."""
        self._pool = pool

    def copy(self, path: Path) -> Package:
        """Copy a package and check its hashes.

        Raises:
            PackageError: it is broken, altered or not whole.
            OutputError: the copy cannot be written.
        """
        return self._snapshots.take(path)

    def load(self, package: Package, key: str, *, beside: str = "") -> Member:
        """Check a copy's golden vectors, load it, and run them on the lane that it got.

        Args:
            package: a copy.
            key: of the pool.
            beside: key of the version that stays loaded meanwhile, if there is one.

        Raises:
            NotMetError: it does not compute what its golden vectors say.
            RefusedError: the policy's limit does not hold both versions.
            SanderlingError: it cannot be read or loaded.
        """
        self._check(package)
        if beside:
            self._pool.pin(beside)
        try:
            self._check_room(package, beside)
            session = open_member(self._pool, package, key, threads=self._threads)
            try:
                _warm(session)
            except BaseException:
                session.close()
                raise
            self._pool.pin(key, pinned=False)
        finally:
            if beside:
                self._pool.pin(beside, pinned=False)
        return session

    def drop(self, package: Package) -> None:
        """Remove a copy."""
        self._snapshots.drop(package)

    def close(self) -> None:
        """Remove all copies."""
        self._snapshots.close()

    def _check(self, package: Package) -> None:
        """Golden vectors of every variant; of tensors in a process that a broken model may crash, and that yields.

        No thread of this process yields: one that must wait for the processor while it runs Python would hold up all
        others.
        """
        if package.manifest.text is not None:
            checks = check_text(package, None, _CHECK_THREADS, Silent())
        elif package.manifest.multimodal is not None:
            checks = check_branches(package, None, _CHECK_THREADS, Silent())
        else:
            with nullcontext(self._worker) if self._worker is not None else Worker(niceness=_NICENESS) as worker:
                checks = check_golden(package, worker, threads=_CHECK_THREADS)
        failed = [check for check in checks if not check.passed]
        if failed:
            raise NotMetError(f"{failed[0].name}: {failed[0].detail}")

    def _check_room(self, package: Package, beside: str) -> None:
        variant = package.variant()
        excess = self._pool.excess_bytes(variant.memory_bytes or variant.size_bytes)
        if excess > 0:
            others = f" beside {beside}" if beside else ""
            raise RefusedError(
                f"{package.manifest.name} does not fit{others}: {excess:.0f} bytes over maxModelBytes with all else "
                "released; raise the limit, or unload the old version first"
            )


def open_member(pool: Pool, package: Package, key: str, *, threads: int) -> Member:
    """Load a package that was checked, of whatever kind it is, and never release it."""
    if package.manifest.text is not None:
        return pool.load_text(package.path, name=key, pinned=True, threads=threads, check_hashes=False)
    return pool.load(package.path, name=key, pinned=True, threads=threads, check_hashes=False)


def warm_text(session: PooledText) -> None:
    """Let a language model write one token.

    Raises:
        EngineError: it fails.
    """
    session.start(session.spec.eos_ids[:1], Sampling(temperature=0.0, max_tokens=1)).result()


def _warm(session: Member) -> None:
    if isinstance(session, PooledText):
        warm_text(session)
        return
    golden, tolerances = session.package.golden(), session.manifest.golden.tolerance
    for lane in session.loaded_lanes:
        wrong = wrong_outputs(lane, golden, lane.variant.id, tolerances[lane.variant.id])
        if wrong is not None:
            raise NotMetError(f"golden vectors on {lane.name}: {wrong}")
