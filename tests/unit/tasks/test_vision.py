from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from sanderling.core.errors import DataError, OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.package import rewrite_manifest
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.session import load
from sanderling.run.vision.detections import DetectionRules
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.placing import Placement
from sanderling.tasks.vision import (
    Classifier,
    Detector,
    best_detections,
    best_labels,
    check_classifier,
    check_detector,
    check_pictures,
    classify,
    picture_feeds,
)
from tests.square_detector import square_detector_package, squares
from tests.unit.serve.packages import classifier_package

WHOLE = Placement(1, 1, 0, 0, 8, 8)
DETECTOR_OUTPUT = TensorSpec(name="boxes", dtype="float32", shape=("N", 6, 20))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl").manifest


@pytest.fixture(scope="module")
def detector(manifest):
    return manifest.model_copy(update={"outputs": (DETECTOR_OUTPUT,), "labels": ("cat", "dog")})


def test_objects_are_told_with_their_labels_and_corners_best_first(detector):
    assert check_detector(detector).spec.head == "yolov8"
    raw = np.zeros((1, 6, 20), np.float32)
    raw[0, :, 0] = [1, 2, 2, 4, 0.5, 0]  # centre, size, scores of the classes
    raw[0, :, 1] = [4, 4, 2, 2, 0, 0.75]
    raw[0, :, 2] = [6, 6, 1, 1, 0.125, 0]
    outputs = {"boxes": raw}
    found = best_detections(detector, outputs, WHOLE, DetectionRules(least_score=0.25))
    assert [(each.label, each.index, each.score) for each in found] == [("dog", 1, 0.75), ("cat", 0, 0.5)]
    assert [each.box for each in found] == [(3, 3, 5, 5), (0, 0, 2, 4)]
    assert len(best_detections(detector, outputs, WHOLE, DetectionRules(least_score=0.1))) == 3
    larger = best_detections(detector, outputs, Placement(0.5, 0.25, 0, 1, 16, 24), DetectionRules())
    assert [each.box for each in larger] == [(6, 8, 10, 16), (0, 0, 4, 12)]


def test_what_lies_off_the_picture_is_left_out(detector):
    raw = np.zeros((1, 6, 20), np.float32)
    raw[0, :, 0] = [1, 1, 2, 2, 0.5, 0]  # in the padding above
    raw[0, :, 1] = [4, 4, 2, 2, 0, 0.75]
    found = best_detections(detector, {"boxes": raw}, Placement(1, 1, 0, 2, 8, 4), DetectionRules())
    assert [each.label for each in found] == ["dog"]


def test_likeliest_classes_come_first_and_have_names(manifest):
    check_classifier(manifest)
    scores = {"scores": np.log(np.array([[0.1, 0.6, 0.1, 0.2]], np.float32))}
    found = best_labels(manifest, scores, top=2)
    assert [(each.index, each.label) for each in found] == [(1, "class 1"), (3, "class 3")]
    assert found[0].probability == pytest.approx(0.6)


def test_a_model_for_something_else_is_refused_with_its_outputs(manifest, detector):
    with pytest.raises(OptionError, match=r"no classifier: outputs are boxes: float32\[N, 6, 20\]"):
        check_classifier(detector)
    with pytest.raises(OptionError, match=r"no detector: outputs are scores: float32\[N, 4\].*--detection"):
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


@pytest.fixture(scope="module")
def square_package(tmp_path_factory):
    return square_detector_package(tmp_path_factory.mktemp("squares")).path


def boxes(found):
    return [(each.label, each.box) for each in found]


def test_detector_finds_objects_in_pixels_of_the_picture_through_a_letterbox(square_package, tmp_path):
    pixels = squares((40, 24, 0), (80, 8, 1), size=(128, 64), scale=2)
    expected = [("red", (40, 24, 64, 48)), ("green", (80, 8, 104, 32))]
    path = tmp_path / "squares.png"
    Image.fromarray(pixels).save(path)
    with Detector(square_package, rules=DetectionRules(least_score=0.9)) as detector:
        assert sorted(boxes(detector.detect(pixels))) == sorted(expected)
        assert boxes(detector.detect(path)) == boxes(detector.detect(str(path))) == boxes(detector.detect(pixels))
        bgr = frame_of(np.ascontiguousarray(pixels[:, :, ::-1]), "bgr")
        assert boxes(detector.detect(bgr)) == boxes(detector.detect(pixels))


def test_detector_numbers_objects_through_a_stream(square_package, tmp_path):
    for index in range(6):
        Image.fromarray(squares((4 * index, 8, 0), (48 - 4 * index, 40, 0))).save(tmp_path / f"{index}.png")
    with Detector(square_package, rules=DetectionRules(least_score=0.9)) as detector:
        outcomes = list(detector.stream(tmp_path, track=True, draw=True))
        named = [tmp_path / "0.png", tmp_path / "3.png"]
        assert [outcome.frame.name for outcome in detector.stream(named)] == list(map(str, named))
    assert [len(outcome.value) for outcome in outcomes] == [2] * 6
    tracks = [{each.track: each.box[0] for each in outcome.value} for outcome in outcomes]
    assert [track[1] for track in tracks] in ([4 * i for i in range(6)], [48 - 4 * i for i in range(6)])
    assert all(set(track) == {1, 2} for track in tracks)
    assert all(outcome.drawn.format == "bgr" and outcome.drawn.pixels.any() for outcome in outcomes)


def test_what_is_no_picture_at_all_is_refused(square_package):
    with Detector(square_package) as detector, pytest.raises(DataError, match="picture is a bytes: expected a path"):
        detector.detect(b"JPEG")


def test_a_session_that_was_given_stays_open(square_package):
    with load(square_package) as session:
        with Detector(session) as detector:
            detector.detect(squares())
        assert Detector(session).detect(squares()) == ()
        with pytest.raises(OptionError, match="is no classifier"):
            Classifier(session)
        session.run({"images": np.zeros((1, 3, 64, 64), np.float32)})


def test_classifier_says_what_classify_says(tmp_path):
    able = Preprocessing(width=8, height=8, resize="stretch")
    plain = classifier_package(tmp_path / "plain.sdl")
    rewrite_manifest(plain, plain.manifest.model_copy(update={"preprocessing": able}), tmp_path / "able.sdl", {})
    path = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    with Classifier(tmp_path / "able.sdl", top=2) as classifier:
        got, expected = classifier.classify(path), classify(classifier.session, path, top=2)
    assert [each.index for each in got] == [each.index for each in expected]
    assert [each.probability for each in got] == pytest.approx([each.probability for each in expected], abs=0.01)
