"""How much memory a loaded and run model adds to a process, measured in a fresh one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import psutil

from sanderling.core.errors import EngineError, ModelError, first_line
from sanderling.core.tensor import random_feeds
from sanderling.run.engines import engine
from sanderling.run.engines.base import Engine, EngineOptions, Executable
from sanderling.run.worker import options_from, options_to

_TIMEOUT_S = 300
_RUNS = 3


def session_memory_bytes(model: Path, *, engine_name: str, options: EngineOptions, batch: int = 1) -> int:
    """Resident memory that loading a model and running it adds to a process that has the engine imported.

    What the process starts for it counts as well: some engines run in a process of their own.

    Raises:
        EngineError: the measuring process failed or took more than five minutes.
    """
    request = json.dumps({"model": str(model), "engine": engine_name, "options": options_to(options), "batch": batch})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sanderling.measure.memory", request],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        )
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        detail = getattr(error, "stderr", "") or first_line(error)
        raise EngineError(f"memory of {model.name} could not be measured: {detail.strip().splitlines()[-1]}") from error


def _measure(request: str) -> int:
    wanted = json.loads(request)
    chosen, options = engine(wanted["engine"]), options_from(wanted["options"])
    # The engine's own libraries and thread pools are paid once a process, not once a model.
    warm = _warmed(chosen, options)
    before = _resident_bytes()
    executable = chosen.load(Path(wanted["model"]), options)
    feeds = random_feeds(executable.inputs, batch=wanted["batch"])
    for _ in range(_RUNS):
        executable.run(feeds)
    used = _resident_bytes() - before
    executable.close()
    if warm is not None:
        warm.close()
    return used


def _warmed(chosen: Engine, options: EngineOptions) -> Executable | None:
    """A tiny graph that has run; None where the engine takes no float graph."""
    try:
        warm = chosen.load(_tiny_model(), options)
    except ModelError:
        return None
    warm.run({"x": np.zeros((1, 1), np.float32)})
    return warm


def _resident_bytes() -> int:
    process = psutil.Process()
    return sum(int(each.memory_info().rss) for each in (process, *process.children(recursive=True)))


def _tiny_model() -> bytes:
    float_type = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])],
        "tiny",
        [onnx.helper.make_tensor_value_info("x", float_type, [1, 1])],
        [onnx.helper.make_tensor_value_info("y", float_type, [1, 1])],
    )
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)])
    data: bytes = model.SerializeToString()
    return data


if __name__ == "__main__":
    sys.stdout.write(f"{_measure(sys.argv[1])}\n")
