"""What an adapter adds to the engine's own call, and a session to the adapter's; on a graph that adds two numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sanderling.core.tensor import Array
from sanderling.measure.tune.stable import batch_feeds
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import DeviceKind, EngineOptions
from sanderling.run.lanes import LanePlan
from sanderling.run.placing import Place
from sanderling.run.session import PLAIN, Session

_CALLS = 3000
_ONE_THREAD = EngineOptions(threads=1)
Call = Callable[[], object]


def adapter_overhead() -> dict[str, dict[str, float]]:
    """Median microseconds of the raw call and of ours, by engine that is installed and has a raw call here."""
    graph = _addition()
    feeds = {name: np.ones((1, 4), np.float32) for name in ("a", "b")}
    found = {}
    for name, raw in _RAW.items():
        if engine(name).availability().installed:
            executable = engine(name).load(graph, _ONE_THREAD)
            found[name] = in_turn({"raw": raw(graph, feeds), "adapter": partial(executable.run, feeds)}, "raw")
            executable.close()
    return found


def session_overhead(package: Path) -> dict[str, float]:
    """Microseconds that a session adds to the engine's own call, on the null engine's stand-in for a graph."""
    opened = Package.open(package)
    feeds = batch_feeds(opened.golden(), 1)
    graph = opened.file(opened.variant("fp32").file)
    bare = engine("null").load(graph, EngineOptions())
    place = LanePlan(Place("null", opened.variant("fp32"), EngineOptions()), "cpu", DeviceKind.CPU)
    with Session(opened, PLAIN, [place]) as session:
        return in_turn({"engine": partial(bare.run, feeds), "session": partial(session.run, feeds)}, "engine")


def in_turn(calls: Mapping[str, Call], base: str, *, count: int = _CALLS) -> dict[str, float]:
    """Median microseconds of calls that take turns, and ``added``: what the other one takes more than ``base``."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - start) * 1e6)
    medians = {name: float(np.median(values)) for name, values in samples.items()}
    (other,) = set(medians) - {base}
    return {**medians, "added": medians[other] - medians[base]}


def _addition() -> bytes:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "addition", values[:2], values[2:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    data: bytes = model.SerializeToString()
    return data


def _raw_onnxruntime(graph: bytes, feeds: Mapping[str, Array]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return partial(session.run, ["y"], feeds)


def _raw_openvino(graph: bytes, feeds: Mapping[str, Array]) -> Call:
    engine("openvino").devices()  # imports OpenVINO without its reporter
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()
    return partial(request.infer, dict(feeds), share_inputs=True)


_RAW: dict[str, Callable[[bytes, Mapping[str, Array]], Any]] = {
    "onnxruntime": _raw_onnxruntime,
    "openvino": _raw_openvino,
}
