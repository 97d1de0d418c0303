"""What watching costs: `python -m benchmarks.serve.dashboard`.

Metrics and live samples for each request, a second's sample, and processor time of a server that five pages watch,
beside one that nobody watches; both in turn, without load, with ten minutes of history. Writes `dashboard.json`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Semaphore
from pathlib import Path

from sanderling.api import build
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.run.pool import Pool
from sanderling.serve.dashboard import assets
from sanderling.serve.data_plane import DataPlane, Finished
from sanderling.serve.live import HISTORY_S, Live
from sanderling.serve.metrics import Metrics
from sanderling.serve.server import Server
from sanderling.serve.settings import Settings
from tests.models import conv_classifier, save

RESULTS = Path(__file__).with_name("dashboard.json")
_REQUESTS, _ROUNDS, _WATCHED_S, _VIEWERS = 100_000, 5, 10.0, 5
_NEVER_S = 3600.0


def main() -> None:
    """Measure, and write the result."""
    with tempfile.TemporaryDirectory() as folder:
        package = build(save(conv_classifier(), Path(folder) / "tiny.onnx"), Path(folder) / "tiny.sdl", repeats=3).path
        value = {
            "command": "python -m benchmarks.serve.dashboard",
            "machine": describe_machine().model_dump(),
            "requests": _REQUESTS,
            "rounds": _ROUNDS,
            "page_bytes": sum(len(asset.content) for asset in assets().values()),
            **observing(package),
            "watching": asyncio.run(watching(package)),
        }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(value, indent=1))


def observing(package: Path) -> dict[str, object]:
    """Microseconds of processor time that a request costs, and milliseconds of a second's sample with so many."""
    finished = Finished("tiny", "1", ok=True, queue_ms=1.0, compute_ms=5.0, total_ms=6.5, batch_rows=4, device="cpu")
    with Pool() as pool:
        plane = DataPlane(pool)
        plane.add(pool.load(package, name="tiny"), name="tiny")
        metrics = Metrics(plane)
        with Live(plane, interval_s=_NEVER_S) as live:
            ticks = []
            observe: dict[str, list[float]] = {"metrics": [], "live": []}
            for _ in range(_ROUNDS):
                observe["metrics"].append(_each_us(metrics.observe, finished))
                observe["live"].append(_each_us(live.observe, finished))
                begun_s = time.process_time()
                live.tick()
                ticks.append((time.process_time() - begun_s) * 1e3)
            scrapes = [_each_us(lambda _: metrics.exposition(), finished, 50) / 1e3 for _ in range(_ROUNDS)]
    return {
        "observe_us": {name: percentiles(times) for name, times in observe.items()},
        f"tick_with_{_REQUESTS}_requests_ms": percentiles(ticks),
        "scrape_ms": percentiles(scrapes),
    }


async def watching(package: Path) -> dict[str, object]:
    """Processor milliseconds a second of a server, by the number of viewers."""
    server = Server(Settings(packages=(package,), http_port=0, grpc_port=None, metrics_port=None))
    await server.start()
    for _ in range(HISTORY_S):
        server.live.tick()
    port = server.ends["http"].port
    costs: dict[int, list[float]] = {0: [], _VIEWERS: []}
    received: list[int] = []
    try:
        for _ in range(_ROUNDS):
            for viewers in costs:
                cost, sizes = await _watched(port, viewers)
                costs[viewers].append(cost)
                received += sizes
    finally:
        await server.stop(0.0)
    return {
        "seconds": _WATCHED_S,
        "cpu_ms_a_second": {str(viewers): percentiles(times) for viewers, times in costs.items()},
        "history_and_seconds_bytes": percentiles(received),
    }


async def _watched(port: int, viewers: int) -> tuple[float, list[int]]:
    """Processor time of this process while others watch, first history included; and what they received."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Semaphore(0), context.Queue()
    processes = [context.Process(target=_view, args=(port, ready, results)) for _ in range(viewers)]
    for process in processes:
        process.start()
    for _ in processes:
        await asyncio.to_thread(ready.acquire)
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(_WATCHED_S)
    cost = (time.process_time() - begun_cpu_s) * 1e3 / (time.monotonic() - begun_s)
    sizes = [await asyncio.to_thread(results.get) for _ in processes]
    for process in processes:
        await asyncio.to_thread(process.join)
    return cost, sizes


def _view(port: int, ready: Semaphore, results: multiprocessing.Queue[int]) -> None:
    """Read the stream as a page does."""
    ready.release()
    received = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        end_s = time.monotonic() + _WATCHED_S
        while (left_s := end_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            try:
                received += len(connection.recv(1 << 16))
            except TimeoutError:
                break
    results.put(received)


def _each_us(call: Callable[[Finished], object], finished: Finished, count: int = _REQUESTS) -> float:
    begun_s = time.process_time()
    for _ in range(count):
        call(finished)
    return (time.process_time() - begun_s) * 1e6 / count


if __name__ == "__main__":
    main()
