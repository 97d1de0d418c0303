"""What it costs to hand tensors over: `python -m benchmarks.engines.transport`.

To a worker process, over the pipe and through shared memory, on the null engine with a picture of 600 KB; and to an
engine in this process, with results in new arrays and in the caller's. All ways take turns. Writes `transport.json`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Feeds
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable
from sanderling.run.isolated import Worker

RESULTS = Path(__file__).with_name("transport.json")
_PICTURE = [1, 3, 224, 224]
_CALLS, _WARMUP = 2000, 20
_ENGINES = ("onnxruntime", "openvino")
Calls = Mapping[str, tuple[Executable, Callable[[], object]]]


def main() -> None:
    """Measure both, and write the result."""
    value = {
        "command": "python -m benchmarks.engines.transport",
        "machine": describe_machine().model_dump(),
        "calls": _CALLS,
        "threads": 1,
        "input_bytes": picture()["x"].nbytes,
        "worker_us": to_worker(),
        "engine_us": {
            "600 KB in and out": to_engines(_graph("Relu", _PICTURE, _PICTURE), picture()),
            "16 bytes in and out": to_engines(_graph("Relu", [1, 4], [1, 4]), {"x": np.ones((1, 4), np.float32)}),
        },
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(value, indent=1))


def to_worker() -> dict[str, dict[str, float]]:
    """Microseconds of a call to a worker that computes nothing, and the bytes copied by one, by the way taken."""
    with tempfile.TemporaryDirectory() as folder, Worker(share=False) as piped, Worker() as sharing:
        model = Path(folder) / "model.onnx"
        model.write_bytes(_graph("GlobalMaxPool", _PICTURE, [1, 3, 1, 1]))
        pipe, shared = (worker.load("null", model, EngineOptions()) for worker in (piped, sharing))
        feeds, inside, results = picture(), shared.buffers(), shared.output_buffers()
        inside["x"][:] = feeds["x"]
        return measured(
            {
                "pipe": (pipe, partial(pipe.run, feeds)),
                "shared memory, copied in and out": (shared, partial(shared.run, feeds)),
                "shared memory, input in place": (shared, partial(shared.run, inside)),
                "shared memory, all in place": (shared, partial(shared.run, inside, results)),
            }
        )


def to_engines(graph: bytes, feeds: Feeds) -> dict[str, dict[str, float]]:
    """Microseconds of a call with results in new arrays and in the caller's, by engine that is installed."""
    calls: dict[str, tuple[Executable, Callable[[], object]]] = {}
    for name in _ENGINES:
        if engine(name).availability().installed:
            loaded = engine(name).load(graph, EngineOptions(threads=1))
            outputs = {key: array.copy() for key, array in loaded.run(feeds).items()}
            calls[f"{name}, new arrays"] = (loaded, partial(loaded.run, feeds))
            calls[f"{name}, the caller's arrays"] = (loaded, partial(loaded.run, feeds, outputs))
    found = measured(calls)
    for loaded, _ in calls.values():
        loaded.close()
    return found


def measured(calls: Calls) -> dict[str, dict[str, float]]:
    """Percentiles of calls that take turns, and the bytes that one of them copies."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    copied = dict.fromkeys(calls, 0)
    for index in range(_WARMUP + _CALLS):
        for name, (loaded, call) in calls.items():
            before, start = loaded.copied_bytes, time.perf_counter()
            call()
            taken = (time.perf_counter() - start) * 1e6
            if index >= _WARMUP:
                samples[name].append(taken)
                copied[name] = loaded.copied_bytes - before
    return {
        name: {**{key: round(one, 1) for key, one in percentiles(values).items()}, "copied_bytes": copied[name]}
        for name, values in samples.items()
    }


def picture() -> Feeds:
    """A picture of 602,112 bytes."""
    return {"x": np.random.default_rng(0).standard_normal(_PICTURE, np.float32)}


def _graph(operator: str, given: list[int], made: list[int]) -> bytes:
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, given), ("y", 1, made))]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "transport", ends[:1], ends[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


if __name__ == "__main__":
    main()
