"""Which variant of a language model runs, on which engine, with how many threads."""

import pytest

from sanderling.core.errors import OptionError
from sanderling.core.machine import fingerprint
from sanderling.model.package import Package, rewrite_manifest
from sanderling.model.plan import Plan, PlanEntry
from sanderling.run.text import loading
from sanderling.run.text.loading import text_place
from tests.alphabet_package import alphabet_package


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    versions = {"onnxruntime": "1", "genai": "2"}
    monkeypatch.setattr(loading, "text_engine_version", lambda name: versions.get(name, ""))
    return versions


@pytest.fixture
def package(tmp_path):
    return alphabet_package(tmp_path / "alphabet.sdl")


def planned(package, version="2"):
    """The package with a plan for this machine, whose winner is genai on three threads."""
    entry = PlanEntry(
        engine="genai", device="cpu", variant="fp32", precision="fp32", compute="exact", threads=3, batch=1,
        p50_ms=1.0, p95_ms=1.0, throughput_per_s=1.0,
    )  # fmt: skip
    plan = Plan(objective="latency", machine="this", engine_versions={"genai": version}, winner=entry, fallbacks=())
    manifest = package.manifest.model_copy(update={"plans": {fingerprint(): plan}})
    rewrite_manifest(package, manifest, package.path)
    return Package.open(package.path)


def test_without_a_plan_the_first_engine_that_is_installed_runs_the_chosen_variant(package, installed):
    assert text_place(package).engine == "onnxruntime"
    installed["onnxruntime"] = ""
    place = text_place(package, threads=2)
    assert (place.engine, place.variant.id, place.threads, place.event) == ("genai", "fp32", 2, None)


def test_a_plan_is_followed(package):
    place = text_place(planned(package))

    assert (place.engine, place.threads, place.event) == ("genai", 3, None)


def test_what_is_asked_for_goes_before_the_plan(package):
    package = planned(package)

    assert text_place(package, engine="onnxruntime").engine == "onnxruntime"
    assert text_place(package, threads=1).threads == 1
    assert text_place(package, variant="fp32").engine == "genai"


def test_a_plan_of_another_version_is_not_followed_and_that_is_said(package):
    place = text_place(planned(package, version="0"))

    assert place.engine == "onnxruntime"
    assert place.event.kind == "plan-stale"
    assert "genai 0, here is 2" in place.event.reason


def test_an_engine_that_takes_no_variant_is_refused(package):
    with pytest.raises(OptionError, match="engine 'openvino' does not take variant 'fp32': available are genai, onnx"):
        text_place(package, engine="openvino")
