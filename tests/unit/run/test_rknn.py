"""What only the rknn engine does; the contract suite holds it to the rest. Its environment is not made here."""

from __future__ import annotations

import os
import signal

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError
from sanderling.core.tensor import TensorSpec
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import Compute, DeviceKind, EngineOptions, Fidelity, Placement
from sanderling.run.engines.rknn_ import ENVIRONMENT, RknnExecutable, _worker, placement_of
from sanderling.run.environments import import_path
from sanderling.run.rknn.graphs import NetGraph
from sanderling.run.rknn.log import reason as told_reason
from tests.models import chain, conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import in_int8, step_of

RKNN = known_engine("rknn")
FP16 = EngineOptions(compute=Compute.FP16)
IMAGES = random_arrays({"image": (3, 3, 8, 8)})
# As rknn-toolkit2 2.5.0 prints it.
TABLE = """\
I rknn building ...
D RKNN: [09:51:23.718] ID   OpType           DataType Target InputShape              OutputShape   Cycles(DDR/NPU/Total)    RW(KB)       FullName
D RKNN: [09:51:23.718] 0    InputOperator    FLOAT16  CPU    \\                       (1,3,8,8)     0/0/0                    0            InputOperator:image
D RKNN: [09:51:23.718] 1    ConvRelu         FLOAT16  NPU    (1,3,8,8),(8,3,3,3),(8) (1,8,8,8)     111/576/576              1            Conv:conv
D RKNN: [09:51:23.718] 2    Conv             INT8     NPU    (1,8,8,8),(1,8,7,7),(8) (1,8,2,2)     85/784/784               1            Conv:pool_2conv0
D RKNN: [09:51:23.718] 3    Conv             FLOAT16  NPU    (1,8,2,2),(1,8,2,2),(8) (1,8,1,1)     12/64/64                 0            Conv:pool_2conv1
D RKNN: [09:51:23.718] 5    Reshape          FLOAT16  CPU    (1,4,1,1),(2)           (1,4)         0/0/0                    0            Reshape:scores_mm_tp_rs
D RKNN: [09:51:23.718] 6    OutputOperator   FLOAT16  CPU    (1,4)                   \\             0/0/0                    0            OutputOperator:scores
D RKNN: [09:51:23.721] 1   ConvRelu       image                 FLOAT16   NC1HWC2      (1,3,8,8)    (1,4,8,8,3)  | 0x00000000 0x00000180 0x00000180
""".splitlines()  # noqa: E501
_INVALID = (
    'onnxruntime.capi.InvalidGraph: [ONNXRuntimeError] : 10 : In Node, ("frob", Frobnicate, "com.acme", -1) : '
    '("x": tensor(float),) -> ("y": tensor(float),) , Error No opset import for domain \'com.acme\''
)

needs_toolkit = pytest.mark.skipif(
    not RKNN.availability().installed, reason=f"rknn is not installed: {RKNN.availability().hint}"
)


def load(model, options=FP16):
    return RKNN.load(model.SerializeToString(), options)


def test_engine_that_is_not_made_says_how_and_how_large(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    monkeypatch.setattr("sanderling.run.engines.rknn_._version_here", lambda: "")
    state = RKNN.availability()
    assert (state.installed, state.version) == (False, "")
    assert "sanderling devices --install rknn" in state.hint
    assert "about 1.6 GB" in state.hint


def test_every_chip_is_a_simulator_that_computes_in_fp16_only():
    devices = RKNN.devices()
    assert {"rk3588", "rk3566"} <= {device.device for device in devices}
    for device in devices:
        assert (device.kind, device.fidelity) == (DeviceKind.NPU, Fidelity.SIMULATOR)
        assert device.computes == (Compute.FP16,)


def test_every_requirement_is_pinned():
    for requirement in (*ENVIRONMENT.requirements, *ENVIRONMENT.alone):
        assert requirement.count("==") == 1


def test_table_of_layers_tells_where_each_runs_and_in_what():
    placement = placement_of(TABLE, RKNN.devices()[0])
    assert placement.kinds == {DeviceKind.NPU: 0.75, DeviceKind.CPU: 0.25}
    assert placement.fell_back == ("Reshape:scores_mm_tp_rs",)
    assert placement.share(DeviceKind.NPU) == (1.0, "multiply–accumulates")
    assert placement.detail.endswith("layers 3 in float16, 1 in int8")


def test_log_without_a_table_is_an_error():
    with pytest.raises(EngineError, match="does not say where the graph's layers run"):
        placement_of(TABLE[:3], RKNN.devices()[0])


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (_INVALID, "operator Frobnicate ('frob'): No opset import for domain 'com.acme'"),
        ("E load_onnx: Unsupport onnx opset 21, need <= 19!", "Unsupport onnx opset 21, need <= 19!"),
        ("E RKNN: [09:55:35.855] Not Support Dtype: 2. please check precision!", "Not Support Dtype: 2. please check"),
        ("E RKNN: [09:51:23.713] Unkown op target: 0\nE rknn-toolkit2 version: 2.5.0", "otherwise"),
    ],
    ids=["operator", "opset", "native", "harmless"],
)
def test_reason_is_the_most_telling_line(printed, reason):
    lines = ["I rknn-toolkit2 version: 2.5.0", "W build: onnx.checker fails", *printed.splitlines(), "I done"]
    assert told_reason(lines, "otherwise").startswith(reason)


@needs_toolkit
def test_layers_that_the_chip_leaves_to_its_processor_are_named():
    executable = load(chain(["Relu", "Round"], shape=(1, 4, 8, 8)))
    assert executable.placement.fell_back == ("Round:round_1",)
    assert executable.placement.kinds[DeviceKind.CPU] == pytest.approx(1 / 3)
    executable.close()


class OneRow:
    """Stands for the toolkit: the sum of a row, in memory that it uses again."""

    def __init__(self) -> None:
        self._made = np.empty((1, 1), np.float32)

    def inference(self, inputs: list[np.ndarray], data_format: list[str]) -> list[np.ndarray]:
        assert data_format == ["nchw"]
        self._made[...] = inputs[0].sum()
        inputs[0][...] = -1  # the toolkit may do what it likes with what it is given
        return [self._made]


def test_rows_are_written_to_the_callers_arrays_and_copies_are_counted():
    x, y = (TensorSpec(name=name, dtype="float32", shape=("N", size)) for name, size in (("x", 4), ("y", 1)))
    graph = NetGraph(onnx.ModelProto(), (x,), (y,), ("x",), True, "the model")
    executable = RknnExecutable(OneRow(), graph, Placement("rk3588", {DeviceKind.NPU: 1.0}))
    feeds, outputs = {"x": np.arange(12, dtype="f4").reshape(3, 4)}, {"y": np.full((3, 1), 77, "f4")}
    assert executable.run(feeds, outputs)["y"] is outputs["y"]
    assert outputs["y"].tolist() == executable.run(feeds)["y"].tolist() == [[6], [22], [38]]
    assert executable.copied_bytes == 2 * (feeds["x"].nbytes + outputs["y"].nbytes)
    with pytest.raises(EngineError, match=r"rknn makes output 'y' of shape \(3, 1\): the array given .* \(2, 1\)"):
        executable.run(feeds, {"y": np.empty((2, 1), "f4")})


@needs_toolkit
def test_operator_that_only_the_simulator_has_is_refused_by_name():
    with pytest.raises(ModelError, match=r"rknn on rk3588 does not take the model: no kernel for .*Atan \('atan_1'\)"):
        load(chain(["Relu", "Atan"], shape=(1, 4, 8, 8)))


@needs_toolkit
def test_input_that_nothing_reads_does_not_take_the_place_of_another():
    nodes = [helper.make_node("Neg", ["x"], ["y"], "neg")]
    model = make_model(nodes, [tensor("z", [1, 4]), tensor("x", [1, 4])], [tensor("y", [1, 4])])
    executable = load(model)
    feeds = random_arrays({"z": (1, 4), "x": (1, 4)})
    np.testing.assert_allclose(executable.run(feeds)["y"], -feeds["x"], rtol=1e-3)
    executable.close()


@needs_toolkit
def test_integers_go_in_and_out_as_they_are():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["found"], "gather"),
        helper.make_node("Add", ["ids", "far"], ["moved"], "add"),
    ]
    weights = {"table": random_arrays({"table": (2000, 16)})["table"], "far": np.array([70001])}
    outputs = [tensor("found", [1, 7, 16]), tensor("moved", [1, 7], "int64")]
    executable = load(make_model(nodes, [tensor("ids", [1, 7], "int64")], outputs, weights))
    ids = np.random.default_rng(0).integers(0, 2000, (1, 7))
    got = executable.run({"ids": ids})
    np.testing.assert_array_equal(got["moved"], ids + 70001)  # beyond what fp16 holds
    np.testing.assert_allclose(got["found"], weights["table"][ids], rtol=1e-3)
    executable.close()


@needs_toolkit
def test_graph_with_scales_is_computed_in_int8_on_every_chip():
    model = in_int8(conv_classifier(), random_arrays({"image": (64, 3, 8, 8)}, seed=9))
    expected = run_directly(model, IMAGES)["scores"]
    for device in RKNN.devices():
        executable = load(model, EngineOptions(device=device.device, compute=Compute.FP16))
        assert "in int8" in executable.placement.detail
        got = executable.run(IMAGES)["scores"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=3 * step_of(model, "scores"))  # the pooling rounds twice
        executable.close()


@needs_toolkit
@pytest.mark.parametrize(("zero", "dtype"), [(128, "uint8"), (0, "int8"), (0, "uint8"), (100, "uint8")])
def test_codes_and_steps_of_the_graph_are_kept(zero, dtype):
    """Left alone, the toolkit makes 127 steps of 128 where a zero point is in the middle, as that of weights is."""
    generator = np.random.default_rng(0)
    codes = generator.integers(-127, 128, (8, 3, 3, 3), np.int8)
    codes[:, 0, 0, 0], codes[:, 1, 0, 0] = 127, -127
    weights = {
        "in_step": np.float32(0.03),
        "out_step": np.float32(0.05),
        "zero": np.array(zero, dtype),
        "codes": codes,
        "steps": generator.uniform(0.001, 0.004, 8).astype(np.float32),
        "middles": np.zeros(8, np.int8),
        "bias": generator.integers(-9000, 9000, 8, np.int32),
    }
    weights["bias_steps"] = weights["steps"] * weights["in_step"]
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "in_step", "zero"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "in_step", "zero"], ["x"], "dq"),
        helper.make_node("DequantizeLinear", ["codes", "steps", "middles"], ["weight"], "dw", axis=0),
        helper.make_node("DequantizeLinear", ["bias", "bias_steps"], ["moved"], "db", axis=0),
        helper.make_node("Conv", ["x", "weight", "moved"], ["conv"], "conv"),
        helper.make_node("QuantizeLinear", ["conv", "out_step", "zero"], ["qy"], "qy"),
        helper.make_node("DequantizeLinear", ["qy", "out_step", "zero"], ["y"], "dy"),
    ]
    model = make_model(nodes, [tensor("image", ["N", 3, 8, 8])], [tensor("y", ["N", 8, 6, 6])], weights)
    executable = load(model)
    feeds = {"image": np.clip(IMAGES["image"], -3.5, 3.5)}  # without the lowest code, which is given up
    np.testing.assert_allclose(executable.run(feeds)["y"], run_directly(model, feeds)["y"], rtol=0, atol=1e-3)
    executable.close()


@needs_toolkit
def test_end_of_the_toolkits_process_is_told_and_the_next_load_works():
    executable = load(conv_classifier())
    executable.run(IMAGES)
    worker = _worker(str(ENVIRONMENT.python), import_path())
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"rknn: the engine's process (that held this graph is gone|crashed)"):
        executable.run(IMAGES)
    again = load(conv_classifier())
    assert again.run(IMAGES)["scores"].shape == (3, 4)
    again.close()
    executable.close()


@needs_toolkit
def test_message_names_the_file_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.onnx").write_bytes(conv_classifier(opset=21).SerializeToString())
    with pytest.raises(ModelError, match=r"^rknn on rk3588 does not take new\.onnx: .*opset 21"):
        RKNN.load((tmp_path / "new.onnx").relative_to(tmp_path), FP16)
