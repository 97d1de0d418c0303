"""The scene detector, from its trained weights to INT8, judged by mAP on pictures whose boxes are known."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.zoo.fashion_scenes import MOST_OVERLAP, SIZE_PX, SceneComposer
from sanderling.api import build, verify
from sanderling.core.arrays import write_npz
from sanderling.measure.average_precision import match, mean_average_precision
from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import EVALUATION_RULES
from sanderling.run.vision.reading import reader_of
from sanderling.run.vision.suppression import pairwise_iou
from tests.coco import coco_percent

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "benchmarks" / "zoo" / "weights" / "scene_detector.safetensors"
SLICE = ROOT / "tests" / "data" / "fashion_slice.npz"
PREPROCESS = '{"resize": "none"}'
CALIBRATION_SCENES, EVALUATION_SCENES = 100, 120
BUDGET = 15.0  # so few pictures leave much doubt


def composer(part, stream):
    with np.load(SLICE) as arrays:
        return SceneComposer(arrays[f"{part}_images"], arrays[f"{part}_labels"], stream)


@pytest.fixture(scope="module")
def scenes():
    """Scenes of the kept test images."""
    return composer("test", 1).compose(EVALUATION_SCENES, seed=0)


@pytest.fixture(scope="module")
def data(scenes, tmp_path_factory):
    """Folder with ``calibration.npz`` and the labelled ``evaluation.npz``."""
    folder = tmp_path_factory.mktemp("data")
    write_npz(
        folder / "calibration.npz", {"images": composer("calibration", 0).compose(CALIBRATION_SCENES, seed=0).images}
    )
    labelled = {"images": scenes.images, "boxes": scenes.boxes, "classes": scenes.classes}
    write_npz(folder / "evaluation.npz", labelled)
    return folder


@pytest.fixture(scope="module")
def result(data, tmp_path_factory):
    """The build of the detector with a budget in mAP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        return build(
            "benchmarks.zoo.scene_detector:build",
            tmp_path_factory.mktemp("built") / "detector.sdl",
            weights=WEIGHTS,
            inputs=[f"images=1,3,{SIZE_PX},{SIZE_PX}"],
            dynamic=["batch"],
            calibration=data / "calibration.npz",
            evaluation=data / "evaluation.npz",
            preprocess=PREPROCESS,
            budget=f"map={BUDGET}",
            repeats=10,
        )


def test_scenes_are_the_same_for_the_same_seed_only(scenes):
    again = composer("test", 1).compose(4, seed=0)
    other = composer("test", 1).compose(4, seed=1)
    assert again.images.tobytes() == scenes.images[:4].tobytes()
    assert again.boxes.tobytes() == scenes.boxes[:4].tobytes()
    assert other.images.tobytes() != again.images.tobytes()


def test_scenes_hold_items_inside_the_picture_that_overlap_little(scenes):
    for boxes, classes in zip(scenes.boxes, scenes.classes, strict=True):
        there = boxes[classes >= 0]
        assert 1 <= len(there) <= 6
        assert (there[:, :2] >= 0).all()
        assert (there[:, 2:] <= SIZE_PX).all()
        assert (there[:, 2:] > there[:, :2]).all()
        overlap = pairwise_iou(there, there) - np.eye(len(there))
        assert overlap.max(initial=0) <= MOST_OVERLAP


def test_every_variant_is_judged_by_map_on_every_picture(result):
    for variant in result.manifest.variants:
        assert (variant.accuracy.metric, variant.accuracy.samples) == ("map", EVALUATION_SCENES)
    assert (result.manifest.budget.metric, result.manifest.budget.limit) == ("map", BUDGET)


def test_detector_finds_the_items(result):
    assert result.manifest.variant("fp32").accuracy.value > 50


def test_variant_is_inside_the_budget_on_the_bound_and_not_the_drop(result):
    for variant in result.manifest.variants[1:]:
        assert variant.accuracy.drop_upper > variant.accuracy.drop
        assert variant.within_budget == (variant.accuracy.drop_upper <= BUDGET)


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_map_is_what_onnxruntime_alone_gives(result, scenes, variant):
    session = onnxruntime.InferenceSession(
        str(result.path / f"model.{variant}.onnx"), providers=["CPUExecutionProvider"]
    )
    inputs = scenes.images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    reader, name = reader_of(result.manifest), result.manifest.outputs[0].name
    outputs = ({name: session.run([name], {"images": picture[None]})[0]} for picture in inputs)
    found = [reader.read(output, EVALUATION_RULES)[0] for output in outputs]
    objects = Objects(scenes.boxes.astype(np.float64), scenes.classes)
    expected = mean_average_precision(match(found, objects))
    assert expected == pytest.approx(coco_percent(found, objects)[1], abs=1e-6)
    assert result.manifest.variant(variant).accuracy.value == pytest.approx(expected, abs=0.05)


def test_map_is_that_of_pytorch(result, scenes):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from benchmarks.zoo.scene_detector import build as build_detector
    from benchmarks.zoo.train_scene_detector import measure_map

    module = build_detector()
    module.load_state_dict(load_file(WEIGHTS))
    with torch.no_grad():
        _, expected = measure_map(module, scenes)
    assert result.manifest.variant("fp32").accuracy.value == pytest.approx(expected, abs=0.05)


def test_package_verifies_and_repeats_its_map(result, data):
    verified = verify(result.path, evaluation=data / "evaluation.npz")
    assert verified.passed
    for variant in result.manifest.variants:
        assert verified.accuracy[variant.id].value == variant.accuracy.value


def test_report_names_the_metric(result):
    assert "points of mAP50-95" in (result.path / "report.html").read_text(encoding="utf-8")
