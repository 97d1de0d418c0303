"""Measure the live runtime: `python -m benchmarks.runtime.live [--folder DIR] [--quick]`.

What a session adds to the engine's call, what it copies, how quickly it switches under load, what batches reach, and
how well the twin predicts it. ResNet-18 with random weights and a dynamic batch, a graph that adds two vectors, and
this machine's engines. About six minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.engines.overhead import in_turn
from sanderling.api import build
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array, random_feeds
from sanderling.measure.latency import time_interleaved
from sanderling.model.package import Package
from sanderling.run.emulation.table import LatencyTable, TableEntry
from sanderling.run.engines.base import DeviceKind, EngineOptions
from sanderling.run.lanes import LanePlan
from sanderling.run.placing import Place
from sanderling.run.policy.document import BatchTuning, Deadlines, Policy, Recovery
from sanderling.run.results import Outputs
from sanderling.run.session import PLAIN, Session
from sanderling.twin.contenders import of_policy
from sanderling.twin.simulate import Outcome, play
from sanderling.twin.traces import Trace, trace_of

RESULTS = Path(__file__).with_name("live.json")
_MODEL = "benchmarks.zoo.resnet18:resnet18"
_SIZES = (1, 2, 4, 8, 16)
_CALLERS, _HAMMERING = 32, 8
_ENGINE = "onnxruntime"
_LOAD = 0.6  # of what the engine can do, for the twin
_LEAST_CALLS = 5  # of a batch size, to be told in a table


def main() -> None:
    """Run all parts in turn; a quick look is printed, not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where packages go; a temporary folder by default")
    parser.add_argument("--quick", action="store_true", help="short: to see that it works, not how fast")
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else 1.0
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sums, images = _packages(folder)
        value = {
            "command": "python -m benchmarks.runtime.live",
            "machine": describe_machine().model_dump(),
            "engine": _ENGINE,
            "threads": usable_cores(),
            "overhead_us": overhead(sums, calls=round(5000 * scale)),
            "copies": copies(sums),
            "switch_hot": switch_hot(sums, switches=round(2000 * scale)),
            "switch_cold": switch_cold(images, seconds=10 * scale),
            "throughput": throughput(images, rounds=max(round(5 * scale), 1), seconds=6 * scale),
            "idle_latency": idle_latency(images, calls=round(400 * scale)),
            "twin": twin_against_reality(images, seconds=60 * scale),
        }
    text = json.dumps(value, indent=1) + "\n"
    if arguments.quick:
        print(text)
    else:
        RESULTS.write_text(text, encoding="utf-8")


def overhead(package: Package, *, calls: int) -> dict[str, dict[str, float]]:
    """Median microseconds of the engine's own call and of a session's, in turn, by kind of policy."""
    feeds = random_feeds(package.manifest.inputs)
    found = {}
    for name, policy in {"no policy": PLAIN, "policy with batches and guard": Policy()}.items():
        with _session(package, policy, threads=1) as session:
            raw = partial(_executable(session).run, feeds)
            taken = {"engine": raw, "session": partial(session.run, feeds)}
            found[name] = in_turn(taken, "engine", count=calls)
    return found


def copies(package: Package) -> dict[str, int]:
    """Bytes that are copied for a call with contiguous inputs and the caller's own outputs."""
    feeds = random_feeds(package.manifest.inputs)
    outputs = {spec.name: np.zeros(spec.concrete_shape(), spec.dtype) for spec in package.manifest.outputs}
    with _session(package, PLAIN, threads=1) as session:
        before = session.copied_bytes
        result = session.run(feeds, outputs)
        if not all(result[name] is outputs[name] for name in outputs):
            raise RuntimeError("the result is not where the caller wanted it")
        return {"inputs": sum(array.nbytes for array in feeds.values()), "copied": session.copied_bytes - before}


def switch_hot(package: Package, *, switches: int) -> dict[str, Any]:
    """Milliseconds that a switch to a loaded lane takes while callers hammer, and what became of their requests."""
    wrong = [0]
    done = [0]
    stop = threading.Event()
    policy = Policy(recovery=Recovery(loading="hot"))
    with _session(package, policy, threads=1, engines=(_ENGINE, "openvino")) as session:
        threads = [threading.Thread(target=_hammer, args=(session, stop, done, wrong)) for _ in range(_HAMMERING)]
        for thread in threads:
            thread.start()
        samples = []
        for index in range(switches):
            lane = index % 2
            start = time.perf_counter()
            session._runtime.switch(session.manifest.name, 1 - lane, "measured")
            samples.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.002)
        stop.set()
        for thread in threads:
            thread.join()
        counts = session.statistics()
    return {
        "callers": _HAMMERING,
        "switches": switches,
        "ms": percentiles(samples),
        "requests": done[0],
        "failed": counts.requests["failed"],
        "wrong": wrong[0],
    }


def _hammer(session: Session, stop: threading.Event, done: list[int], wrong: list[int]) -> None:
    generator = np.random.default_rng(threading.get_ident() % 2**32)
    while not stop.is_set():
        a, b = (generator.standard_normal((1, 3)).astype(np.float32) for _ in range(2))
        outputs = session.run({"a": a, "b": b})
        wrong[0] += not np.allclose(outputs["sum"], a + b)
        done[0] += 1


def switch_cold(package: Package, *, seconds: float) -> dict[str, Any]:
    """What callers see when the lane that is switched to has to be loaded first."""
    with _session(package, Policy(), engines=(_ENGINE, "openvino")) as session:
        feeds = random_feeds(package.manifest.inputs)
        start = time.perf_counter()
        with _session(package, PLAIN, engines=("openvino",)):
            load_ms = (time.perf_counter() - start) * 1e3
        latencies: list[float] = []
        end = time.monotonic() + seconds

        def call() -> None:
            while time.monotonic() < end:
                begun = time.perf_counter()
                session.run(feeds)
                latencies.append((time.perf_counter() - begun) * 1e3)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 2)
        session._runtime.switch(session.manifest.name, 1, "measured")
        for thread in threads:
            thread.join()
        counts = session.statistics().requests
    return {
        "load_ms": load_ms,
        "requests": counts["requests"],
        "failed": counts["failed"],
        "latency_ms": percentiles(latencies),
        "longest_ms": max(latencies),
    }


def throughput(package: Package, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Rows a second of the engine's own calls at every batch size, and of 32 callers with one row each, in turn."""
    raw: dict[int, list[float]] = {size: [] for size in _SIZES}
    served: list[float] = []
    policy = Policy(batch_tuning=BatchTuning(max_batch_size=_SIZES[-1], latency_target=1_000))
    with _session(package, policy) as session:
        executable = _executable(session)
        batches = {size: random_feeds(package.manifest.inputs, batch=size) for size in _SIZES}
        for size in _SIZES:
            executable.run(batches[size])
        _served_rows(session, batches[1], seconds)  # the latencies are learned
        for _ in range(rounds):
            for size, rates in raw.items():
                rates.append(_rate(partial(executable.run, batches[size]), seconds / len(_SIZES)) * size)
            served.append(_served_rows(session, batches[1], seconds))
        statistics = session.statistics()
    medians = {size: float(np.median(rates)) for size, rates in raw.items()}
    best = max(medians, key=lambda size: medians[size])
    rate = float(np.median(served))
    return {
        "callers": _CALLERS,
        "raw_rows_per_s": medians,
        "best_batch": best,
        "served_rows_per_s": rate,
        "of_best": rate / medians[best],
        "mean_batch": statistics.requests["completed"] / max(statistics.batches, 1),
        "rounds": {"raw": raw, "served": served},
    }


def _rate(call: Callable[[], object], seconds: float) -> float:
    """Calls a second."""
    start = time.perf_counter()
    count = 0
    while time.perf_counter() < start + seconds:
        call()
        count += 1
    return count / (time.perf_counter() - start)


def _served_rows(session: Session, feeds: Mapping[str, Array], seconds: float) -> float:
    """Rows a second that callers with one row each get, each with its next request after the last answer."""
    end = time.perf_counter() + seconds
    counts = [0] * _CALLERS

    def call(caller: int) -> None:
        while time.perf_counter() < end:
            session.run(feeds)
            counts[caller] += 1

    start = time.perf_counter()
    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def idle_latency(package: Package, *, calls: int) -> dict[str, Any]:
    """Milliseconds of a lone request, by the engine alone, without and with batching, in turn."""
    feeds = random_feeds(package.manifest.inputs)
    policy = Policy(batch_tuning=BatchTuning(max_batch_size=_SIZES[-1]))
    with _session(package, PLAIN) as plain, _session(package, policy) as batching:
        timings = time_interleaved(
            {
                "engine": partial(_executable(plain).run, feeds),
                "unbatched": partial(plain.run, feeds),
                "batching": partial(batching.run, feeds),
            },
            warmup=10,
            repeats=calls,
        )
    return {name: timing.model_dump(exclude={"samples_ms"}) for name, timing in timings.items()} | {
        "batching_over_unbatched": timings["batching"].p50 / timings["unbatched"].p50
    }


def twin_against_reality(package: Package, *, seconds: float) -> dict[str, Any]:
    """Latencies of one trace, live and on the twin's clock, with a latency table from a rehearsal of another trace."""
    policy = Policy(
        batch_tuning=BatchTuning(max_batch_size=8, latency_target=100), deadlines=Deadlines(drop_late=False)
    )
    name = package.manifest.name
    with _session(package, policy) as session:
        rate = _LOAD * 1e3 / _row_ms(session)
        spec = f"poisson:{name}@{rate:.1f}/s"
        _, rehearsed = _play_live(session, trace_of(spec, minutes=seconds / 120, seed=3))
        table = _rehearsed_table(rehearsed, name)
        trace = trace_of(spec, minutes=seconds / 60, seed=1)
        live_ms, _ = _play_live(session, trace)
    played = play(of_policy("twin", policy, [name], table), trace, table, seed=2)
    done = played.outcome == Outcome.DONE
    live, twin = percentiles(live_ms), percentiles((played.end_ms - trace.time_ms)[done])
    return {
        "requests": len(trace),
        "rate_per_s": rate,
        "table": table.model_dump(mode="json"),
        "live_ms": live,
        "twin_ms": twin,
        "p50_error": twin["p50"] / live["p50"] - 1,
        "p99_error": twin["p99"] / live["p99"] - 1,
    }


def _row_ms(session: Session) -> float:
    """Median milliseconds of a call with one row."""
    call = partial(_executable(session).run, random_feeds(session.inputs))
    return time_interleaved({"call": call}, warmup=10, repeats=50)["call"].p50


def _rehearsed_table(calls: dict[int, list[float]], name: str) -> LatencyTable:
    """Mean latency of the calls of each size, and how much those of one size differ."""
    means = {rows: float(np.mean(values)) for rows, values in sorted(calls.items()) if len(values) >= _LEAST_CALLS}
    spread = [value / means[rows] for rows, values in calls.items() if rows in means for value in values]
    entry = TableEntry(latency_ms=means, jitter=float(np.std(spread)))
    return LatencyTable(source="a rehearsal", models={name: {"cpu": entry}})


def _play_live(session: Session, trace: Trace) -> tuple[list[float], dict[int, list[float]]]:
    """Submit every request when it is due.

    Returns:
        Milliseconds from when each was due to its result, and milliseconds of the engine's calls by their rows.
    """
    feeds = random_feeds(session.inputs)
    latencies: list[float] = []
    futures: list[Future[Outputs]] = []
    start = time.perf_counter() + 0.1

    def note(due_s: float, _: object) -> None:
        latencies.append((time.perf_counter() - due_s) * 1e3)

    for index, time_ms in enumerate(trace.time_ms):
        due_s = start + float(time_ms) / 1e3
        time.sleep(max(due_s - time.perf_counter(), 0.0))
        future = session.submit(feeds, stream=index)
        future.add_done_callback(partial(note, due_s))
        futures.append(future)
    calls: dict[int, list[float]] = {}
    for outputs in (future.result() for future in futures):
        calls.setdefault(outputs.batch_rows, []).append(outputs.compute_ms)
    return latencies, calls


def _session(package: Package, policy: Policy, *, threads: int = 0, engines: tuple[str, ...] = (_ENGINE,)) -> Session:
    """The FP32 variant on these engines, in this order."""
    options = EngineOptions(threads=threads or usable_cores())
    variant = package.variant("fp32")
    return Session(
        package, policy, [LanePlan(Place(name, variant, options), "cpu", DeviceKind.CPU) for name in engines]
    )


def _executable(session: Session) -> Any:  # noqa: ANN401 - an engine's executable
    return session._served.lanes[0].load()


def _packages(folder: Path) -> tuple[Package, Package]:
    """A graph that adds two vectors, and ResNet-18, both with a dynamic batch."""
    folder.mkdir(parents=True, exist_ok=True)
    vector = [("N", 3)] * 3
    names = ("a", "b", "sum")
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip(names, vector, strict=True)
    ]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["sum"])], "sum", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    source = folder / "sum.onnx"
    onnx.save(model, str(source))
    targets = {"sum": (str(source), {}), "resnet18": (_MODEL, {"inputs": ["input=1,3,224,224"], "dynamic": ["batch"]})}
    found = []
    for name, (of, options) in targets.items():
        target = folder / f"{name}.sdl"
        if not target.exists():
            build(of, target, precision="fp32", repeats=3, **options)  # type: ignore[arg-type]
        found.append(Package.open(target))
    return found[0], found[1]


if __name__ == "__main__":
    main()
