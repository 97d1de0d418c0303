"""One suite that every target runs. A new target needs no test of its own to be held to the contract.

A target whose tools are missing here must say so in one line; what it would write is then not seen, and the reason of
the skip tells which tool.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import helper

from sanderling.api import build, check, export
from sanderling.core.errors import ModelError, OptionError, OutputError, UnavailableError
from sanderling.model.package import Package, file_entries, write_manifest
from sanderling.workshop.targets import TARGETS, target
from sanderling.workshop.targets.base import Target
from tests.models import conv_classifier, make_model, save, tensor
from tests.samples import write_samples


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A small classifier of pictures with FP32, FP16 and INT8."""
    folder = tmp_path_factory.mktemp("package")
    source = save(conv_classifier(size=16, batch=1), folder / "classifier.onnx")
    samples = write_samples(folder / "calibration.npz", size=16)
    (folder / "labels.txt").write_text("cat\ndog\nbird\nfish\n")
    labels = str(folder / "labels.txt")
    arguments = {"calibration": samples, "budget": "agreement=20", "preprocess": "unit", "labels": labels, "repeats": 5}
    return build(source, folder / "small.sdl", **arguments).path


@pytest.fixture(scope="module", params=TARGETS)
def tested(request) -> Target:
    return target(request.param)


@pytest.fixture(scope="module")
def exported(tested, package, tmp_path_factory) -> Path:
    """The folder that the target writes with its defaults; skipped where a tool that it needs is missing."""
    folder = tmp_path_factory.mktemp(tested.name) / "out"
    try:
        return export(package, folder, target=tested.name).path
    except UnavailableError as error:
        pytest.skip(f"{tested.name}: {error}")


def test_target_describes_itself(tested):
    assert TARGETS[tested.name]
    assert tested.summary
    assert tested.devices
    assert len(set(tested.devices)) == len(tested.devices)
    assert all(text for text in tested.options.values())
    assert all(tool.found or tool.hint for tool in tested.tools())


def test_unknown_target_lists_the_known(package, tmp_path):
    with pytest.raises(OptionError, match=rf"unknown target 'toaster': available are .*{next(iter(TARGETS))}"):
        export(package, tmp_path / "out", target="toaster")


def test_unknown_device_lists_the_known(tested, package, tmp_path):
    with pytest.raises(OptionError, match=rf"'{tested.name}' has no device 'toaster': .*{tested.devices[0]}"):
        export(package, tmp_path / "out", target=tested.name, device="toaster")
    assert list(tmp_path.iterdir()) == []


def test_unknown_option_lists_the_known(tested, package, tmp_path):
    with pytest.raises(OptionError, match=f"'{tested.name}' has no option 'colour': available are "):
        export(package, tmp_path / "out", target=tested.name, options={"colour": "blue"})
    assert list(tmp_path.iterdir()) == []


def test_unknown_variant_lists_the_known(tested, package, tmp_path):
    with pytest.raises(OptionError, match=r"'none'.*available are .*fp32"):
        export(package, tmp_path / "out", target=tested.name, variant="none")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def checked(tested):
    """Check a file or package for the target; skipped where a tool that it needs is missing."""

    def run(path: Path):
        try:
            return check(path, target=tested.name)
        except UnavailableError as error:
            pytest.skip(f"{tested.name}: {error}")

    return run


def test_package_for_every_target_is_accepted(tested, package, checked):
    result = checked(package)
    assert result.accepted, result.refusals
    assert result.refusals.keys() == set(tested.variants(Package.open(package), None))


def test_unknown_operator_is_named_with_its_node_and_nothing_is_written(tested, package, tmp_path, checked):
    broken = with_graph(package, unknown_operator(), tmp_path / "broken.sdl")
    result = checked(broken)
    assert not result.accepted
    refused = [refusal for refusals in result.refusals.values() for refusal in refusals if not refusal.automatic]
    assert any("Unheard" in refusal.operator and "strange" in refusal.nodes for refusal in refused), refused
    with pytest.raises(ModelError, match=r"Unheard.*strange"):
        export(broken, tmp_path / "out", target=tested.name)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.sdl"]


def test_checked_graph_is_left_alone(tested):
    model = conv_classifier(batch=1)
    before = model.SerializeToString(deterministic=True)
    with contextlib.suppress(UnavailableError):
        tested.check(model, tested.devices[0])
    assert model.SerializeToString(deterministic=True) == before


def test_every_file_is_listed_with_its_hash(exported):
    record = json.loads((exported / "export.json").read_bytes())
    present = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert present - {"export.json", "README.md"} == record["files"].keys()
    assert record["files"]
    for name, entry in record["files"].items():
        data = (exported / name).read_bytes()
        assert (entry["size_bytes"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert entry["what"]


def test_record_says_what_was_proved_and_what_remains(tested, exported, package):
    record = json.loads((exported / "export.json").read_bytes())
    assert record["target"] == tested.name
    assert record["device"] == tested.devices[0]
    assert record["package"]["name"] == "small"
    assert record["package"]["manifest_sha256"] == hashlib.sha256((package / "manifest.json").read_bytes()).hexdigest()
    assert record["tool"]
    assert record["proofs"]
    assert all(proof["passed"] and proof["on"] for proof in record["proofs"])
    assert record["remaining"]
    assert record["next_steps"]
    page = (exported / "README.md").read_text("utf-8")
    assert all(text in page for text in (*record["remaining"], *record["next_steps"], *record["files"]))


def test_export_names_no_folder_of_this_machine(exported, package):
    for path in (exported / "export.json", exported / "README.md"):
        text = path.read_text("utf-8")
        assert str(package.parent) not in text
        assert str(exported.parent) not in text
        assert str(Path.home()) not in text


def test_folder_of_others_is_not_replaced(tested, package, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"out holds files and is no export"):
        export(package, tmp_path / "out", target=tested.name)
    assert (tmp_path / "out" / "letter.txt").read_text() == "mine"


def unknown_operator() -> onnx.ModelProto:
    """``image`` (1, 3, 16, 16) to ``scores`` by an operator of a domain that nobody knows."""
    node = helper.make_node("Unheard", ["image"], ["scores"], "strange", domain="com.example")
    given, returned = tensor("image", [1, 3, 16, 16]), tensor("scores", [1, 4])
    return make_model([node], [given], [returned], domains={"com.example": 1})


def with_graph(package: Path, model: onnx.ModelProto, target: Path) -> Path:
    """A copy of a package whose variants all have that graph, with hashes that hold."""
    shutil.copytree(package, target)
    opened = Package.open(target)
    for variant in opened.manifest.variants:
        save(model, target / variant.file)
    manifest = opened.manifest.model_copy(update={"files": file_entries(target)})
    write_manifest(target, manifest)
    return target
