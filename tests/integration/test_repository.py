from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sanderling.run.pool import Pool
from sanderling.serve.admission import Admission
from sanderling.serve.canary import CanaryRules
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.repository import Repository
from sanderling.serve.repository_settings import RepositorySettings
from sanderling.serve.snapshots import Snapshots
from tests.versions import built, put, with_wrong_golden

CALLERS = 8
PATIENCE_S = 60.0
QUICK = RepositorySettings(interval_s=0.1, settle_s=0.2, grace_s=0.5, gone_s=0.5)


class Load:
    """Callers that ask one after the other without a pause, and check every answer."""

    def __init__(self, plane: DataPlane, x: Callable[[np.random.Generator], np.ndarray]) -> None:
        self.failed: list[str] = []
        self.factors: list[list[float]] = [[] for _ in range(CALLERS)]
        self._plane = plane
        self._x = x
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(index,)) for index in range(CALLERS)]

    def _call(self, index: int) -> None:
        generator = np.random.default_rng(index)
        while not self._over.is_set():
            x = self._x(generator)
            try:
                y = self._plane.submit(self._plane.model("demo"), {"x": x}).result(PATIENCE_S)["y"]
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                self.failed.append(repr(error))
                continue
            factors = np.unique(np.round(y / x, 4))
            if len(factors) != 1:
                self.failed.append(f"an answer of several versions: {factors}")
            self.factors[index].append(float(factors[0]))

    @property
    def seen(self) -> set[float]:
        return {factor for factors in self.factors for factor in factors}

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class Served:
    def __init__(self, root: Path, cache: Path, settings: RepositorySettings) -> None:
        self.root = root
        self.pool = Pool()
        self.plane = DataPlane(self.pool)
        self.repository = Repository(
            root, self.pool, self.plane, settings, admission=Admission(self.pool, snapshots=Snapshots(cache))
        )
        self.repository.start()

    def wait_for(self, kind: str, subject: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not any((event.kind, event.subject) == (kind, subject) for event in self.pool.events):
            assert time.monotonic() < end_s, self.pool.events
            time.sleep(0.02)

    def close(self) -> None:
        self.repository.stop()
        self.pool.close()
        self.repository.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[RepositorySettings], Served]]:
    """Serves the folder ``tmp_path / "models"``, which has a package that multiplies by 2."""
    opened = []
    put(built(2.0), tmp_path / "models" / "demo.sdl")

    def start(settings: RepositorySettings) -> Served:
        opened.append(Served(tmp_path / "models", tmp_path / "cache", settings))
        return opened[-1]

    yield start
    for served in opened:
        served.close()


def some_rows(generator: np.random.Generator) -> np.ndarray:
    return generator.uniform(1.0, 2.0, (int(generator.integers(1, 4)), 3)).astype(np.float32)


def test_swaps_and_rollbacks_under_load_lose_no_request_and_mix_no_versions(serve):
    served = serve(QUICK)
    put(built(3.0), served.root.parent / "next.sdl")  # built before anybody waits
    with Load(served.plane, some_rows) as load:
        put(built(3.0), served.root / "demo.sdl")
        served.wait_for("version-swapped", "demo:2")
        served.wait_for("version-unloaded", "demo:1")
        with_wrong_golden(built(2.0), served.root / "other.sdl")
        served.wait_for("version-refused", "other:1")
        served.repository.rollback("demo")
        served.wait_for("version-unloaded", "demo:2")
    assert load.failed == []
    assert load.seen == {2.0, 3.0}
    for factors in load.factors:  # one version after the other: 2, 3 and after the rollback 2 again
        assert np.count_nonzero(np.diff(factors)) == 2


def test_canary_that_fails_under_load_is_rolled_back_by_itself(serve):
    rules = CanaryRules(share=0.2, least_requests=50, promote_after_s=600.0)
    served = serve(QUICK._replace(canary=rules))
    put(built(3.0, fragile=True), served.root.parent / "next.sdl")

    def large(generator: np.random.Generator) -> np.ndarray:
        return generator.uniform(100.0, 200.0, (1, 3)).astype(np.float32)

    with Load(served.plane, large) as load:
        put(built(3.0, fragile=True), served.root / "demo.sdl")
        served.wait_for("canary-rolled-back", "demo:2")
        served.wait_for("version-unloaded", "demo:2")
    assert load.seen == {2.0}
    assert load.failed
    assert all("GuardError" in failure for failure in load.failed)  # what the share of requests cost
    assert len(load.failed) < sum(map(len, load.factors))


def test_canary_that_holds_is_promoted_by_itself(serve):
    rules = CanaryRules(share=0.5, least_requests=50, promote_after_s=0.5, latency_factor=100.0)
    served = serve(QUICK._replace(canary=rules))
    put(built(3.0), served.root.parent / "next.sdl")
    with Load(served.plane, some_rows) as load:
        put(built(3.0), served.root / "demo.sdl")
        served.wait_for("canary-promoted", "demo:2")
        served.wait_for("version-unloaded", "demo:1")
    assert load.failed == []
    assert load.seen == {2.0, 3.0}


def test_half_written_package_is_waited_for(serve):
    served = serve(QUICK)
    whole = built(3.0)
    target = served.root / "slow.sdl"
    for file in sorted(path for path in whole.rglob("*") if path.is_file()):
        copy = target / file.relative_to(whole)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
        time.sleep(0.1)
    served.wait_for("version-swapped", "slow:1")
