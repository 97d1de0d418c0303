from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

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


@pytest.fixture
def command(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """``sanderling serve --repository``, with its address and its folder, in which is a package."""
    root = tmp_path / "models"
    put(built(2.0), root / "demo.sdl")
    put(built(3.0), tmp_path / "outside.sdl")
    arguments = ["serve", "--repository", root, "--http", "0", "--grpc", "-1", "--metrics", "-1", "--json"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("sanderling"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SANDERLING_TOKEN": "secret", "SANDERLING_CACHE": str(tmp_path / "cache")},
    )
    try:
        ready = json.loads(process.stdout.readline())
        yield process, f"127.0.0.1:{ready['ports']['http']}", root
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()
        assert list((tmp_path / "cache" / "served").iterdir()) == []


def test_tritonclient_manages_the_repository_of_a_running_server(command):
    process, address, root = command
    token = {"Authorization": "Bearer secret"}
    client = tritonclient.http.InferenceServerClient(address)

    def factor() -> float:
        tensor = tritonclient.http.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
        return float(client.infer("demo", [tensor]).as_numpy("y")[0, 0])

    def refused(call: Callable[[], object], status: str, message: str) -> None:
        with pytest.raises(InferenceServerException, match=message) as caught:
            call()
        assert caught.value.status() == status

    ready = {"name": "demo", "version": "1", "state": "READY", "reason": ""}
    assert client.get_model_repository_index() == [ready]
    assert factor() == 2.0
    refused(lambda: client.load_model("demo"), "401", "needs a token")
    refused(lambda: client.load_model("demo", token, config="{}"), "400", "a package holds its configuration")
    refused(lambda: client.load_model(".hidden", token), "400", "is no name of a model")
    refused(lambda: client.load_model("outside", token), "404", "available are demo")
    client.unload_model("demo", token)
    assert not client.is_model_ready("demo")
    client.load_model("demo", token)
    assert factor() == 2.0
    put(built(4.0), root / "demo.sdl")
    process.send_signal(signal.SIGHUP)
    end_s = time.monotonic() + PATIENCE_S
    while factor() != 4.0:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    answer = httpx.post(f"http://{address}/v2/repository/models/demo/rollback", headers=token)
    assert (answer.status_code, answer.json()["name"]) == (200, "demo")
    assert factor() == 2.0
    assert httpx.post(f"http://{address}/v2/repository/models/demo/promote", headers=token).status_code == 409
    assert httpx.post(f"http://{address}/v2/repository/models/demo/rollback").status_code == 401
