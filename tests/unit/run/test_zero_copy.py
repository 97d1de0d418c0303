"""Whether the engines that claim to copy nothing do so, seen from outside: by the memory that a call takes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.run.engines import known_engine
from sanderling.run.engines.base import EngineOptions, Executable
from tests.models import make_model, tensor

ENGINES = ("onnxruntime", "openvino")
LENGTH = 16 << 20
SIZE_BYTES = 4 * LENGTH
SLACK_BYTES = SIZE_BYTES // 4


def loaded(name: str, model: onnx.ModelProto) -> Executable:
    tested = known_engine(name)
    if not tested.availability().installed:
        pytest.skip(f"{name} is not installed")
    return tested.load(model.SerializeToString(), EngineOptions(threads=1))


def largest() -> onnx.ModelProto:
    """``x`` (LENGTH,) to its largest element: all memory that a call takes is for its input."""
    node = helper.make_node("ReduceMax", ["x"], ["y"], "max", keepdims=1)
    return make_model([node], [tensor("x", [LENGTH])], [tensor("y", [1])])


def repeated() -> onnx.ModelProto:
    """``x`` (1,) to LENGTH times itself: all memory that a call takes is for its output."""
    node = helper.make_node("Expand", ["x", "shape"], ["y"], "repeat")
    return make_model([node], [tensor("x", [1])], [tensor("y", [LENGTH])], {"shape": np.array([LENGTH])})


def memory_bytes(key: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def most_memory_added(executable: Executable, feeds: dict, outputs: dict | None) -> int:
    """Bytes by which this process was larger during the first call, which an engine may keep, than before it."""
    ctypes.CDLL(None).malloc_trim(0)  # so that nothing is served from memory that earlier tests freed
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = memory_bytes("VmRSS")
    executable.run(feeds, outputs)
    return memory_bytes("VmHWM") - before


@pytest.mark.parametrize("name", ENGINES)
def test_input_is_read_where_it_lies(name):
    executable = loaded(name, largest())
    feeds, outputs = {"x": np.ones(LENGTH, np.float32)}, {"y": np.empty(1, np.float32)}
    feeds["x"][7] = 5
    assert most_memory_added(executable, feeds, outputs) < SLACK_BYTES
    assert outputs["y"] == 5
    feeds["x"][LENGTH // 2] = 6
    assert executable.run(feeds, outputs)["y"] == 6
    assert executable.copied_bytes == 0
    executable.close()


@pytest.mark.parametrize("name", ENGINES)
def test_copy_of_an_input_would_be_seen_and_is_counted(name):
    executable = loaded(name, largest())
    feeds = {"x": np.ones(2 * LENGTH, np.float32)[::2]}
    assert most_memory_added(executable, feeds, {"y": np.empty(1, np.float32)}) > SIZE_BYTES - SLACK_BYTES
    assert executable.copied_bytes == SIZE_BYTES
    executable.close()


@pytest.mark.parametrize("name", ENGINES)
def test_output_is_written_where_it_shall_lie(name):
    executable = loaded(name, repeated())
    feeds, outputs = {"x": np.array([3], np.float32)}, {"y": np.ones(LENGTH, np.float32)}
    assert most_memory_added(executable, feeds, outputs) < SLACK_BYTES
    assert (outputs["y"] == 3).all()
    assert executable.copied_bytes == 0
    executable.close()


@pytest.mark.parametrize("name", ENGINES)
def test_output_of_its_own_would_be_seen(name):
    executable = loaded(name, repeated())
    assert most_memory_added(executable, {"x": np.array([3], np.float32)}, None) > SIZE_BYTES - SLACK_BYTES
    executable.close()


def test_openvinos_tensors_lie_in_the_callers_memory():
    executable = loaded("openvino", largest())
    feeds, outputs = {"x": np.ones(LENGTH, np.float32)}, {"y": np.empty(1, np.float32)}
    executable.run(feeds, outputs)
    (request,) = executable._idle
    assert np.shares_memory(request._request.get_input_tensor(0).data, feeds["x"])
    assert not np.shares_memory(request._request.get_output_tensor(0).data, outputs["y"])
    executable.close()
