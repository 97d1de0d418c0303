from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

from sanderling.api import build, load
from sanderling.core.errors import NotMetError, OptionError
from sanderling.core.machine import fingerprint
from sanderling.model.package import Package, rewrite_manifest
from sanderling.model.plan import Plan, PlanEntry
from sanderling.run.engines.base import DeviceKind, Optimization, Placement
from sanderling.run.placing import check_placement, choose_place, compiled_cache, parse_requirement
from tests.models import conv_classifier, random_arrays, save

VERSION = metadata.version("onnxruntime")


def entry(engine: str = "onnxruntime", variant: str = "int8", threads: int = 1) -> PlanEntry:
    return PlanEntry(
        engine=engine,
        device="cpu",
        variant=variant,
        precision=variant,
        compute="exact",
        threads=threads,
        batch=1,
        p50_ms=1,
        p95_ms=1,
        throughput_per_s=1000,
    )


def lowered(plain: PlanEntry) -> PlanEntry:
    return plain.model_copy(update={"optimization": "basic"})


def plan_of(*entries: PlanEntry, versions: dict[str, str] | None = None) -> Plan:
    return Plan(
        objective="latency",
        machine="this one",
        engine_versions=versions or {"onnxruntime": VERSION},
        winner=entries[0],
        fallbacks=entries[1:],
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("placing")
    np.savez(folder / "data.npz", **random_arrays({"image": (24, 3, 8, 8)}))
    model = save(conv_classifier(), folder / "model.onnx")
    return build(model, folder / "model.sdl", calibration=folder / "data.npz", repeats=2).path


def place_with(built, plan: Plan | None, **asked):
    package = Package.open(built)
    plans = {} if plan is None else {fingerprint(): plan}
    manifest = package.manifest.model_copy(update={"plans": plans})
    return choose_place(Package(package.path, manifest), **{"variant": None, "threads": 0, "lean": False, **asked})


def test_without_a_plan_the_chosen_variant_runs(built):
    place = place_with(built, None)
    assert (place.variant.id, place.entry, place.event) == (Package.open(built).manifest.chosen, None, None)


def test_plan_of_another_kind_of_device_does_not_count(built):
    package = Package.open(built)
    manifest = package.manifest.model_copy(update={"plans": {"0123456789abcdef": plan_of(entry())}})
    place = choose_place(Package(package.path, manifest), variant=None, threads=0, lean=False)
    assert place.entry is None


def test_plan_of_this_kind_of_device_is_followed(built):
    place = place_with(built, plan_of(entry(variant="int8", threads=3)))
    assert (place.variant.id, place.options.threads, place.options.device) == ("int8", 3, "cpu")
    assert place.event is None


def test_variant_that_is_asked_for_takes_the_plans_entry_for_it(built):
    place = place_with(built, plan_of(entry(variant="int8"), entry(variant="fp32", threads=2)), variant="fp32")
    assert (place.variant.id, place.options.threads) == ("fp32", 2)


def test_threads_that_are_asked_for_win_over_the_plan(built):
    assert place_with(built, plan_of(entry(threads=3)), threads=1).options.threads == 1


def test_entry_measured_with_another_version_is_passed_over_and_told(built):
    plan = plan_of(entry("openvino"), entry(variant="fp32"), versions={"openvino": "1.0", "onnxruntime": VERSION})
    place = place_with(built, plan)
    assert (place.engine, place.variant.id) == ("onnxruntime", "fp32")
    assert place.event.kind == "plan-stale"
    assert "was measured with openvino 1.0" in place.event.reason
    assert "sanderling tune" in place.event.reason


def test_plan_that_is_stale_as_a_whole_leaves_the_default_and_is_told(built):
    place = place_with(built, plan_of(entry(), versions={"onnxruntime": "0.1"}))
    assert place.entry is None
    assert place.event.kind == "plan-stale"


def test_cache_folder_changes_with_version_and_options(built):
    package = Package.open(built)
    folders = {
        compiled_cache(package, entry(threads=1), "1", "here"),
        compiled_cache(package, entry(threads=2), "1", "here"),
        compiled_cache(package, entry(threads=1), "2", "here"),
        compiled_cache(package, entry(variant="fp32"), "1", "here"),
        compiled_cache(package, entry(threads=1), "1", "elsewhere"),
        compiled_cache(package, lowered(entry(threads=1)), "1", "here"),
    }
    assert len(folders) == 6


def test_level_of_optimisation_is_the_plans_and_all_in_packages_that_name_none(built):
    assert place_with(built, plan_of(lowered(entry()))).options.optimization is Optimization.BASIC
    old = {key: value for key, value in entry().model_dump().items() if key != "optimization"}
    assert place_with(built, plan_of(PlanEntry.model_validate(old))).options.optimization is Optimization.ALL


def test_without_a_plan_the_variants_own_level_counts(built):
    package = Package.open(built)
    variants = tuple(item.model_copy(update={"optimization": "none"}) for item in package.manifest.variants)
    manifest = package.manifest.model_copy(update={"variants": variants})
    place = choose_place(Package(package.path, manifest), variant=None, threads=0, lean=False)
    assert place.options.optimization is Optimization.NONE


def test_plan_in_the_package_is_used_by_load(built):
    package = Package.open(built)
    plans = {fingerprint(): plan_of(entry(variant="fp32"))}
    rewrite_manifest(package, package.manifest.model_copy(update={"plans": plans}), built)
    with load(built) as session:
        assert session.plan_entry == entry(variant="fp32")
        assert session.run(random_arrays({"image": (1, 3, 8, 8)}))["scores"].shape == (1, 4)


def test_requirement_that_holds_lets_the_session_run(built):
    with load(built, require="cpu=95%") as session:
        assert session.placement.kinds == {DeviceKind.CPU: 1.0}


def test_requirement_that_does_not_hold_is_refused(built):
    with pytest.raises(NotMetError, match=r"0 % of the nodes run on npu, 95 % are required: cpu 100 %"):
        load(built, require="npu=95%")


def test_nodes_that_fell_back_are_named():
    placement = Placement("npu:0", {DeviceKind.NPU: 0.5, DeviceKind.CPU: 0.5}, tuple(f"node{i}" for i in range(7)))
    with pytest.raises(NotMetError, match=r"fell back: node0, node1, node2, node3, node4 and 2 more"):
        check_placement(placement, parse_requirement("npu=90%"))
    check_placement(placement, parse_requirement("npu=50%"))


def test_share_of_the_computation_counts_where_it_is_known():
    kinds, macs = {DeviceKind.NPU: 0.5, DeviceKind.CPU: 0.5}, {DeviceKind.NPU: 0.99, DeviceKind.CPU: 0.01}
    placement = Placement("npu:0", kinds, ("reshape",), macs=macs)
    check_placement(placement, parse_requirement("npu=95%"))
    with pytest.raises(NotMetError, match=r"1 % of the multiply–accumulates run on cpu, 50 % are required"):
        check_placement(placement, parse_requirement("cpu=50%"))


@pytest.mark.parametrize("text", ["tpu", "npu=", "npu=95", "npu=101%", "npu=-1%", ""])
def test_requirement_of_another_form_is_refused(text):
    with pytest.raises(OptionError, match="as in npu=95%"):
        parse_requirement(text)
