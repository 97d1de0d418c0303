"""Builds whose INT8 misses the budget: the search for mixed precision, from the command line to the package."""

import json

import numpy as np
import onnx
import pytest

from sanderling.api import build, load, verify
from sanderling.model.package import Package
from tests.models import save
from tests.outliers import images, outlier_classifier


@pytest.fixture
def outliers(work):
    """ONNX file of a classifier with a layer that eight bits cannot hold."""
    return save(outlier_classifier(), work / "outliers.onnx")


@pytest.fixture
def data(work):
    """Options that name calibration data and 300 evaluation samples."""
    np.savez(work / "calibration.npz", image=images(160, seed=1))
    np.savez(work / "evaluation.npz", image=images(300, seed=2))
    return ("--calibration", work / "calibration.npz", "--eval", work / "evaluation.npz")


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Package whose evidence holds a search."""
    folder = tmp_path_factory.mktemp("searched")
    np.savez(folder / "calibration.npz", image=images(160, seed=1))
    np.savez(folder / "evaluation.npz", image=images(300, seed=2))
    source = save(outlier_classifier(), folder / "outliers.onnx")
    build(
        source,
        folder / "first.sdl",
        calibration=folder / "calibration.npz",
        evaluation=folder / "evaluation.npz",
        budget="agreement=5",
        precision="int8",
        repeats=3,
    )
    return folder / "first.sdl"


def build_by_command(sanderling, source, out, data, *options):
    return sanderling("build", source, "-o", out / "m.sdl", *data, "--repeats", "3", "--json", *options)


def test_worst_layers_go_back_to_float_and_the_package_keeps_the_budget(sanderling, out, outliers, data):
    done = build_by_command(sanderling, outliers, out, data, "--budget", "agreement=5", "--precision", "int8")

    assert done.code == 0, done.stderr
    variants = {variant["id"]: variant for variant in done.answer["variants"]}
    assert list(variants) == ["fp32", "int8", "mixed"]
    assert not variants["int8"]["within_budget"]
    assert variants["mixed"]["within_budget"]
    assert {"conv_2", "conv_3"} <= set(variants["mixed"]["float_nodes"])
    search = done.answer["search"]
    assert 1 <= search["evaluations"] <= 12
    assert search["drop"] <= search["drop_upper"] <= 5
    assert 0 < search["macs_int8_share"] < 1
    assert search["layers_float"] >= 2
    onnx.checker.check_model(str(out / "m.sdl" / "model.mixed.onnx"), full_check=True)
    assert verify(out / "m.sdl").passed
    with load(out / "m.sdl", variant="mixed") as session:
        assert session.run({"image": images(1, seed=3)})["scores"].shape == (1, 4)


def test_evidence_keeps_the_front_and_the_precision_of_each_layer(out, outliers, data):
    result = build(
        outliers, out / "m.sdl", calibration=data[1], evaluation=data[3], budget="agreement=5", precision="int8",
        repeats=3,
    )  # fmt: skip
    search = json.loads((result.path / "evidence.json").read_text())["quantization"]["search"]
    shares = [point["macs_int8_share"] for point in search["points"]]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (1.0, 0.0)
    float_blocks = {block["block"] for block in search["blocks"] if block["precision"] == "fp32"}
    assert {"conv_2", "conv_3"} <= float_blocks
    assert result.manifest.variant("mixed").accuracy.drop_upper <= 5


def test_same_inputs_give_the_same_mixed_variant(out, outliers, data):
    options = {"calibration": data[1], "evaluation": data[3], "budget": "agreement=5", "precision": "int8"}
    for name in ("one.sdl", "two.sdl"):
        build(outliers, out / name, repeats=3, **options)
    one, two = ((out / name / "model.mixed.onnx").read_bytes() for name in ("one.sdl", "two.sdl"))
    assert one == two
    first, second = (Package.open(out / name).manifest for name in ("one.sdl", "two.sdl"))
    assert first.variant("mixed").accuracy == second.variant("mixed").accuracy
    assert first.variant("mixed").float_nodes == second.variant("mixed").float_nodes


def test_budget_that_cannot_be_met_exits_with_1_prints_the_front_and_keeps_fp32(sanderling, out, outliers, data):
    done = build_by_command(sanderling, outliers, out, data, "--budget", "agreement=1.23", "--precision", "int8")

    assert done.code == 1
    assert [variant["id"] for variant in done.answer["variants"]] == ["fp32", "int8"]
    assert done.answer["chosen"] == "fp32"
    assert done.answer["search"]["tested"]
    assert all(point["drop_upper"] > 1.23 for point in done.answer["search"]["tested"])
    assert "drop" not in done.answer["search"]
    assert verify(out / "m.sdl").passed
    search = json.loads((out / "m.sdl" / "evidence.json").read_text())["quantization"]["search"]
    assert search["chosen"] is None
    assert len(search["points"]) > 2


def test_too_few_evaluation_samples_are_told_with_how_many_are_needed(sanderling, out, outliers, work, data):
    np.savez(work / "evaluation.npz", image=images(60, seed=2))
    done = build_by_command(sanderling, outliers, out, data, "--budget", "agreement=5", "--precision", "int8")

    assert done.code == 1
    assert "search" not in done.answer
    (event,) = [event for event in done.answer["events"] if event["kind"] == "too-few-evaluation-samples"]
    assert "60 evaluation samples cannot show that agreement=5 holds" in event["reason"]
    assert "at least 72 are needed" in event["reason"]


def test_budget_of_nothing_is_told_to_be_out_of_reach(sanderling, out, outliers, data):
    done = build_by_command(sanderling, outliers, out, data, "--budget", "agreement=0", "--precision", "int8")

    assert done.code == 1
    (event,) = [event for event in done.answer["events"] if event["kind"] == "too-few-evaluation-samples"]
    assert "no number is enough" in event["reason"]


def test_another_point_of_the_front_is_taken_without_a_search(sanderling, out, outliers, data, searched):
    search = json.loads((searched / "evidence.json").read_text())["quantization"]["search"]
    floats = search["points"][-2]["float_blocks"]

    done = build_by_command(
        sanderling, outliers, out, data, "--budget", "agreement=5", "--precision", "int8",
        "--mixed-from", searched, "--layers-float", len(floats),
    )  # fmt: skip

    assert done.code == 0, done.stderr
    assert "search" not in done.answer
    mixed = next(variant for variant in done.answer["variants"] if variant["id"] == "mixed")
    convolutions = {block["block"] for block in search["blocks"] if block["operator"] == "Conv"}
    assert set(mixed["float_nodes"]) >= convolutions & set(floats)
    assert mixed["accuracy"]["drop_upper"] <= 5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--layers-float", "3"], "belong together"),
        (["--mixed-from", "FIRST"], "belong together"),
        (["--mixed-from", "FIRST", "--layers-float", "999"], "has no point with 999 blocks in float: available are 0,"),
        (["--mixed-from", "missing.sdl", "--layers-float", "1"], "missing.sdl"),
    ],
)
def test_point_that_is_not_there_is_refused_before_anything_is_built(
    sanderling, out, outliers, data, searched, options, reason
):
    done = build_by_command(
        sanderling, outliers, out, data, *(searched if option == "FIRST" else option for option in options)
    )
    assert done.code == 2
    assert reason in done.error
    assert not (out / "m.sdl").exists()
