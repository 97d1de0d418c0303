"""Each operator against ONNX Runtime; whatever has no exact form is refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import EngineOptions
from tests.models import make_model, run_directly, tensor
from tests.unit.run.litert.cases import EXACT, IMAGE, MATRIX, conv, ints, one, resized

pytest.importorskip("ai_edge_litert")
ENGINE = known_engine("litert")
TOLERANCE = 1e-5  # of the largest output


def feeds_for(model: onnx.ModelProto, *, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        numbers = np.asarray(generator.standard_normal(shape) * 3)
        feeds[value.name] = np.asarray(np.rint(numbers) if dtype.kind == "i" else numbers).astype(dtype)
    return feeds


def assert_as_onnx_runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray] | None = None) -> None:
    onnx.checker.check_model(model, full_check=True)
    feeds = feeds or feeds_for(model)
    executable = ENGINE.load(model.SerializeToString(), EngineOptions(threads=1))
    outputs, expected = executable.run(feeds), run_directly(model, feeds)
    executable.close()
    assert outputs.keys() == expected.keys()
    for name, array in outputs.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        if array.dtype.kind == "f":
            scale = np.abs(expected[name]).max(initial=0)
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=TOLERANCE * scale)
        else:
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("case", EXACT)
def test_operator_computes_what_onnx_runtime_computes(case):
    assert_as_onnx_runtime(EXACT[case])


REFUSED = {
    "Conv over three axes": (conv((2, 4, 1, 1, 1), (1, 4, 3, 3, 3)), "Conv"),
    "ConvTranspose with groups": (conv((4, 3, 3, 3), operator="ConvTranspose", group=2), "ConvTranspose"),
    "ConvTranspose, dilated": (conv((4, 3, 3, 3), operator="ConvTranspose", dilations=[2, 2]), "ConvTranspose"),
    "MaxPool, dilated": (one("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), "MaxPool"),
    "indices of MaxPool": (one("MaxPool", kernel_shape=[2, 2], outputs=2), "MaxPool"),
    "Elu, alpha 2": (one("Elu", alpha=2.0), "Elu"),
    "Erf alone": (one("Erf"), "Erf"),
    "Resize, cubic": (resized(2, 2, mode="cubic"), "Resize"),
    "Resize, antialias": (resized(5, 4, sizes=True, mode="linear", antialias=1), "Resize"),
    "Resize to a size that rounding decides": (
        resized(1, 2.3, mode="nearest", coordinate_transformation_mode="asymmetric"),
        "Resize",
    ),
    "Pad, edge": (one("Pad", constants={"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}, mode="edge"), "Pad"),
    "Pad, negative": (one("Pad", constants={"p": ints(0, 0, -1, 0, 0, 0, 0, 0)}), "Pad"),
    "Div of integers": (one("Div", (4,), dtype="int32", constants={"c": np.array(2, np.int32)}), "Div"),
    "Gather out of range": (one("Gather", MATRIX, constants={"i": ints(0, 3)}, out=(2, 5)), "Gather"),
    "Cast to uint8": (one("Cast", to=onnx.TensorProto.UINT8), "Cast"),
    "weights that are computed": (
        make_model(
            [helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
            [tensor("x", IMAGE), tensor("w", [6, 4, 3, 3])],
            [tensor("y", [2, 6, 7, 8])],
        ),
        "Conv",
    ),
    "shape that depends on values": (
        one("NonZero", (4,), out=(1, "M"), out_dtype="int64"),
        "NonZero",
    ),
    "TopK": (one("TopK", MATRIX, constants={"k": ints(2)}, outputs=2, out=(3, 2)), "TopK"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_operator_without_an_exact_form_is_refused_by_name(case):
    model, operator = REFUSED[case]
    with pytest.raises(ModelError, match=rf"litert does not take the model: operator {operator} \('"):
        ENGINE.load(model.SerializeToString(), EngineOptions(threads=1))
