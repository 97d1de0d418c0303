"""The engine's own optimiser is not believed: what it computes is compared with the graph as it is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sanderling.api import build, load, tune, verify
from sanderling.core.progress import Recorder, Silent
from sanderling.measure.tune.stable import Stable
from sanderling.model.package import Package, rewrite_manifest
from sanderling.run.engines import engine
from sanderling.run.engines.base import Optimization
from sanderling.run.placing import choose_place
from tests.models import conv_classifier, random_arrays, save


def made(folder):
    np.savez(folder / "data.npz", **random_arrays({"image": (40, 3, 8, 8)}))
    model = save(conv_classifier(), folder / "model.onnx")
    progress = Recorder(Silent())
    calibration = {"calibration": folder / "data.npz", "budget": "agreement=100"}
    return build(model, folder / "model.sdl", repeats=2, progress=progress, **calibration)


class Wrong:
    """A graph whose outputs an optimiser has changed."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.inputs, self.outputs, self.placement = inner.inputs, inner.outputs, inner.placement

    def run(self, feeds):
        return {name: 0.5 - array for name, array in self._inner.run(feeds).items()}

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def faulty(monkeypatch):
    """ONNX Runtime, which at ALL computes INT8 graphs wrong."""
    found = engine("onnxruntime")
    plain = type(found).load

    def load_wrong(self, model, options):
        graph = onnx.load(model).graph if not isinstance(model, bytes) else onnx.load_from_string(model).graph
        executable = plain(self, model, options)
        quantised = any(node.op_type == "DequantizeLinear" for node in graph.node)
        return Wrong(executable) if quantised and options.optimization is Optimization.ALL else executable

    monkeypatch.setattr(type(found), "load", load_wrong)


def test_optimiser_that_is_right_is_used_in_full(tmp_path):
    result = made(tmp_path)
    assert {variant.optimization for variant in result.manifest.variants} == {"all"}
    assert all(event.kind != "optimization-lowered" for event in result.evidence.events)
    tuned = tune(result.path, seconds=0.3, engines=["onnxruntime"])
    assert tuned.plan.winner.optimization == "all"
    assert verify(result.path).passed


@pytest.mark.usefixtures("faulty")
def test_build_lowers_the_level_of_the_variant_that_comes_out_wrong(tmp_path):
    result = made(tmp_path)
    levels = {variant.id: variant.optimization for variant in result.manifest.variants}
    assert levels == {"fp32": "all", "fp16": "all", "int8": "basic"}
    events = [event for event in result.evidence.events if event.kind == "optimization-lowered"]
    assert [event.subject for event in events] == ["int8"]
    assert "SQNR against FP32" in events[0].reason
    assert verify(result.path).passed
    as_written = Package.open(result.path).golden().outputs["int8"]["scores"][0]
    with load(result.path, variant="int8") as session:
        got = session.run(Package.open(result.path).golden().call(0))["scores"]
    np.testing.assert_allclose(got, as_written, atol=0.1)


def test_verify_fails_where_the_optimiser_became_wrong(tmp_path, request):
    result = made(tmp_path)
    request.getfixturevalue("faulty")
    check = next(check for check in verify(result.path).checks if check.name == "golden vectors, int8")
    assert not check.passed
    assert "onnxruntime's optimiser changes the outputs: at all output 'scores'" in check.detail


def test_tune_lowers_the_level_of_candidates_and_the_plan_keeps_it(tmp_path, monkeypatch):
    """Candidates run in workers, so the fault is put between them and the race."""
    package = made(tmp_path).path
    plain = Stable.executable

    def wrong_at_all(self, candidate):
        executable = plain(self, candidate)
        broken = candidate.variant == "int8" and candidate.optimization is Optimization.ALL
        return Wrong(executable) if broken else executable

    monkeypatch.setattr(Stable, "executable", wrong_at_all)
    result = tune(package, seconds=0.5, engines=["onnxruntime"])
    assert [event.subject for event in result.events if event.kind == "optimization-lowered"] == [
        "onnxruntime/cpu/int8"
    ]
    raced = [entry for entry in result.candidates if entry.status != "excluded"]
    assert {(entry.variant, entry.optimization) for entry in raced} == {
        ("fp32", "all"),
        ("fp16", "all"),
        ("int8", "basic"),
    }
    assert all(entry.name.endswith("/basic") for entry in raced if entry.variant == "int8")
    entry = next(entry for entry in (result.plan.winner, *result.plan.fallbacks) if entry.variant == "int8")
    opened = Package.open(package)
    plan = result.plan.model_copy(update={"winner": entry})
    rewrite_manifest(opened, opened.manifest.model_copy(update={"plans": {result.fingerprint: plan}}), package)
    place = choose_place(Package.open(package), variant=None, threads=0, lean=False)
    assert place.options.optimization is Optimization.BASIC
