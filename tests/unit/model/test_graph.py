from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.model.graph import (
    NEWEST_OPSET,
    all_nodes,
    initializer_array,
    input_specs,
    opset_of,
    output_specs,
    read_graph,
    set_shape,
    subgraph_names,
    tensor_spec,
    used_names,
    weight_bytes,
    write_graph,
)
from tests.models import chain, conv_classifier, make_model, random_arrays, run_directly, save, tensor


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A classifier with its weights in ``weights.bin`` beside it."""
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "model.onnx"
    onnx.save(conv_classifier(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def relocate(path: Path, location: str) -> None:
    """Let the model look for its external data elsewhere."""
    model = onnx.load(path, load_external_data=False)
    for initializer in model.graph.initializer:
        for entry in initializer.external_data:
            if entry.key == "location":
                entry.value = location
    save(model, path)


def complaint(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_graph(path)
    return str(caught.value)


def test_graph_is_read_with_its_specs(tmp_path):
    model = read_graph(save(conv_classifier(), tmp_path / "model.onnx"))
    assert [str(spec) for spec in input_specs(model)] == ["image: float32[N, 3, 8, 8]"]
    assert [str(spec) for spec in output_specs(model)] == ["scores: float32[N, 4]"]
    assert opset_of(model) == 18


def test_missing_file_is_told(tmp_path):
    assert "does not exist" in complaint(tmp_path / "nowhere.onnx")


def test_folder_in_place_of_a_file_is_told(tmp_path):
    assert "does not exist" in complaint(tmp_path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_file_is_told(tmp_path, share):
    whole = conv_classifier().SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    assert "cut.onnx" in complaint(tmp_path / "cut.onnx")


@pytest.mark.parametrize("data", [b"", b"hello, this is text", b"\x80\x04\x95pickle", b"PK\x03\x04" + b"\0" * 60])
def test_file_that_is_no_onnx_is_told(tmp_path, data):
    (tmp_path / "other.onnx").write_bytes(data)
    assert "not an ONNX file" in complaint(tmp_path / "other.onnx")


def test_opset_that_is_too_new_is_told_with_the_newest_one(tmp_path):
    message = complaint(save(chain(["Relu"], opset=NEWEST_OPSET + 1), tmp_path / "new.onnx"))
    assert f"opset {NEWEST_OPSET + 1}: at most {NEWEST_OPSET}" in message
    assert "--opset" in message


def test_opset_that_is_too_old_is_told(tmp_path):
    assert "at least 7" in complaint(save(chain(["Relu"], opset=6), tmp_path / "old.onnx"))


def test_model_that_names_no_opset_is_told(tmp_path):
    model = chain(["Relu"])
    del model.opset_import[:]
    assert "opset 0" in complaint(save(model, tmp_path / "none.onnx"))


def test_invalid_graph_is_told_with_the_reason(tmp_path):
    model = make_model([helper.make_node("Relu", ["nowhere"], ["y"])], [tensor("x", [1])], [tensor("y", [1])])
    assert "nowhere" in complaint(save(model, tmp_path / "broken.onnx"))


def test_unknown_operator_is_named(tmp_path):
    assert "Frobnicate" in complaint(save(chain(["Frobnicate"]), tmp_path / "unknown.onnx"))


def test_external_data_is_read(external):
    feeds = random_arrays({"image": (2, 3, 8, 8)})
    model = read_graph(external)
    assert not any(initializer.external_data for initializer in model.graph.initializer)
    np.testing.assert_array_equal(
        run_directly(model, feeds)["scores"], run_directly(conv_classifier(), feeds)["scores"]
    )


def test_missing_external_data_is_told(external):
    external.with_name("weights.bin").unlink()
    message = complaint(external)
    assert "weights.bin" in message
    assert "beside the model" in message


def test_external_data_cut_short_is_told(external):
    data = external.with_name("weights.bin")
    data.write_bytes(data.read_bytes()[:-8])
    assert "external data" in complaint(external)


@pytest.mark.parametrize("location", ["../weights.bin", "{outside}/weights.bin", "sub/../../weights.bin"])
def test_external_data_outside_the_folder_is_not_read(external, location):
    outside = external.parent.parent
    external.with_name("weights.bin").rename(outside / "weights.bin")
    relocate(external, location.format(outside=outside))
    assert "external data" in complaint(external)


def test_external_data_behind_a_link_that_leads_out_is_not_read(external):
    data = external.with_name("weights.bin")
    data.rename(external.parent.parent / "secret.bin")
    data.symlink_to(external.parent.parent / "secret.bin")
    assert "external data" in complaint(external)


def test_sequence_input_is_told_by_name(tmp_path):
    sequence = helper.make_tensor_sequence_value_info("words", onnx.TensorProto.FLOAT, [2])
    node = helper.make_node("ConcatFromSequence", ["words"], ["y"], axis=0)
    model = read_graph(save(make_model([node], [sequence], [tensor("y", [None])]), tmp_path / "sequence.onnx"))
    with pytest.raises(ModelError, match="'words' is a sequence_type"):
        input_specs(model)


def test_input_of_unknown_rank_is_told_by_name():
    model = chain(["Relu"])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="'x'"):
        input_specs(model)


def test_axis_without_a_name_gets_one():
    assert input_specs(chain(["Relu"], shape=[None, 3]))[0].shape == ("x_axis0", 3)


def test_initialiser_that_is_listed_as_an_input_is_none():
    model = conv_classifier()
    model.graph.input.append(tensor("fc_bias", [4]))
    assert [spec.name for spec in input_specs(model)] == ["image"]


def test_nodes_and_names_of_subgraphs_are_found():
    branch = helper.make_graph([helper.make_node("Neg", ["hidden"], ["inner"])], "b", [], [tensor("inner", [1])])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    model = make_model([node], [tensor("flag", [], "bool"), tensor("hidden", [1])], [tensor("y", [1])])
    assert [node.op_type for node in all_nodes(model.graph)] == ["If", "Neg", "Neg"]
    assert {"flag", "hidden", "inner", "y"} <= used_names(model.graph)
    assert "hidden" in subgraph_names(model.graph)
    assert not {"flag", "y"} & subgraph_names(model.graph)


def test_graph_without_subgraphs_has_no_names_in_them():
    assert subgraph_names(conv_classifier().graph) == set()


def test_shape_is_replaced():
    model = conv_classifier()
    set_shape(model.graph.input[0], (2, "C", 8, 8))
    assert input_specs(model)[0].shape == (2, "C", 8, 8)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("FLOAT", 20), ("FLOAT16", 10), ("INT64", 40), ("INT8", 5), ("INT4", 3), ("BOOL", 5)]
)
def test_weight_bytes_follow_the_dtype(dtype, expected):
    weight = helper.make_tensor("w", getattr(onnx.TensorProto, dtype), [5], [1, 0, 1, 0, 1])
    assert weight_bytes(weight) == expected


def test_written_graph_reads_back_as_the_same_bytes(tmp_path):
    assert write_graph(conv_classifier(), tmp_path / "a.onnx") is None
    write_graph(read_graph(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_initialiser_becomes_its_array():
    weight = conv_classifier().graph.initializer[0]
    assert initializer_array(weight).shape == (8, 3, 3, 3)
    assert initializer_array(weight).dtype == np.float32


@pytest.mark.parametrize("written", ["?", "-1", "", None])
def test_axes_without_a_real_name_are_not_equal_to_each_other(written):
    spec = tensor_spec(tensor("x", [written, 3, written]))
    assert spec.shape == ("x_axis0", 3, "x_axis2")


def test_axis_of_minus_one_is_dynamic():
    value = tensor("x", [1, 3])
    value.type.tensor_type.shape.dim[0].dim_value = -1
    assert tensor_spec(value).dynamic_axes == (0,)
