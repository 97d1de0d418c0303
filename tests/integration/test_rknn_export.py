"""`sanderling export --target rknn`, with the real toolkit where its environment is made."""

import json

import numpy as np
import pytest

from sanderling.core.errors import EngineError, OptionError
from sanderling.core.progress import Silent
from sanderling.model.package import Package
from sanderling.run.engines import known_engine
from sanderling.run.engines.rknn_ import ENVIRONMENT
from sanderling.run.environments import Environment
from sanderling.workshop.targets.base import ExportRequest
from sanderling.workshop.targets.rknn_ import TARGET
from tests.models import conv_classifier, save
from tests.samples import write_samples

_STATE, _FOLDER = known_engine("rknn").availability(), ENVIRONMENT.folder
needs_toolkit = pytest.mark.skipif(not _STATE.installed, reason=f"rknn-toolkit2 is not here: {_STATE.hint}")


@pytest.fixture
def toolkit(work):
    """Commands in tests have a cache of their own: let them find the environment that is made."""
    own = work.parent / "cache" / "environments"
    own.mkdir(parents=True)
    (own / _FOLDER.name).symlink_to(_FOLDER)


@needs_toolkit
@pytest.mark.usefixtures("toolkit")
def test_codes_of_an_int8_variant_survive(sanderling_here, package, out):
    done = sanderling_here("export", package, "--target", "rknn", "--variant", "int8", "-o", out / "net", "--json")
    assert done.code == 0, done.stderr
    assert done.answer["details"]["form"] == "INT8 with the variant's own codes and scales"
    layers = json.loads((out / "net" / "layers.json").read_bytes())
    assert len(layers) > 1
    assert min(layer["entire"] for layer in layers) > 0.999


@needs_toolkit
@pytest.mark.usefixtures("toolkit")
def test_toolkit_quantises_a_float_variant_with_our_calibration_data(sanderling_here, package, out, work):
    samples = write_samples(work / "samples.npz", 20)
    options = ("--option", f"calibration={samples}", "--option", f"evaluation={samples}", "--option", "agreement=50")
    arguments = ("--device", "rk3566", "--variant", "fp32", *options, "-o", out / "net", "--json")
    done = sanderling_here("export", package, "--target", "rknn", *arguments)
    assert done.code == 0, done.stderr
    assert done.answer["details"]["form"] == "INT8, quantised by the toolkit (normal) from 20 samples"
    assert done.answer["options"]["calibration"] == "samples.npz"
    assert any(name.endswith(".int8.rk3566.rknn") for name in done.answer["files"])
    assert [proof["passed"] for proof in done.answer["proofs"]] == [True, True]


@needs_toolkit
@pytest.mark.usefixtures("toolkit")
def test_dynamic_batch_becomes_the_size_that_is_asked_for(sanderling_here, package, out):
    arguments = ("--variant", "fp32", "--option", "batch=3", "--option", "layers=off", "-o", out / "net", "--json")
    done = sanderling_here("export", package, "--target", "rknn", *arguments)
    assert done.code == 0, done.stderr
    assert done.answer["details"]["batch"] == 3
    assert "layers.json" not in done.answer["files"]


def test_toolkit_that_is_missing_is_one_line(refused_here, package, monkeypatch, tmp_path):
    monkeypatch.setattr(Environment, "folder", tmp_path / "none")
    monkeypatch.setattr("sanderling.run.engines.rknn_._version_here", lambda: "")
    says = ["'rknn' is not installed", "sanderling devices --install rknn"]
    refused_here("export", package, "--target", "rknn", "-o", "x", says=says, code=3)


@pytest.mark.parametrize(
    ("variant", "options", "says"),
    [
        ("int8", {"algorithm": "normal"}, "it needs --option calibration="),
        ("fp32", {"algorithm": "best", "calibration": "x"}, "algorithm=best: expected normal or kl_divergence"),
        ("int8", {"calibration": "x"}, "variant 'int8' is int8; add --variant fp32"),
        ("fp32", {"agreement": "99"}, "it needs --option evaluation="),
        ("fp32", {"layers": "some"}, "layers=some: expected on or off"),
        ("fp32", {"batch": "many"}, "batch=many: expected a positive number"),
    ],
)
def test_options_that_exclude_each_other_are_told_before_anything_is_built(built, tmp_path, variant, options, says):
    request = ExportRequest(Package.open(built.path), tmp_path, "rk3588", variant, options, Silent())
    with pytest.raises(OptionError, match=says):
        TARGET.export(request)


@pytest.mark.parametrize("value", ["101", "much", "-1", ""])
def test_share_that_is_no_percentage_is_refused(built, tmp_path, value):
    options = {"evaluation": str(tmp_path), "agreement": value}
    np.savez(tmp_path / "eval.npz", image=np.zeros((2, 3, 8, 8), np.float32))
    options["evaluation"] = str(tmp_path / "eval.npz")
    request = ExportRequest(Package.open(built.path), tmp_path, "rk3588", "fp32", options, Silent())
    with pytest.raises(OptionError, match=f"agreement={value}: expected a percentage"):
        TARGET.export(request)


@needs_toolkit
@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize(("operator", "opset"), [("Mish", 18), ("Gelu", 20)])
def test_operator_without_a_kernel_is_written_with_others(sanderling_here, work, operator, opset):
    model = conv_classifier(batch=1, opset=opset)
    model.graph.node[2].op_type = operator
    done = sanderling_here("check", save(model, work / "other.onnx"), "--target", "rknn", "--json")
    assert done.code == 0, done.stdout
    refused = {item["operator"]: item for item in done.answer["refusals"][""]}
    assert refused.keys() == ({operator} if opset == 18 else {operator, "opset"})
    assert refused[operator]["nodes"] == ["relu"]
    assert all(item["automatic"] for item in refused.values())


@needs_toolkit
@pytest.mark.usefixtures("toolkit")
def test_operator_that_nothing_replaces_is_named_with_its_node(sanderling_here, work):
    model = conv_classifier(batch=1)
    model.graph.node[2].op_type = "Softsign"
    done = sanderling_here("check", save(model, work / "other.onnx"), "--target", "rknn", "--json")
    assert done.code == 1
    (refusal,) = done.answer["refusals"][""]
    assert (refusal["operator"], refusal["nodes"], refusal["automatic"]) == ("Softsign", ["relu"], False)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("kill -SEGV $$", "rknn: the engine's process crashed with SIGSEGV"),
        ("exec sleep 60", "gave no answer for 0.5 s"),
    ],
)
def test_toolkit_that_crashes_or_hangs_is_told(built, tmp_path, monkeypatch, script, says):
    program, folder = tmp_path / "python", tmp_path / "out"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    folder.mkdir()
    monkeypatch.setattr("sanderling.workshop.targets.rknn_.engine", known_engine)
    monkeypatch.setattr("sanderling.workshop.targets.rknn_.toolkit_python", lambda: (str(program), None))
    monkeypatch.setattr("sanderling.workshop.targets.rknn_._BUILD_S", 0.5)
    request = ExportRequest(Package.open(built.path), folder, "rk3588", "fp32", {}, Silent())
    with pytest.raises(EngineError, match=says):
        TARGET.export(request)
    assert list(folder.iterdir()) == []
