"""The target `ascend` on EfficientNet-Lite0 with real weights and crops of real photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sanderling.api import export
from sanderling.core.progress import Silent
from sanderling.measure.samples import SampleReader
from sanderling.model.package import Package
from sanderling.workshop.targets.ascend.reference import difference, in_standard_onnx
from tests.models import run_directly


@pytest.fixture(scope="module")
def package(lite0):
    """EfficientNet-Lite0 in FP32 and INT8, and the crops that it was evaluated on beside it."""
    return lite0


@pytest.fixture(scope="module")
def out(package):
    """The folder of its INT8 variant, fed with NV12."""
    return export(
        package, package.parent / "out", target="ascend", variant="int8", options={"source": "nv12", "batch": "1,8"}
    )


def feeds_of(package: Path):
    manifest = Package.open(package).manifest
    samples = SampleReader(manifest.inputs, manifest.preprocessing, None, Silent()).read(package.parent / "evaluation")
    return [samples.one(index) for index in range(len(samples))]


def test_int8_equals_its_qdq_graph_within_a_step_on_photos(package, out):
    qdq, deploy = onnx.load(package / "model.int8.onnx"), onnx.load(out.path / "model.onnx")
    calls = feeds_of(package)
    assert difference(qdq, deploy, calls[:6]).steps <= 1.0
    scores = [
        np.concatenate([next(iter(run_directly(model, feeds).values())) for feeds in calls])
        for model in (qdq, in_standard_onnx(deploy))
    ]
    assert np.mean(scores[0].argmax(axis=1) == scores[1].argmax(axis=1)) >= 0.95


def test_every_convolution_and_the_classifier_compute_in_integers(package, out):
    graph = onnx.load(package / "model.int8.onnx").graph
    heavy = [node.name for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert sorted(out.record["details"]["nodes_in_int8"]) == sorted(heavy)


def test_folder_says_what_was_verified_and_what_is_next(out):
    assert {"model.onnx", "aipp.cfg", "convert.sh"} == out.record["files"].keys()
    assert all(proof["passed"] for proof in out.record["proofs"])
    assert [line.split("--output=")[1].split()[0] for line in out.record["details"]["commands"]] == [
        "model_b1",
        "model_b8",
    ]
    page = (out.path / "README.md").read_text()
    assert "sh convert.sh" in page
    assert "AIPP" in page
