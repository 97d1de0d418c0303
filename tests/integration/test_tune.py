from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sanderling.api import build, load, tune, verify
from sanderling.core.errors import NotMetError, OptionError, PackageError
from sanderling.core.files import sha256_of
from sanderling.core.progress import Recorder, Silent
from sanderling.model.package import Package, rewrite_manifest, write_manifest
from sanderling.model.tuning import Tuning
from tests.models import conv_classifier, random_arrays, save

SANDERLING = str(Path(sys.executable).with_name("sanderling"))


@pytest.fixture
def package(tmp_path):
    np.savez(tmp_path / "data.npz", **random_arrays({"image": (40, 3, 8, 8)}))
    model = save(conv_classifier(), tmp_path / "model.onnx")
    calibration = {"calibration": tmp_path / "data.npz", "budget": "agreement=100"}
    return build(model, tmp_path / "model.sdl", repeats=2, **calibration).path


def test_plan_is_written_and_followed(package):
    result = tune(package, seconds=1, engines=["onnxruntime"])
    assert result.plan.winner.engine == "onnxruntime"
    assert {candidate.status for candidate in result.candidates} <= {"won", "lost", "excluded"}
    assert sum(candidate.status == "won" for candidate in result.candidates) == 1
    assert all(candidate.reason for candidate in result.candidates)
    assert Package.open(package).manifest.plans[result.fingerprint] == result.plan
    with load(package) as session:
        assert session.plan_entry == result.plan.winner
        assert session.events == []
    assert any(check.name.startswith("plan, onnxruntime") for check in verify(package).checks)


@pytest.mark.parametrize(
    ("busy_calls", "unit_ms", "passed"),
    [(3, 1.0, True), (1000, 1.0, False), (1000, 0.01, True)],  # for a moment, for good, and by microseconds
)
def test_plan_is_overtaken_by_what_is_faster_for_good_and_by_more_than_microseconds(
    package, monkeypatch, busy_calls, unit_ms, passed
):
    plan = tune(package, seconds=1, engines=["onnxruntime"]).plan
    assert plan.fallbacks
    calls = []

    def timed(_, candidate, _warmup, repeats):
        if candidate.name != plan.winner.name:
            return [2 * unit_ms * candidate.batch] * repeats
        calls.append(candidate)
        return [(3 if len(calls) <= busy_calls else 1) * unit_ms * candidate.batch] * repeats

    monkeypatch.setattr("sanderling.measure.verify.Stable.time", timed)
    (check,) = (check for check in verify(package).checks if check.name == f"plan, {plan.winner.name}")
    assert check.passed is passed


def test_what_was_measured_stays_in_the_package_with_its_hash(package):
    result = tune(package, seconds=1, engines=["onnxruntime"])
    opened = Package.open(package)
    assert opened.manifest.files["tuning.json"].sha256 == sha256_of(package / "tuning.json")
    assert opened.tuning().results == {result.fingerprint: result}
    raced = [candidate for candidate in result.candidates if candidate.status != "excluded"]
    assert all(
        (entry.engine, entry.variant) == tuple(entry.name.split("/")[::2][:2]) and entry.repeats for entry in raced
    )
    (package / "tuning.json").write_text("{}")
    with pytest.raises(PackageError, match=r"file 'tuning\.json' has 2 bytes"):
        Package.open(package)


def test_report_shows_what_raced_and_why_the_others_lost(package):
    before = (package / "report.html").read_text()
    result = tune(package, seconds=1, engines=["onnxruntime"])
    report = (package / "report.html").read_text()
    assert "Engines on" not in before
    assert f"Engines on {result.plan.machine}" in report
    assert all(html.escape(candidate.name) in report for candidate in result.candidates)
    assert Package.open(package).manifest.files["report.html"].sha256 == sha256_of(package / "report.html")


@pytest.mark.parametrize("lacking", ["jinja2", "evidence"])
def test_report_that_cannot_be_made_again_stays_and_is_told(package, monkeypatch, lacking):
    if lacking == "jinja2":
        monkeypatch.setitem(sys.modules, "jinja2", None)
    else:
        opened = Package.open(package)
        rewrite_manifest(opened, opened.manifest, package, {"evidence.json": "{}"})
    before = (package / "report.html").read_bytes()
    progress = Recorder(Silent())
    result = tune(package, seconds=0.3, engines=["onnxruntime"], progress=progress)
    assert (package / "report.html").read_bytes() == before
    assert Package.open(package).tuning().results == {result.fingerprint: result}
    assert [event.subject for event in progress.events if event.kind == "report-not-updated"] == ["report.html"]


def test_memory_of_the_winner_and_its_fallbacks_is_measured(package):
    plan = tune(package, seconds=1, engines=["onnxruntime"]).plan
    assert plan.fallbacks
    assert all(isinstance(entry.memory_bytes, int) for entry in (plan.winner, *plan.fallbacks))


def test_results_of_other_kinds_of_device_are_kept(package):
    result = tune(package, seconds=0.3, engines=["onnxruntime"])
    opened = Package.open(package)
    other = Tuning(results={"elsewhere": result.model_copy(update={"fingerprint": "elsewhere"})})
    rewrite_manifest(opened, opened.manifest, package, {"tuning.json": other.to_text()})
    again = tune(package, seconds=0.3, engines=["onnxruntime"])
    assert Package.open(package).tuning().results.keys() == {"elsewhere", again.fingerprint}


def test_tuning_that_says_something_else_is_refused_by_name_and_measured_again(package):
    opened = Package.open(package)
    rewrite_manifest(opened, opened.manifest, package, {"tuning.json": '{"results": {"a": {"package": 3}}}'})
    with pytest.raises(PackageError, match=r"tuning\.json: results\.a\.package: Input should be a valid string"):
        Package.open(package).tuning()
    assert not next(check for check in verify(package).checks if check.name == "tuning").passed
    result = tune(package, seconds=0.3, engines=["onnxruntime"])
    assert Package.open(package).tuning().results == {result.fingerprint: result}


def test_throughput_compares_batches_and_memory_compares_memory(package):
    throughput = tune(package, seconds=1, engines=["onnxruntime"], objective="throughput")
    assert throughput.plan.winner.batch > 1
    memory = tune(package, seconds=1, engines=["onnxruntime"], objective="memory")
    assert memory.plan.winner.memory_bytes is not None
    assert memory.candidates[0].reason.endswith("MB, the least")


def test_every_installed_engine_takes_part_or_says_why_not(package):
    result = tune(package, seconds=1)
    engines = {candidate.name.split("/")[0] for candidate in result.candidates}
    assert "onnxruntime" in engines
    for candidate in result.candidates:
        assert candidate.status != "excluded" or candidate.reason


def test_variant_with_other_outputs_than_golden_never_wins(package):
    opened = Package.open(package)
    manifest = opened.manifest
    other = save(conv_classifier(seed=9), package / "model.int8.onnx")
    from sanderling.model.package import file_entries

    write_manifest(package, manifest.model_copy(update={"files": file_entries(package)}))
    assert other.is_file()
    result = tune(package, seconds=1, engines=["onnxruntime"])
    assert result.plan.winner.variant != "int8"
    reasons = [candidate.reason for candidate in result.candidates if "/int8/" in candidate.name]
    assert reasons
    assert all("differs from the golden one" in reason for reason in reasons)


def test_nothing_that_computes_what_the_package_says_is_an_answer_of_no(package):
    manifest = Package.open(package).manifest
    for variant in manifest.variants:
        save(conv_classifier(seed=9), package / variant.file)
    from sanderling.model.package import file_entries

    write_manifest(package, manifest.model_copy(update={"files": file_entries(package)}))
    before = (package / "manifest.json").read_bytes()
    with pytest.raises(NotMetError, match=r"nothing runs package model\.sdl here as it says"):
        tune(package, seconds=1, engines=["onnxruntime"])
    assert (package / "manifest.json").read_bytes() == before


def test_zip_is_tuned_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "more.npz", **random_arrays({"image": (40, 3, 8, 8)}))
    model = save(conv_classifier(), tmp_path / "again.onnx")
    zipped = build(model, tmp_path / "model.sdl.zip", calibration=tmp_path / "more.npz", repeats=2).path
    result = tune(zipped, seconds=0.5, engines=["onnxruntime"])
    with load(zipped) as session:
        assert session.plan_entry == result.plan.winner
    assert Package.open(zipped).tuning().results == {result.fingerprint: result}


def test_unknown_engine_and_time_are_refused(package):
    with pytest.raises(OptionError, match=r"unknown engine 'abacus': available are .*onnxruntime"):
        tune(package, engines=["abacus"])
    with pytest.raises(OptionError, match="greater than 0"):
        tune(package, seconds=0)


def test_command_prints_the_plan_and_every_candidate_as_one_object(package):
    command = [SANDERLING, "tune", str(package), "--seconds", "1", "--engine", "onnxruntime", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    value = json.loads(done.stdout)
    assert {"engine", "device", "precision", "threads", "batch", "p50_ms"} <= value["plan"].keys()
    assert all(candidate["status"] and candidate["reason"] for candidate in value["candidates"])


def test_bisect_command_answers_no_where_an_engine_diverges(package):
    command = [SANDERLING, "bisect", str(package), "--variant", "fp32", "--json", "--engine"]
    good = subprocess.run([*command, "onnxruntime"], capture_output=True, text=True, check=False)
    assert (good.returncode, json.loads(good.stdout)["node"]) == (0, None)
    bad = subprocess.run([*command, "null"], capture_output=True, text=True, check=False)
    assert (bad.returncode, json.loads(bad.stdout)["op_type"]) == (1, "Conv")


def test_build_command_tunes_what_it_built_and_prints_both_as_one_object(tmp_path):
    np.savez(tmp_path / "data.npz", **random_arrays({"image": (40, 3, 8, 8)}))
    model = save(conv_classifier(), tmp_path / "model.onnx")
    package = tmp_path / "model.sdl"
    command = [SANDERLING, "build", str(model), "-o", str(package), "--calibration", str(tmp_path / "data.npz")]
    done = subprocess.run(
        [*command, "--repeats", "2", "--tune", "1", "--json"], capture_output=True, text=True, check=True
    )
    value = json.loads(done.stdout)
    assert (value["package"], bool(value["chosen"])) == (str(package), True)
    assert value["plan"]["engine"]
    assert Package.open(package).manifest.plans
    assert "Engines on" in (package / "report.html").read_text()
