"""The engine around the writer: shapes, errors, stderr, what it says of itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError
from sanderling.core.precision import Precision
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import Compute, EngineOptions
from tests.models import chain, conv_classifier, make_model, random_arrays, run_directly, save, tensor

pytest.importorskip("ai_edge_litert")
ENGINE = known_engine("litert")
ONE = EngineOptions(threads=1)


def lookup() -> bytes:
    """Rows of a table, by numbers that come in."""
    node = helper.make_node("Gather", ["table", "x"], ["y"], "lookup")
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    model = make_model([node], [tensor("x", [3], "int64")], [tensor("y", [3, 2])], {"table": table})
    return model.SerializeToString()


def test_device_takes_fp32_and_int8_and_computes_exactly():
    (device,) = ENGINE.devices()
    assert device.precisions == (Precision.FP32, Precision.INT8)
    assert device.computes == (Compute.EXACT,)


def test_placement_says_how_many_operators_xnnpack_took():
    executable = ENGINE.load(conv_classifier().SerializeToString(), ONE)
    assert executable.placement.detail == "XNNPACK: 9 of 9 operators"


def test_placement_names_operators_that_xnnpack_left():
    executable = ENGINE.load(lookup(), ONE)
    assert executable.placement.detail == "XNNPACK: 0 of 1 operators; in LiteRT's own kernels: 1 GATHER"


def test_only_the_latest_shapes_are_kept():
    executable = ENGINE.load(conv_classifier().SerializeToString(), ONE)
    for rows in (1, 2, 3, 4, 5, 6, 1, 2):
        feeds = random_arrays({"image": (rows, 3, 8, 8)}, seed=rows)
        expected = run_directly(conv_classifier(), feeds)["scores"]
        np.testing.assert_allclose(executable.run(feeds)["scores"], expected, rtol=0, atol=1e-5)
    assert len(executable._sessions) == 4


def test_any_axis_may_be_dynamic():
    model = make_model(
        [helper.make_node("Softmax", ["x"], ["y"], "softmax", axis=1)],
        [tensor("x", ["N", "L", 3])],
        [tensor("y", ["N", "L", 3])],
    )
    executable = ENGINE.load(model.SerializeToString(), ONE)
    for shape in ((2, 7, 3), (1, 1, 3), (3, 5, 3)):
        feeds = random_arrays({"x": shape})
        np.testing.assert_allclose(executable.run(feeds)["y"], run_directly(model, feeds)["y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("indices", [[0, 5, 1], [-1, 0, 1], [2**40, 0, 0]])
def test_index_out_of_range_is_an_engine_error_and_the_next_call_is_right(indices):
    executable = ENGINE.load(lookup(), ONE)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^litert failed while executing: [\w ]*ind[\w ]*$"):
            executable.run({"x": np.array(indices)})
    np.testing.assert_array_equal(executable.run({"x": np.array([0, 4, 2])})["y"], [[0, 1], [8, 9], [4, 5]])


def test_empty_tensors_are_an_engine_error():
    executable = ENGINE.load(conv_classifier().SerializeToString(), ONE)
    with pytest.raises(EngineError, match="litert does not run empty tensors"):
        executable.run(random_arrays({"image": (0, 3, 8, 8)}))


def test_kernel_that_does_not_take_its_operands_is_told_by_the_onnx_operator():
    model = chain(["Abs"], shape=(1,) * 4, dtype="int64").SerializeToString()
    node = helper.make_node("Sin", ["x"], ["y"], "wave")
    refused = make_model([node], [tensor("x", [1, 4])], [tensor("y", [1, 4])])
    refused.graph.input[0].type.tensor_type.elem_type = refused.graph.output[0].type.tensor_type.elem_type = 11
    with pytest.raises(ModelError, match="litert does not take the model: 'x' is float64"):
        ENGINE.load(refused.SerializeToString(), ONE)
    with pytest.raises(ModelError, match=r"litert does not take the model: operator Abs \('abs_0'\)"):
        ENGINE.load(model, ONE)


_QUIET = """
import sys, threading
from pathlib import Path
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
print("before", file=sys.stderr)
work = [threading.Thread(target=engine("litert").load, args=(Path(sys.argv[1]), EngineOptions())) for _ in range(4)]
[thread.start() for thread in work]
[thread.join() for thread in work]
print("after", file=sys.stderr)
"""


def test_nothing_is_printed_and_stderr_stays_the_callers(tmp_path):
    path = save(conv_classifier(), tmp_path / "model.onnx")
    command = [sys.executable, "-c", _QUIET, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["before", "after"]


def test_graph_with_16_bit_weights_is_refused_with_what_to_take():
    model = conv_classifier()
    weight = model.graph.initializer[0]
    weight.CopyFrom(helper.make_tensor(weight.name, 10, weight.dims, np.zeros(np.prod(weight.dims), np.float16)))
    with pytest.raises(ModelError, match="'conv_weight' is 16-bit; take the FP32 or the INT8 variant"):
        ENGINE.load(model.SerializeToString(), ONE)
