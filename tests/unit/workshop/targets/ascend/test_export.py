"""Whole exports to `ascend`: folders without `atc`, with a fake one, and what is refused before anything is written."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.api import build, check, export
from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.model.package import Package, write_manifest
from sanderling.workshop.targets import target
from tests import fake_atc
from tests.models import conv_classifier, make_model, run_directly, save, tensor
from tests.samples import write_samples


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A classifier of pictures with a dynamic batch, in FP32, FP16 and INT8."""
    folder = tmp_path_factory.mktemp("package")
    source = save(conv_classifier(size=16, features=24), folder / "classifier.onnx")
    samples = write_samples(folder / "calibration.npz", size=16)
    return build(
        source, folder / "small.sdl", calibration=samples, budget="agreement=20", preprocess="unit", repeats=5
    ).path


@pytest.fixture
def atc(tmp_path, monkeypatch):
    """Put a fake atc on PATH; call it to say what the fake does."""
    (tmp_path / "bin").mkdir()
    for name in ("atc", "omg"):
        fake_atc.install(tmp_path / "bin", name)

    def does(wish):
        monkeypatch.setenv("FAKE_ATC", wish)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    return does


def exported(package, folder, variant="int8", device=None, **options):
    texts = {name.replace("_", "-"): str(value) for name, value in options.items()}
    return export(package, folder, target="ascend", device=device, variant=variant, options=texts)


def commands(result):
    return result.record["details"]["commands"]


def test_int8_folder_is_complete_without_atc(package, tmp_path):
    result = exported(package, tmp_path / "out", source="nv12", batch="1,4")
    assert result.record["files"].keys() == {"model.onnx", "aipp.cfg", "convert.sh"}
    assert result.record["next_steps"] == ["sh convert.sh"]
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert {"AscendQuant", "AscendDequant"} <= {node.op_type for node in graph.node}
    first, second = commands(result)
    assert "--input_shape=image:1,3,16,16" in first
    assert "--output=model_b4" in second
    assert "--insert_op_conf=aipp.cfg" in second
    steps, *_ = [proof for proof in result.record["proofs"] if "QDQ" in proof["what"]]
    assert steps["value"] <= steps["limit"] == 1.0


def test_script_says_that_atc_is_missing_and_runs_it_where_it_is(package, tmp_path, atc):
    exported(package, tmp_path / "out")
    script = tmp_path / "out" / "convert.sh"
    alone = subprocess.run(["/bin/sh", str(script)], env={"PATH": "/bin:/usr/bin"}, capture_output=True, text=True)
    assert (alone.returncode, alone.stderr.strip()) == (
        3,
        "atc is not on PATH: install the CANN toolkit for Ascend and source its set_env.sh",
    )
    atc("ok")
    assert subprocess.run(["/bin/sh", str(script)], capture_output=True).returncode == 0
    assert json.loads((script.parent / "model.om").read_text())["soc_version"] == "Ascend310P3"


def test_fp16_lets_atc_lower_the_fp32_graph(package, tmp_path):
    result = exported(package, tmp_path / "out", variant="fp16", dynamic_batch="1,2,4", device="Ascend310B1")
    (line,) = commands(result)
    assert result.record["variants"] == ["fp32"]
    for flag in ("--soc_version=Ascend310B1", "image:-1,3,16,16", "batch_size=1,2,4", "--precision_mode_v2=fp16"):
        assert flag in line
    written = onnx.load(tmp_path / "out" / "model.onnx")
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    want = run_directly(package / "model.fp32.onnx", {"image": x})["scores"]
    np.testing.assert_allclose(run_directly(written, {"image": x})["scores"], want, rtol=1e-5, atol=1e-6)


def test_fp32_keeps_its_precision(package, tmp_path):
    assert "--precision_mode_v2=origin" in commands(exported(package, tmp_path / "out", variant="fp32"))[0]


def test_lists_of_operators_go_with_mixed_precision(package, tmp_path):
    mixed = {"precision_mode_v2": "mixed_float16", "black_list": "SoftmaxV2,Exp", "white_list": "MatMulV2"}
    result = exported(package, tmp_path / "out", variant="fp32", **mixed)
    assert "--modify_mixlist=mixlist.json" in commands(result)[0]
    assert json.loads((tmp_path / "out" / "mixlist.json").read_text()) == {
        "black-list": {"to-add": ["SoftmaxV2", "Exp"]},
        "white-list": {"to-add": ["MatMulV2"]},
    }
    with pytest.raises(OptionError, match=r"atc E10001: Value mixlist\.json for parameter --modify_mixlist is invalid"):
        exported(package, tmp_path / "other", variant="fp32", black_list="Exp")


def with_float_nodes(package, folder, **names):
    """A copy of the package whose manifest says that these nodes were left in float, by variant."""
    subprocess.run(["cp", "-r", str(package), str(folder)], check=True)
    manifest = Package.open(folder).manifest
    variants = [
        each.model_copy(update={"float_nodes": names.get(each.id, each.float_nodes)}) for each in manifest.variants
    ]
    write_manifest(folder, manifest.model_copy(update={"variants": tuple(variants)}))
    return folder


def test_nodes_left_in_float_are_held_at_their_precision(package, tmp_path):
    changed = with_float_nodes(package, tmp_path / "changed.sdl", int8=("fc", "gone"), fp16=("pool",))
    names = {node.name for node in onnx.load(changed / "model.fp32.onnx").graph.node}
    assert {"fc", "pool"} <= names
    line = commands(exported(changed, tmp_path / "half", variant="fp16"))[0]
    assert "--op_precision_mode=precision.ini" in line
    assert "--keep_dtype=keep_dtype.cfg" in line
    assert (tmp_path / "half" / "precision.ini").read_text() == "[ByNodeName]\nfc=high_precision\n"
    assert (tmp_path / "half" / "keep_dtype.cfg").read_text() == "pool\n"
    whole = exported(changed, tmp_path / "whole", variant="fp32")
    assert "keep_dtype.cfg" not in whole.record["files"]
    integers = exported(changed, tmp_path / "int8")
    assert "precision.ini" not in integers.record["files"]  # there it computes in integers


@pytest.mark.parametrize(
    ("variant", "options", "told"),
    [
        ("int8", {"dynamic_batch": "1,4"}, r"INT8 \(AscendQuant\) takes no --dynamic_batch_size: use batch=1,4,8"),
        ("fp32", {"dynamic_batch": "1,4", "dims": "1;4"}, "atc E10009: "),
        ("fp32", {"dynamic_batch": "4"}, "atc E10035: "),
        ("fp32", {"image_sizes": "16,16;32,32"}, "atc E10019: "),
        ("fp32", {"dims": "1;4", "source": "rgb"}, "atc E10001: Value aipp.cfg for parameter --insert_op_conf"),
        ("fp32", {"precision_mode": "force_fp32", "precision_mode_v2": "fp16"}, "atc E10056: "),
        ("fp32", {"source": "gray"}, "source=gray has one channel"),
        ("fp32", {"axes": "width=3"}, "no axis is called 'width'"),
    ],
)
def test_what_excludes_itself_is_refused_and_nothing_is_written(package, tmp_path, variant, options, told):
    with pytest.raises(OptionError, match=told):
        exported(package, tmp_path / "out", variant=variant, **options)
    assert list(tmp_path.iterdir()) == []


def built(folder, model, **options):
    source = save(model, folder / "model.onnx")
    preprocess = options.pop("preprocess", "unit")
    return build(source, folder / "model.sdl", precision="fp32", preprocess=preprocess, repeats=2, **options).path


def test_odd_picture_is_refused_for_nv12(tmp_path):
    package = built(tmp_path, conv_classifier(size=15))
    with pytest.raises(OptionError, match="nv12 has one U and V for 2×2 pixels: the input is 15×15"):
        exported(package, tmp_path / "out", variant="fp32", source="nv12")
    assert not (tmp_path / "out").exists()
    exported(package, tmp_path / "out", variant="fp32", source="rgb")


def test_picture_needs_the_preprocessing_of_the_package(tmp_path):
    package = built(tmp_path, conv_classifier(), preprocess=None)
    with pytest.raises(OptionError, match="option source=rgb: the package says no preprocessing"):
        exported(package, tmp_path / "out", variant="fp32", source="rgb")


def bent(operator, *, opset=20):
    """``image`` through one operator that the chip's parser may lack."""
    nodes = [helper.make_node(operator, ["image"], ["y"], "bend")]
    return make_model(nodes, [tensor("image", [1, 3, 4, 4])], [tensor("y", [1, 3, 4, 4])], opset=opset)


def test_operator_without_a_parser_is_written_with_others(tmp_path):
    package = built(tmp_path, bent("Gelu"))
    found = check(package, target="ascend")
    assert found.accepted
    (refusal,) = found.refusals["fp32"]
    assert (refusal.operator, refusal.nodes, refusal.automatic) == ("Gelu", ("bend",), True)
    result = exported(package, tmp_path / "out", variant="fp32")
    graph = onnx.load(tmp_path / "out" / "model.onnx")
    assert "Erf" in {node.op_type for node in graph.graph.node}
    assert result.record["details"]["opset"] == 18
    assert any("golden" in proof["what"] and proof["passed"] for proof in result.record["proofs"])


@pytest.mark.parametrize(("operator", "opset"), [("Det", 22), ("Relu", 21)])
def test_newer_opset_is_declared_as_18_where_it_means_the_same(operator, opset):
    model = bent(operator, opset=opset)
    if operator == "Det":
        model.graph.output[0].CopyFrom(tensor("y", [1, 3]))
    (refusal,) = target("ascend").check(model, "Ascend310P3")
    assert (refusal.reason, refusal.automatic) == (f"registered for opsets 8 to 18, the graph has {opset}", True)


def test_operator_that_nothing_helps_is_named(tmp_path):
    model = tmp_path / "model.onnx"
    save(bent("Acosh"), model)
    assert check(model, target="ascend").accepted
    save(bent("BitwiseNot"), model)
    bad = make_model(
        [
            helper.make_node("Hardmax", ["image"], ["a"], "hard"),
            helper.make_node("Einsum", ["a"], ["b"], "sum", equation="ij->i"),
            helper.make_node("HannWindow", ["size"], ["y"], "window"),
        ],
        [tensor("image", [4, 4]), tensor("size", [], "int64")],
        [tensor("b", [4]), tensor("y", [None])],
    )
    save(bad, model)
    found = check(model, target="ascend")
    assert not found.accepted
    (refusal,) = found.refusals[""]
    assert (refusal.operator, refusal.nodes) == ("HannWindow", ("window",))
    assert "E16002" in refusal.reason


def test_hard_sigmoid_is_registered_for_each_of_its_opsets():
    assert target("ascend").check(bent("HardSigmoid", opset=17), "Ascend310P3") == ()


def test_text_is_refused():
    model = make_model([helper.make_node("Identity", ["a"], ["b"], "same")], [], [])
    for values, name in ((model.graph.input, "a"), (model.graph.output, "b")):
        values.append(helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [2]))
    found = target("ascend").check(model, "Ascend310P3")
    assert [(each.operator, each.nodes, each.automatic) for each in found] == [
        ("input", ("a",), False),
        ("output", ("b",), False),
    ]


def test_atc_that_is_here_is_run(package, tmp_path, atc):
    atc("ok")
    result = exported(package, tmp_path / "out", batch="1,2")
    assert {"model_b1.om", "model_b2.om"} <= result.record["files"].keys()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("model.onnx", "convert.sh", "model_b1.om", "model_b2.om", "export.json", "README.md")
    }
    assert result.record["tool"] == "atc"
    assert json.loads((tmp_path / "out" / "model_b2.om").read_text())["input_shape"] == "image:2,3,16,16"
    assert [(tool.name, tool.found) for tool in target("ascend").tools()] == [("atc", True), ("omg", True)]


@pytest.mark.parametrize(
    ("wish", "error", "told"),
    [
        ("E16002", ModelError, r"atc E16002: No ONNX parser is registered for optype \[Gelu\]"),
        ("crash", EngineError, r"atc crashed \(signal 6\): free\(\): invalid pointer"),
        ("hang", EngineError, "atc took longer than 2 s and was ended"),
        ("nothing", EngineError, "wrote no model.om"),
    ],
)
def test_atc_that_fails_leaves_nothing(package, tmp_path, atc, wish, error, told):
    atc(wish)
    with pytest.raises(error, match=told):
        exported(package, tmp_path / "out", time_limit=2)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_file_names_no_folder_of_this_machine(package, tmp_path):
    exported(package, tmp_path / "out", source="nv21", batch="1,2")
    for path in (tmp_path / "out").iterdir():
        if path.suffix != ".onnx":
            assert str(tmp_path) not in path.read_text()
            assert str(Path.home()) not in re.sub(r"\\s", "", path.read_text())


def test_kirin_gets_the_float_graph_and_the_command_of_omg(package, tmp_path, atc):
    result = exported(package, tmp_path / "out", variant="fp32", device="kirin", dims="1;4")
    (line,) = commands(result)
    assert line == (
        "omg --framework=5 --model=model.onnx --output=model --input_shape=image:-1,3,16,16 '--dynamic_dims=1;4'"
    )
    assert result.record["files"].keys() == {"model.onnx", "convert.sh"}
    atc("ok")
    again = exported(package, tmp_path / "again", variant="fp32", device="kirin", batch="2")
    assert again.record["tool"] == "omg"
    assert "a fake omg" in (tmp_path / "again" / "model.om").read_text()


def test_kirin_takes_neither_our_int8_nor_options_of_atc(package, tmp_path):
    with pytest.raises(ModelError, match=r"QuantizeLinear .*its own dopt has quantised \(export the FP32 variant"):
        exported(package, tmp_path / "out", device="kirin")
    with pytest.raises(OptionError, match="device 'kirin' has no option 'source': available are batch, dims"):
        exported(package, tmp_path / "out", variant="fp32", device="kirin", source="nv12")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "told", "automatic"),
    [
        (bent("Relu", opset=22), "opset 22 is newer than 18", True),
        (bent("Swish", opset=24), "opset 24: operator Swish", False),
    ],
)
def test_kirin_is_asked_by_opset(model, told, automatic):
    (refusal,) = target("ascend").check(model, "kirin")
    assert refusal.reason.startswith(told)
    assert refusal.automatic is automatic
    assert target("ascend").check(bent("Acosh", opset=18), "kirin") == ()
