"""Sanderling beside its peers: `python -m benchmarks.serve.peers --environments DIR [--rounds N] [--seconds S]`.

Each peer is installed by pip to a virtual environment of its own in DIR, which is kept there until you delete it. All
serve the same graph on ONNX Runtime with one thread, one instance and batches of up to 8, and are measured in turn,
round after round. What is compared is processor time: user and system, of a server and all its processes, divided by
the requests that it answered. It holds on a machine that others use too; requests a second do not. Writes `peers.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import uvloop

from benchmarks.serve.load import cpu_s
from benchmarks.serve.peer_loads import Load
from benchmarks.serve.peer_processes import OURS, PEERS, REQUIREMENTS, Graph, Peer, Running, running
from sanderling.api import build
from sanderling.core.errors import UnavailableError
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array
from sanderling.model.package import Package

RESULTS = Path(__file__).with_name("peers.json")
CONCURRENCY = (1, 8, 32)
_BATCHES = (1, 2, 4, 8)
_WARM_S = 0.5
_RAW_S = 1.0
_MODEL = "benchmarks.zoo.mobilenet_v3:mobilenet_v3_small"
_TINY = ("tiny", 256, 4)
_SMALL_REQUESTS = ("Triton",)  # peers that are measured with small requests too


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--environments", type=Path, required=True, help="where the peers are installed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--peers", default="", help="only those whose names begin so, with a comma between them")
    parser.add_argument("--graphs", default="mobilenet,tiny")
    options = parser.parse_args()
    wanted = tuple(filter(None, options.peers.split(",")))
    peers = [peer for peer in PEERS if not wanted or peer.name.startswith(wanted)]
    graphs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.graphs.split(","):
            graph = _mobilenet(Path(folder)) if name == "mobilenet" else _tiny(Path(folder))
            chosen = peers if name == "mobilenet" else [peer for peer in peers if peer.name in _SMALL_REQUESTS]
            graphs[name] = _measured(graph, chosen, options, Path(folder) / f"servers-{name}")
    value = {
        "command": f"python -m benchmarks.serve.peers --environments DIR --rounds {options.rounds} "
        f"--seconds {options.seconds:g}",
        "machine": describe_machine().model_dump(),
        "peers": REQUIREMENTS,
        "engine_threads": 1,
        "most_rows": 8,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "warm_s": _WARM_S,
        "graphs": graphs,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _measured(graph: Graph, peers: Sequence[Peer], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All servers in turn, round after round."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((max(CONCURRENCY), 1, *graph.row_shape), np.float32)
    session = _session(graph)
    (expected,) = session.run(None, {graph.input: rows[0]})
    failed: list[dict[str, str]] = []
    others: list[float] = []
    cells: dict[tuple[str, int | None, str], dict[int, list[dict[str, Any]]]] = {}
    raw: dict[int, list[float]] = {size: [] for size in _BATCHES}
    with ExitStack() as stack:
        loads = []
        for index, peer in enumerate((OURS, *peers)):
            try:
                server = stack.enter_context(running(peer, graph, options.environments, folder / str(index)))
                for kind in peer.kinds:
                    memory = stack.enter_context(_memory(rows, graph)) if kind == "memory" else None
                    load = Load(kind, server, graph, rows, memory)
                    asyncio.run(load.check(expected))
                    loads.append((server, load))
            except UnavailableError as error:
                failed.append({"name": peer.name, "delay_us": str(peer.delay_us), "told": str(error)})
                print(f"{peer.name}: {error}", file=sys.stderr)
        for number in range(options.rounds):
            others.append(round(os.getloadavg()[0], 2))
            for size in _BATCHES:
                raw[size].append(_raw_ms(session, graph, rows, size))
            for server, load in loads:
                by_concurrency = cells.setdefault((server.peer.name, server.peer.delay_us, load.kind), {})
                for concurrency in CONCURRENCY:
                    cell = _cell(server, load, concurrency, options.seconds)
                    by_concurrency.setdefault(concurrency, []).append(cell)
                    told = f"{cell['cpu_ms']:.3f} ms, {cell['requests_per_s']:.0f} /s"
                    print(number, server.peer.name, server.peer.delay_us, load.kind, concurrency, told, file=sys.stderr)
    return {
        "request_bytes": int(rows[0].nbytes),
        "raw_cpu_ms_a_row": {str(size): percentiles(times) for size, times in raw.items()},
        "servers": [
            {"name": name, "delay_us": delay_us, "kind": kind, "concurrency": _summary(by_concurrency)}
            for (name, delay_us, kind), by_concurrency in cells.items()
        ],
        "failed": failed,
        "load_average_by_round": others,
    }


def _cell(server: Running, load: Load, concurrency: int, seconds: float) -> dict[str, Any]:
    """One measurement of one end."""
    uvloop.run(load.run(concurrency=concurrency, seconds=_WARM_S))
    before_s, since_s = cpu_s(server.process.pid), time.perf_counter()
    latencies_ms = uvloop.run(load.run(concurrency=concurrency, seconds=seconds))
    used_s, passed_s = cpu_s(server.process.pid) - before_s, time.perf_counter() - since_s
    return {
        "requests": len(latencies_ms),
        "cpu_ms": used_s * 1e3 / len(latencies_ms),
        "requests_per_s": len(latencies_ms) / passed_s,
        "latency_ms": percentiles(latencies_ms),
    }


def _summary(by_concurrency: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, with every round's processor time."""
    return {
        str(concurrency): {
            "cpu_ms": float(np.median([cell["cpu_ms"] for cell in cells])),
            "cpu_ms_rounds": [round(cell["cpu_ms"], 4) for cell in cells],
            "requests_per_s": float(np.median([cell["requests_per_s"] for cell in cells])),
            "requests": sum(cell["requests"] for cell in cells),
            "latency_ms": {
                name: float(np.median([cell["latency_ms"][name] for cell in cells])) for name in cells[0]["latency_ms"]
            },
        }
        for concurrency, cells in by_concurrency.items()
    }


def _raw_ms(session: onnxruntime.InferenceSession, graph: Graph, rows: Array, size: int) -> float:
    """Milliseconds of processor time a row, of calls with so many rows."""
    joined = np.concatenate(rows[:size])
    session.run(None, {graph.input: joined})
    count, end_s, begun_s = 0, time.perf_counter() + _RAW_S, time.process_time()
    while time.perf_counter() < end_s:
        session.run(None, {graph.input: joined})
        count += size
    return (time.process_time() - begun_s) * 1e3 / count


def _session(graph: Graph) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])


@contextmanager
def _memory(rows: Array, graph: Graph) -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=rows.nbytes + len(rows) * graph.output_size * 4)
    try:
        yield memory
    finally:
        memory.close()
        memory.unlink()


def _mobilenet(folder: Path) -> Graph:
    """MobileNetV3-Small with random weights, 602,112 bytes a row."""
    package = folder / "mobilenet.sdl"
    build(_MODEL, package, inputs=["image=1,3,224,224"], dynamic=["batch"], precision="fp32", repeats=3)
    return _graph(package)


def _tiny(folder: Path) -> Graph:
    """A matrix of 4 × 256, 1,024 bytes a row."""
    from onnx import helper

    from tests.models import make_model, save, tensor

    name, features, classes = _TINY
    weights = np.random.default_rng(0).standard_normal((classes, features)).astype(np.float32)
    nodes = [helper.make_node("Gemm", ["x", "weight"], ["scores"], transB=1)]
    model = make_model(nodes, [tensor("x", ["N", features])], [tensor("scores", ["N", classes])], {"weight": weights})
    package = folder / f"{name}.sdl"
    build(save(model, folder / f"{name}.onnx"), package, precision="fp32", repeats=3)
    return _graph(package)


def _graph(folder: Path) -> Graph:
    package = Package.open(folder)
    manifest = package.manifest
    variant = manifest.variants[0]
    given, result = manifest.inputs[0], manifest.outputs[0]
    shape, size = given.concrete_shape()[1:], result.concrete_shape()[1]
    return Graph(manifest.name, package.file(variant.file), folder, given.name, shape, result.name, size)


if __name__ == "__main__":
    main()
