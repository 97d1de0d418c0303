"""A `.ms` read without MindSpore: what is in it is told, and what is none, or damaged, is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from sanderling.core.errors import ModelError
from sanderling.workshop.targets.ms.reader import describe, read

FILE = Path(__file__).parents[4] / "data" / "classifier-int8.ms"


@pytest.fixture
def model():
    return read(FILE)


def test_operators_are_named_in_their_order(model):
    assert [node.operator for node in model.nodes] == [
        "QuantDTypeCast",
        "Transpose",
        "Conv2DFusion",
        "ReduceFusion",
        "Reshape",
        "FullConnection",
        "QuantDTypeCast",
    ]


def test_inputs_and_outputs_have_name_dtype_and_shape(model):
    assert [(one.name, one.dtype, one.shape) for one in model.inputs] == [("image", "float32", (1, 3, 8, 8))]
    assert [(one.name, one.dtype, one.shape) for one in model.outputs] == [("scores", "float32", (1, 4))]


def test_weight_has_a_scale_for_each_channel_and_its_elements(model):
    convolution = next(node for node in model.nodes if node.operator == "Conv2DFusion")
    weight = model.tensors[convolution.inputs[1]]
    assert (weight.dtype, weight.shape, len(weight.data)) == ("int8", (8, 3, 3, 3), 8 * 3 * 3 * 3)
    assert len(weight.scales) == 8
    assert all(scale.scale > 0 and scale.zero_point == 0 and scale.bits == 8 for scale in weight.scales)


def test_description_counts_operators_bytes_and_the_quantised_share(model):
    told = describe(model)
    assert told.operators["QuantDTypeCast"] == 2
    assert told.weight_bytes == {"int8": 8 * 27 + 4 * 8, "int32": 80}
    assert told.quantized_share == 1.0


def test_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.ms").write_bytes(b"PK" + bytes(64))
    with pytest.raises(ModelError, match=r"model\.ms is no \.ms of MindSpore Lite"):
        read(tmp_path / "model.ms")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"none\.ms cannot be read: No such file"):
        read(tmp_path / "none.ms")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_file_that_is_cut_short_is_refused(tmp_path, share):
    data = FILE.read_bytes()
    (tmp_path / "cut.ms").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"cut\.ms is (a damaged|no) \.ms"):
        read(tmp_path / "cut.ms")


def test_changed_bytes_end_in_a_model_or_in_one_error(tmp_path):
    data = FILE.read_bytes()
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        (tmp_path / "changed.ms").write_bytes(changed)
        with suppress(ModelError):
            describe(read(tmp_path / "changed.ms"))
