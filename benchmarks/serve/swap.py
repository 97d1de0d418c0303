"""Measure a version swap under load: `python -m benchmarks.serve.swap [--folder DIR] [--swaps N]`.

Eight callers ask one after the other without a pause, in process, while packages of a MobileNetV3-Large with random
weights take turns in a repository. A swap is timed from the moment that the new package is in its place until the old
one is unloaded: the package is copied, its hashes and golden vectors are checked, it is loaded, run and swapped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.api import build
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import random_feeds
from sanderling.run.pool import Pool
from sanderling.serve.admission import Admission
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.repository import Repository
from sanderling.serve.repository_settings import RepositorySettings

RESULTS = Path(__file__).with_name("swap.json")
_MODEL = "benchmarks.zoo.mobilenet_v3:mobilenet_v3_large"
_CALLERS = 8
_QUIET_S = 4.0
_SETTINGS = RepositorySettings(interval_s=0.5, settle_s=0.5, grace_s=1.0)


def main() -> None:
    """Build two versions, swap them under load, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where packages go; a temporary folder by default")
    parser.add_argument("--swaps", type=int, default=5)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        versions = [_built(folder, seed) for seed in (0, 1)]
        value = {
            "machine": describe_machine().model_dump(),
            "callers": _CALLERS,
            **_swapped(folder, versions, arguments.swaps),
        }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n")
    print(json.dumps(value["swaps"], indent=1))


def _built(folder: Path, seed: int) -> Path:
    target = folder / f"version-{seed}.sdl"
    if not target.exists():
        build(
            _MODEL, target, inputs=["image=1,3,224,224"], precision="fp32", repeats=3, factory_arguments={"seed": seed}
        )
    return target


def _swapped(folder: Path, versions: list[Path], swaps: int) -> dict[str, Any]:
    root = folder / "models"
    root.mkdir(exist_ok=True)
    _put(versions[0], root)
    with Pool() as pool:
        plane = DataPlane(pool)
        repository = Repository(root, pool, plane, _SETTINGS, admission=Admission(pool, threads=1))
        repository.start()
        load = _Load(plane)
        rows: list[dict[str, Any]] = []
        time.sleep(_QUIET_S)
        for index in range(swaps):
            before_s = time.monotonic()
            time.sleep(_QUIET_S)
            put_s = time.monotonic()
            _put(versions[(index + 1) % 2], root)
            swapped_s = _wait(pool, "version-swapped", f"demo:{index + 2}")
            over_s = _wait(pool, "version-unloaded", f"demo:{index + 1}")
            rows.append(
                {
                    "swap_s": round(swapped_s - put_s, 3),
                    "before": load.latency_ms(before_s, put_s),
                    "during": load.latency_ms(put_s, over_s),
                }
            )
        load.end()
        repository.stop()
    repository.close()
    ratio = float(np.median([row["during"]["p99"] / row["before"]["p99"] for row in rows]))
    return {"failed": load.failed, "requests": len(load.ended), "p99_ratio_median": round(ratio, 3), "swaps": rows}


class _Load:
    """Callers that note when each answer came and how long it took."""

    def __init__(self, plane: DataPlane) -> None:
        self.ended: list[tuple[float, float]] = []
        self.failed = 0
        self._plane = plane
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(index,)) for index in range(_CALLERS)]
        for thread in self._threads:
            thread.start()

    def latency_ms(self, from_s: float, to_s: float) -> dict[str, float]:
        """Percentiles of the answers that came in a span of time, and how many there were."""
        found = [took_ms for at_s, took_ms in list(self.ended) if from_s <= at_s < to_s]
        return {**{name: round(value, 3) for name, value in percentiles(found).items()}, "requests": len(found)}

    def end(self) -> None:
        """Ask no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, index: int) -> None:
        feeds = random_feeds(self._plane.model("demo").session.inputs, seed=index)
        while not self._over.is_set():
            since_s = time.monotonic()
            try:
                self._plane.submit(self._plane.model("demo"), feeds).result(60)
            except Exception as error:  # noqa: BLE001 - none may fail, whatever it is
                self.failed += 1
                print(error)
            now_s = time.monotonic()
            self.ended.append((now_s, (now_s - since_s) * 1e3))


def _put(package: Path, root: Path) -> None:
    scratch, target = root / ".new", root / "demo.sdl"
    shutil.copytree(package, scratch)
    if target.exists():
        target.rename(root / ".old")
    scratch.rename(target)
    shutil.rmtree(root / ".old", ignore_errors=True)


def _wait(pool: Pool, kind: str, subject: str) -> float:
    end_s = time.monotonic() + 120
    while not any((event.kind, event.subject) == (kind, subject) for event in pool.events):
        if time.monotonic() > end_s:
            raise SystemExit(f"no {kind} of {subject}: {pool.events}")
        time.sleep(0.01)
    return time.monotonic()


if __name__ == "__main__":
    main()
