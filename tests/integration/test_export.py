"""`sanderling export` and `sanderling check` as users start them."""

import json
import shutil

import numpy as np
import onnx
import pytest

from sanderling.core.errors import EngineError, ModelError, NotMetError
from sanderling.model.package import Package, file_entries, write_manifest
from sanderling.model.rows import with_rows
from sanderling.workshop import targets
from sanderling.workshop.targets.base import Exported, Proof, chosen_variant
from sanderling.workshop.targets.exporting import export
from tests.models import conv_classifier, save
from tests.quantized import in_int8


class StandIn:
    """A target that writes what it is told to."""

    name, summary, devices, options = "stand-in", "of a test", ("one", "two"), {"colour": "of it"}

    def __init__(self, *, proof=True, listed=("a.txt",), written=("a.txt",), failure=None):
        self.proof, self.listed, self.written, self.failure = proof, listed, written, failure

    def tools(self):
        return ()

    def variants(self, package, wanted):
        return chosen_variant(package, wanted)

    def check(self, model, device):  # noqa: ARG002 - takes everything
        return ()

    def export(self, request):
        if self.failure is not None:
            raise self.failure
        for name in self.written:
            (request.folder / name).write_text("text")
        proof = Proof("one with one", "this machine", 2.0, 1.0, passed=self.proof)
        return Exported(dict.fromkeys(self.listed, "a text"), "a pen", (proof,), ("the rest",), ("next",))


@pytest.fixture
def stand_in(monkeypatch):
    """Make a target the one of its name."""

    def use(found):
        monkeypatch.setitem(targets.TARGETS, found.name, "stand_in")
        monkeypatch.setattr("sanderling.workshop.targets.exporting.target", lambda name: found)  # noqa: ARG005
        return found

    return use


def test_list_names_targets_devices_options_and_tools(sanderling_here):
    done = sanderling_here("export", "--list", "--json")
    assert done.code == 0
    listed = {state["name"]: state for state in done.answer["targets"]}
    assert listed.keys() == set(targets.TARGETS)
    assert listed["ort"]["devices"] == ["arm64", "amd64"]
    assert listed["ort"]["tools"][0]["found"] is True
    assert "style" in listed["ort"]["options"]
    assert all(name in sanderling_here("export", "--list").stdout for name in targets.TARGETS)


def test_export_prints_what_was_proved_and_where_it_lies(sanderling_here, package, out):
    done = sanderling_here("export", package, "--target", "ort", "--option", "types=off", "-o", out / "ort")
    assert done.code == 0, done.stderr
    for text in ("verified: ", "remains: ", "next: ", f"folder: {out / 'ort'}"):
        assert text in done.stdout
    record = json.loads((out / "ort" / "export.json").read_bytes())
    assert record["options"] == {"types": "off"}


def test_export_replaces_an_earlier_one(sanderling_here, package, out):
    for device in ("arm64", "amd64"):
        arguments = ("export", package, "--target", "ort", "--device", device, "-o", out / "ort", "--json")
        answer = sanderling_here(*arguments).answer
    assert answer["device"] == "amd64"
    assert json.loads((out / "ort" / "export.json").read_bytes())["device"] == "amd64"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "export needs PKG, --target and --output"),
        (("--target", "toaster", "-o", "x"), "unknown target 'toaster': available are"),
        (("--target", "ort", "--device", "toaster", "-o", "x"), "has no device 'toaster': available are arm64, amd64"),
        (("--target", "ort", "--option", "style", "-o", "x"), "--option 'style' is not NAME=VALUE"),
        (("--target", "ort", "--option", "style=fast", "-o", "x"), "style=fast: expected fixed or runtime"),
        (("--target", "ort", "--option", "types=on", "--option", "types=on", "-o", "x"), "'types' is given twice"),
        (("--target", "openvino", "--option", "weights=f8", "-o", "x"), "weights=f8: expected f32 or f16"),
        (("--target", "openvino", "--option", "batch=0", "-o", "x"), "batch=0: expected a positive number"),
    ],
)
def test_wrong_option_is_one_line(refused_here, package, arguments, says):
    refused_here("export", package, *arguments, says=says)


def test_broken_package_is_one_line(refused_here, package):
    (package / "model.fp32.onnx").write_bytes(b"changed")
    refused_here("export", package, "--target", "ort", "-o", "x", says="model.fp32.onnx")


def test_output_whose_folder_is_missing_is_one_line(refused_here, package):
    refused_here("export", package, "--target", "ort", "-o", "no/x", says="is no folder")


def test_file_is_no_output(refused_here, package, work):
    (work / "x").write_text("mine")
    refused_here("export", package, "--target", "ort", "-o", "x", says="x is a file")


def test_files_that_compute_something_else_are_not_kept(sanderling_here, package, out):
    other = shutil.copytree(package, package.with_name("other.sdl"))
    save(conv_classifier(seed=9), other / "model.fp32.onnx")
    manifest = Package.open(other, check_files=False).manifest
    write_manifest(other, manifest.model_copy(update={"files": file_entries(other)}))
    done = sanderling_here("export", other, "--target", "ort", "--variant", "fp32", "-o", out / "x")
    assert done.code == 1
    assert "export to ort failed its checks: " in done.error
    assert list(out.iterdir()) == []


def test_failed_proof_is_told_and_nothing_is_written(stand_in, package, out):
    stand_in(StandIn(proof=False))
    with pytest.raises(NotMetError, match=r"one with one, on this machine: 2 \(limit 1\); nothing was kept"):
        export(package, out / "x", target_name="stand-in")
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(("listed", "written"), [(("a.txt", "b.txt"), ("a.txt",)), (("a.txt",), ("a.txt", "c.txt"))])
def test_target_that_lists_other_files_than_it_writes_is_refused(stand_in, package, out, listed, written):
    stand_in(StandIn(listed=listed, written=written))
    with pytest.raises(EngineError, match=r"wrote other files than it lists: [bc]\.txt"):
        export(package, out / "x", target_name="stand-in")
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("kind", [ModelError, EngineError])
def test_failure_of_a_converter_names_the_target(stand_in, package, out, kind):
    stand_in(StandIn(failure=kind("its converter refuses it: because")))
    with pytest.raises(kind, match=r"export to stand-in wrote nothing: its converter refuses it: because"):
        export(package, out / "x", target_name="stand-in")
    assert list(out.iterdir()) == []


def test_record_has_names_of_files_and_not_their_folders(stand_in, package, out, work):
    stand_in(StandIn())
    result = export(package, out / "x", target_name="stand-in", options={"colour": str(work)})
    assert result.record["options"] == {"colour": "work"}


def test_check_of_a_graph_that_is_taken_ends_well(sanderling_here, classifier):
    done = sanderling_here("check", classifier, "--target", "ort", "--json")
    assert done.code == 0
    assert done.answer == {
        "model": "classifier.onnx",
        "target": "ort",
        "device": "arm64",
        "refusals": {"": []},
        "accepted": True,
    }


def test_check_names_operator_and_node_and_ends_with_1(sanderling_here, work):
    model = conv_classifier()
    model.graph.node[2].op_type, model.graph.node[2].domain = "Unheard", "com.example"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    done = sanderling_here("check", save(model, work / "strange.onnx"), "--target", "openvino")
    assert done.code == 1
    assert "Unheard" in done.stdout
    assert "relu" in done.stdout
    assert "strange.onnx is refused by openvino (cpu)" in done.stdout


def test_check_names_every_operator_without_a_kernel(sanderling_here, work):
    model = conv_classifier()
    for place, operator in ((2, "Unheard"), (4, "Unseen"), (1, "Unheard")):
        model.graph.node[place].op_type, model.graph.node[place].domain = operator, "com.example"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    done = sanderling_here("check", save(model, work / "strange.onnx"), "--target", "ort", "--json")
    assert done.code == 1
    refused = {item["operator"]: item["nodes"] for item in done.answer["refusals"][""]}
    assert refused == {"Unheard": ["bn", "relu"], "Unseen": ["flatten"]}


def test_check_tells_what_an_export_does_by_itself(sanderling_here, package):
    arguments = ("check", package, "--target", "openvino", "--device", "npu", "--variant", "int8")
    answer = sanderling_here(*arguments, "--json").answer
    refused = answer["refusals"]["int8"]
    assert [(item["operator"], item["nodes"], item["automatic"]) for item in refused] == [("input", ["image"], True)]
    assert "by export: the batch becomes 1" in " ".join(sanderling_here(*arguments).stdout.split())


def test_dynamic_axes_that_are_no_batch_are_refused_by_fixed_shapes(sanderling_here, work):
    model = conv_classifier(batch=1)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    done = sanderling_here(
        "check", save(model, work / "free.onnx"), "--target", "openvino", "--device", "npu", "--json"
    )
    assert done.code == 1
    (refusal,) = done.answer["refusals"][""]
    assert (refusal["operator"], refusal["automatic"]) == ("input", False)
    assert "height" in refusal["reason"]


def test_size_of_a_batch_that_has_one_is_refused(refused_here, built, work):
    package = fixed_batch(built, work / "fixed.sdl")
    arguments = ("--target", "openvino", "--device", "npu", "--option", "batch=2", "-o", "x")
    refused_here("export", package, *arguments, says=["batch=2: the graph's batch has a size already", "1, 3, 8, 8"])


def test_graph_with_a_fixed_batch_is_exported_as_it_is(sanderling_here, built, work, out):
    package = fixed_batch(built, work / "fixed.sdl")
    done = sanderling_here("export", package, "--target", "openvino", "--device", "npu", "-o", out / "ir")
    assert done.code == 0, done.stderr


def fixed_batch(built, target):
    """The built package with a batch of 1 in its graphs; its hashes hold."""
    shutil.copytree(built.path, target)
    opened = Package.open(target)
    for variant in opened.manifest.variants:
        save(with_rows(onnx.load(target / variant.file), 1), target / variant.file)
    write_manifest(target, opened.manifest.model_copy(update={"files": file_entries(target)}))
    return target


def test_int8_graph_is_taken_by_openvino_with_a_fixed_batch(sanderling_here, package, out):
    arguments = ("--device", "npu", "--option", "batch=4", "--variant", "int8")
    done = sanderling_here("export", package, "--target", "openvino", *arguments, "-o", out / "ir", "--json")
    assert done.code == 0, done.stderr
    assert {name.rpartition(".")[2] for name in done.answer["files"]} == {"xml", "bin"}
    assert "4,3,8,8" in "".join((out / "ir" / "model.int8.xml").read_text().split())


@pytest.mark.parametrize("arguments", [("check",), ("check", "no.onnx", "--target", "ort"), ("check", "no.onnx")])
def test_check_of_nothing_is_one_line(sanderling_here, arguments):
    assert sanderling_here(*arguments).code == 2


def test_quantised_graph_without_a_package_is_checked_too(sanderling_here, work):
    model = in_int8(conv_classifier(batch=1), {"image": np.random.default_rng(0).random((1, 3, 8, 8), np.float32)})
    assert sanderling_here("check", save(model, work / "q.onnx"), "--target", "ort").code == 0
