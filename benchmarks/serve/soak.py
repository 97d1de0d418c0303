"""The soak of the server: `python -m benchmarks.serve.soak [--seconds N] [--json FILE]`.

Clients over HTTP, gRPC and shared memory ask without a pause for numbers that show whose they are. Meanwhile clients
are killed in the middle of a request and others come, a second model is loaded and unloaded, and the process of an
engine is ended by SIGSEGV every half a minute. No answer may be wrong, no request lost but that of a client that was
killed, and the server's memory must not grow. Exit code 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.http

from benchmarks.runtime.soak import drift
from benchmarks.serve.soak_clients import ANSWERED, KINDS, REFUSED, SENT, WRONG, Client, give_back, start
from benchmarks.serve.soak_server import TOKEN
from sanderling.api import build
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import fitted_slope
from tests.models import save, sum_and_difference

RESULTS = Path(__file__).with_name("soak.json")
_TOKEN = "soak"
_POLICY = {
    "isolation": "process",
    "devicePriorities": ["cpu"],
    "precisionLadder": ["fp32", "fp16"],
    "recovery": {"holdOff": 2000},
}
_CLIENTS_A_KIND = 2
_SAMPLE_S, _KILL_S, _LOAD_S, _CRASH_S = 0.1, 4.0, 3.0, 30.0
_READY_S = 60.0
_OLD_S = 15.0  # of a process that serves; a younger one may check a package, which is refused where it crashes
_BLOCKS = 20  # of samples, whose means are compared
_WORKER = "sanderling.run.worker"


def main() -> int:
    """Run it, and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        value = {
            "command": f"python -m benchmarks.serve.soak --seconds {options.seconds:g}",
            "machine": describe_machine().model_dump(mode="json"),
            **_soaked(Path(folder), options.seconds),
        }
    text = json.dumps(value, indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if value["passed"] else 1


def _soaked(folder: Path, seconds: float) -> dict[str, Any]:
    repository = folder / "models"
    repository.mkdir()
    source = save(sum_and_difference(), folder / "sums.onnx")
    for name in ("sums", "extra"):
        build(source, repository / f"{name}.sdl", precision="fp32,fp16", repeats=3)
    (folder / "policy.json").write_text(json.dumps(_POLICY))
    with (folder / "log.txt").open("wb") as log:
        server = _started(repository, folder, log)
    try:
        told = json.loads((server.stdout or sys.stdin).readline())
        drill = _Drill(server.pid, told["ports"])
        drill.run(seconds)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(_READY_S)
        except subprocess.TimeoutExpired:
            server.kill()
    return {**drill.result(), "server_exit_code": server.returncode}


def _started(repository: Path, folder: Path, log: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - a file
    command = [sys.executable, "-m", "benchmarks.serve.soak_server", str(repository), str(folder / "policy.json")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)


class _Drill:
    """What happens to the server, and what came of it.

    Args:
        pid: of the server.
        ports: of its ends.
    """

    def __init__(self, pid: int, ports: dict[str, int]) -> None:
        self._process = psutil.Process(pid)
        self._ports = ports
        self._chooser = random.Random(0)
        self._numbers = itertools.count(1)
        self._clients: list[Client] = []
        self._ended: list[tuple[Client, bool]] = []  # and whether it was killed
        self._happened: Counter[str] = Counter()
        self._samples: list[tuple[float, int]] = []
        self._is_over = threading.Event()
        self._faults: list[str] = []

    def run(self, seconds: float) -> None:
        """Let clients ask, and do to the server what may happen to one."""
        self._wait_until_ready()
        for kind in KINDS * _CLIENTS_A_KIND:
            self._clients.append(start(kind, next(self._numbers), self._ports))
        acts = ((self._sample, _SAMPLE_S), (self._kill_a_client, _KILL_S), (self._crash_a_worker, _CRASH_S))
        threads = [threading.Thread(target=self._repeat, args=act) for act in (*acts, (self._load_or_unload, _LOAD_S))]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._is_over.set()
        for thread in threads:
            thread.join()
        for client in self._clients:
            client.stop()
            give_back(client.region, self._ports["http"])
            self._ended.append((client, False))

    def result(self) -> dict[str, Any]:
        """Counts, and the slope of memory."""
        counts = {name: sum(client.counts[place] for client, _ in self._ended) for name, place in _COUNTS.items()}
        by_kind = {
            kind: sum(client.counts[ANSWERED] for client, _ in self._ended if client.kind == kind) for kind in KINDS
        }
        open_ones = [
            (client.counts[SENT] - client.counts[ANSWERED] - client.counts[REFUSED], was_killed)
            for client, was_killed in self._ended
        ]
        lost = sum(count for count, was_killed in open_ones if not was_killed) + counts["refused"]
        self._faults += [f"client over {client.kind} ended" for client, _ in self._ended if client.has_failed]
        slope = _slope(self._samples)
        return {
            "seconds": round(self._samples[-1][0] - self._samples[0][0], 1),
            "requests": counts,
            "answered_by_kind": by_kind,
            "open_when_their_client_was_killed": sum(count for count, was_killed in open_ones if was_killed),
            "lost": lost,
            "happened": dict(self._happened),
            "faults": self._faults,
            "resident_bytes": {"first": self._samples[0][1], "last": self._samples[-1][1]},
            "bytes_an_hour": slope,
            "passed": not lost and not counts["wrong"] and not self._faults and slope["low"] <= 0 <= slope["high"],
        }

    def _repeat(self, act: Callable[[], None], period_s: float) -> None:
        """Do something again and again until all is over; a fault ends it, and is told."""
        try:
            while not self._is_over.wait(period_s):
                act()
        except Exception as error:  # noqa: BLE001 - it counts
            self._faults.append(f"{type(error).__name__}: {error}")

    def _sample(self) -> None:
        self._samples.append((time.monotonic(), self._process.memory_info().rss))

    def _control(self) -> Any:  # noqa: ANN401 - Triton's clients have no types
        return tritonclient.http.InferenceServerClient(f"127.0.0.1:{self._ports['http']}", network_timeout=_READY_S)

    def _wait_until_ready(self) -> None:
        control, end_s = self._control(), time.monotonic() + _READY_S
        while not (control.is_model_ready("sums") and control.is_model_ready("extra")):
            if time.monotonic() > end_s:
                raise SystemExit("the server is not ready")
            time.sleep(0.2)
        control.close()

    def _kill_a_client(self) -> None:
        client = self._clients.pop(self._chooser.randrange(len(self._clients)))
        client.kill()
        give_back(client.region, self._ports["http"])
        self._ended.append((client, True))
        self._happened["clients killed"] += 1
        self._clients.append(start(client.kind, next(self._numbers), self._ports))

    def _load_or_unload(self) -> None:
        """Load the second model, or unload it again."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        control = self._control()
        if self._happened["unloads"] == self._happened["loads"]:
            control.unload_model("extra", headers=headers)
            self._happened["unloads"] += 1
        else:
            control.load_model("extra", headers=headers)
            self._happened["loads"] += 1
        control.close()

    def _crash_a_worker(self) -> None:
        """End one of the engine's processes as a fault in native code does."""
        workers = [
            child
            for child in self._process.children()
            if _WORKER in child.cmdline() and time.time() - child.create_time() > _OLD_S
        ]
        if workers:
            self._chooser.choice(workers).send_signal(signal.SIGSEGV)
            self._happened["crashes"] += 1


_COUNTS = {"sent": SENT, "answered": ANSWERED, "wrong": WRONG, "refused": REFUSED}


def _slope(samples: list[tuple[float, int]]) -> dict[str, float]:
    """Bytes an hour that memory grew in the second half, with the 95 % interval."""
    half = np.array(samples[len(samples) // 2 :])
    blocks = [float(part[:, 1].mean()) for part in np.array_split(half, _BLOCKS)]
    hours = (half[-1, 0] - half[0, 0]) / _BLOCKS / 3600
    low, high = drift(blocks)
    return {
        name: round(value / hours) for name, value in (("slope", fitted_slope(blocks)[0]), ("low", low), ("high", high))
    }


if __name__ == "__main__":
    sys.exit(main())
