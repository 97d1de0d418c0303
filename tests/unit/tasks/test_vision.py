from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from sanderling.core.errors import DataError, OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.preprocessing import Preprocessing
from sanderling.tasks.vision import (
    best_detections,
    best_labels,
    check_classifier,
    check_detector,
    check_pictures,
    picture_feeds,
)
from tests.unit.serve.packages import classifier_package

DETECTOR_OUTPUT = TensorSpec(name="boxes", dtype="float32", shape=("N", 6, 20))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl").manifest


@pytest.fixture(scope="module")
def detector(manifest):
    return manifest.model_copy(update={"outputs": (DETECTOR_OUTPUT,), "labels": ("cat", "dog")})


def test_objects_are_told_with_their_labels_and_corners_best_first(detector):
    check_detector(detector)
    raw = np.zeros((1, 6, 20), np.float32)
    raw[0, :, 0] = [10, 20, 4, 8, 0.5, 0]  # centre, size, scores of the classes
    raw[0, :, 1] = [40, 40, 10, 10, 0, 0.75]
    raw[0, :, 2] = [80, 80, 10, 10, 0.125, 0]
    found = best_detections(detector, {"boxes": raw}, least=0.25)
    assert [(each.label, each.index, each.score) for each in found] == [("dog", 1, 0.75), ("cat", 0, 0.5)]
    assert [each.box for each in found] == [(35, 35, 45, 45), (8, 16, 12, 24)]
    assert len(best_detections(detector, {"boxes": raw}, least=0.1)) == 3


def test_likeliest_classes_come_first_and_have_names(manifest):
    check_classifier(manifest)
    scores = {"scores": np.log(np.array([[0.1, 0.6, 0.1, 0.2]], np.float32))}
    found = best_labels(manifest, scores, top=2)
    assert [(each.index, each.label) for each in found] == [(1, "class 1"), (3, "class 3")]
    assert found[0].probability == pytest.approx(0.6)


def test_a_model_for_something_else_is_refused_with_its_outputs(manifest, detector):
    with pytest.raises(OptionError, match=r"no classifier: outputs are boxes: float32\[N, 6, 20\]"):
        check_classifier(detector)
    with pytest.raises(OptionError, match=r"outputs are scores: float32\[N, 4\]"):
        check_detector(manifest)
    with pytest.raises(OptionError, match="does not say how pictures become its input"):
        check_pictures(manifest)


def test_a_picture_is_read_from_a_file_or_a_stream_alike(manifest, tmp_path):
    able = manifest.model_copy(update={"preprocessing": Preprocessing(width=8, height=8, resize="stretch")})
    path = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    from_stream = picture_feeds(able, io.BytesIO(path.read_bytes()))
    np.testing.assert_array_equal(from_stream["image"], picture_feeds(able, path)["image"])
    assert from_stream["image"].shape == (1, 3, 8, 8)
    with pytest.raises(DataError, match="the picture is not a readable picture"):
        picture_feeds(able, io.BytesIO(b"nonsense"))
