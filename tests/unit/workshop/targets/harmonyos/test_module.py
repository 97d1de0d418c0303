from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from sanderling.core.errors import OptionError
from sanderling.model.package import Package, rewrite_manifest
from sanderling.run.policy.document import POLICY, FallbackThreshold, Guard, Policy
from sanderling.workshop.targets.harmonyos.module import (
    DESCRIPTION,
    FILES,
    GOLDEN,
    LEVELS,
    MODULE,
    TEMPLATE,
    offline_model,
    package_policy,
    policy_limits,
    thermal_levels,
    write_description,
    write_project,
)
from tests.unit.workshop.targets.harmonyos.conftest import THERMAL, model_entry


@pytest.fixture
def description(project):
    return json.loads((project / FILES / DESCRIPTION).read_text())


def test_project_holds_every_file_of_the_template_and_lists_it(package, tmp_path):
    listed = write_project(package, tmp_path)
    assert listed.keys() == {path.relative_to(TEMPLATE).as_posix() for path in TEMPLATE.rglob("*") if path.is_file()}
    assert listed.keys() == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert all(listed.values())


def test_name_of_the_package_is_filled_in_whatever_it_holds(package, tmp_path):
    named = Package(package.path, package.manifest.model_copy(update={"name": 'a "b" \\ ü'}))
    write_project(named, tmp_path)
    words = json.loads((tmp_path / "AppScope/resources/base/element/string.json").read_text("utf-8"))
    assert words["string"][0]["value"] == 'a "b" \\ ü'
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"@NAME@" in path.read_bytes()]
    assert left == []


def test_json_of_the_project_is_readable(package, tmp_path):
    write_project(package, tmp_path)
    for path in [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.json5")]:
        assert json.loads(path.read_text("utf-8")), path  # JSON5 is written as plain JSON, which both read


def test_description_holds_what_the_manifest_says(description, package):
    manifest = package.manifest
    assert (description["version"], description["name"], description["chosen"]) == (1, manifest.name, "int8")
    assert description["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["N", 3, 16, 16]}]
    assert description["preprocessing"] == manifest.preprocessing.model_dump(mode="json")
    assert description["golden"]["tolerance"].keys() == {"int8", "fp32"}
    assert description["rowCost"]["macs"] > 0
    assert description["thermal"] == THERMAL


def test_golden_arrays_lie_where_the_description_says(description, project, package):
    data = (project / FILES / GOLDEN).read_bytes()
    golden = package.golden()
    for array in description["golden"]["arrays"]:
        owner = golden.inputs if array["variant"] == "input" else golden.outputs[array["variant"]]
        part = data[array["offset"] : array["offset"] + array["sizeBytes"]]
        read = np.frombuffer(part, array["dtype"]).reshape(array["shape"])
        np.testing.assert_array_equal(read, owner[array["name"]])
    assert {array["variant"] for array in description["golden"]["arrays"]} == {"input", "int8", "fp32"}


def test_statistics_are_those_of_the_golden_outputs(description, package):
    (scores,) = description["statistics"]
    values = package.golden().outputs["fp32"]["scores"].astype(np.float64)
    assert (scores["mean"], scores["deviation"]) == pytest.approx((values.mean(), values.std()))
    assert (scores["hasNan"], scores["hasInfinity"]) == (False, False)


def test_package_without_a_policy_leaves_accelerators_for_heat(description):
    thresholds = description["policy"]["fallbackThresholds"]
    assert thresholds.keys() == {"npu", "gpu"}
    assert thresholds["npu"]["temp"] is not None
    assert description["policy"]["guard"]["checkFinite"]


def test_policy_of_the_package_is_the_modules(package, tmp_path):
    policy = Policy(device_priorities=("npu", "cpu"), max_model_cache=7)
    folder = tmp_path / "with-policy.sdl"
    shutil.copytree(package.path, folder)
    copied = Package.open(folder)
    rewrite_manifest(copied, copied.manifest, folder, {POLICY: policy.to_text()})
    assert package_policy(Package.open(folder)) == policy


def test_what_the_module_does_not_carry_out_is_told():
    told = policy_limits(
        Policy(
            guard=Guard(inner_tensors=("conv",), shadow_share=0.1),
            fallback_thresholds={"npu": FallbackThreshold(temp=75)},
            isolation="process",
        )
    )
    subjects = [event.subject for event in told]
    assert subjects == ["guard.innerTensors", "guard.shadowShare", "isolation", "fallbackThresholds.npu.temp"]
    assert "75 °C" in told[-1].reason
    assert policy_limits(Policy()) == []


def test_thermal_levels_are_checked():
    assert thermal_levels({}) == {"leave": "OVERHEATED", "return": "WARM"}
    assert thermal_levels({"leave-level": "hot", "return-level": "cool"}) == {"leave": "HOT", "return": "COOL"}
    with pytest.raises(OptionError, match="leave-level 'BOILING' is unknown: levels are COOL, NORMAL"):
        thermal_levels({"leave-level": "boiling"})
    with pytest.raises(OptionError, match="return-level HOT must be below leave-level WARM"):
        thermal_levels({"leave-level": "warm", "return-level": "hot"})


def test_offline_model_is_taken_with_the_project(package, tmp_path):
    write_project(package, tmp_path / "out")
    source = tmp_path / "mine.omc"
    source.write_bytes(b"compiled")
    entry = offline_model(str(source), package, tmp_path / "out", "int8")
    assert (entry["file"], entry["format"], entry["sizeBytes"]) == ("int8.omc", "omc", 8)
    assert entry.keys() == model_entry("int8", source).keys()
    assert (tmp_path / "out" / FILES / "int8.omc").read_bytes() == b"compiled"


@pytest.mark.parametrize(("name", "content"), [("model.ms", b"x"), ("model.om", b""), ("model.om", None)])
def test_offline_model_of_another_kind_is_refused(package, tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=rf"offline '{name}'.*(expected an .om or .omc|is missing or empty)"):
        offline_model(str(tmp_path / name), package, tmp_path, "int8")


def test_policy_file_of_python_has_every_section_that_the_module_reads():
    text = (TEMPLATE / MODULE / "src/main/ets/policy/document.ets").read_text()
    sections = text.split("export interface Policy {")[1].split("}")[0]
    read = {line.split(":")[0].strip() for line in sections.strip().splitlines()}
    assert read <= Policy().model_dump(by_alias=True).keys()


def test_levels_of_the_module_are_pythons():
    text = (TEMPLATE / MODULE / "src/main/ets/thermal.ets").read_text()
    assert ", ".join(f"'{level}'" for level in LEVELS) in text


def test_description_is_the_same_twice(package, project, tmp_path):
    write_project(package, tmp_path)
    models = [model_entry(name, project / FILES / f"{name}.ms") for name in ("int8", "fp32")]
    write_description(package, tmp_path, models, chosen="int8", thermal=THERMAL)
    for name in (GOLDEN, DESCRIPTION):
        first = (tmp_path / FILES / name).read_bytes()
        write_description(package, tmp_path, models, chosen="int8", thermal=THERMAL)
        assert (tmp_path / FILES / name).read_bytes() == first
