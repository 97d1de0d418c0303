"""Detectors as users run them: a trained one on a video with known boxes, other families, and text."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw, ImageFont

from benchmarks.zoo.fashion_scenes import SceneComposer
from benchmarks.zoo.scene_video import compose_video, write_video
from sanderling.api import build
from sanderling.core.arrays import write_npz
from sanderling.core.tensor import TensorSpec
from sanderling.measure.average_precision import match, mean_average_precision
from sanderling.measure.detection import Objects
from sanderling.model.detection import family_spec, parse_detection
from sanderling.model.package import Package, rewrite_manifest
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.vision.detections import EVALUATION_RULES, Detections
from sanderling.run.vision.reading import find_reader
from sanderling.run.vision.sources import open_source
from sanderling.run.vision.suppression import pairwise_iou
from sanderling.tasks.vision import Detector
from tests.nms_graph import with_nms
from tests.square_detector import square_detector_package, squares
from tests.unit.run.guard.packages import package_of

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "benchmarks" / "zoo" / "weights" / "scene_detector.safetensors"
SLICE = ROOT / "tests" / "data" / "fashion_slice.npz"
FRAMES = 60  # more than a shot
EVERY = 4  # frame that the PyTorch module sees
PLAIN = {"precision": "fp32", "repeats": 1, "inputs": ["images=1,3,160,160"]}


def composer():
    with np.load(SLICE) as arrays:
        return SceneComposer(arrays["test_images"], arrays["test_labels"], 1)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """The file, and beside it what is on its frames."""
    folder = tmp_path_factory.mktemp("video")
    return write_video(folder / "scenes.mp4", compose_video(composer(), FRAMES, seed=3))


@pytest.fixture(scope="module")
def truth(video):
    with np.load(video.with_suffix(".npz")) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def detector_package(tmp_path_factory):
    """The scene detector in FP32, which takes frames of any size by a letterbox."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        path = tmp_path_factory.mktemp("detector") / "detector.sdl"
        source = "benchmarks.zoo.scene_detector:build"
        return build(source, path, weights=WEIGHTS, preprocess='{"resize": "letterbox"}', **PLAIN).path


def as_detections(found):
    boxes = np.array([each.box for each in found], float).reshape(-1, 4)
    scores, classes = [each.score for each in found], [each.index for each in found]
    return Detections(boxes, np.array(scores), np.array(classes, np.int64))


def pytorch_detections(frames):
    """What the PyTorch module finds, with everything around it written another way."""
    import torch
    from safetensors.torch import load_file

    from benchmarks.zoo.scene_detector import build as build_module

    module = build_module()
    module.load_state_dict(load_file(WEIGHTS))
    for frame in frames:
        picture = torch.from_numpy(frame.pixels[:, :, ::-1].copy()).permute(2, 0, 1)[None].float() / 255
        small = torch.nn.functional.interpolate(picture, (120, 160), mode="bilinear", antialias=True)
        square = torch.nn.functional.pad(small, (0, 0, 20, 20), value=114 / 255)
        with torch.no_grad():
            yield one_by_one(module(square)[0].numpy())


def one_by_one(raw):
    """Decode, drop duplicates of each class, and undo the letterbox: 640×480 became 160×120, 20 below the top."""
    centre, sides = raw[:2].T * 4 - [0, 80], raw[2:4].T * 4
    boxes = np.hstack([centre - sides / 2, centre + sides / 2])
    rows = []
    least = max(np.sort(raw[4:].ravel())[-EVALUATION_RULES.candidates], EVALUATION_RULES.least_score)
    for number, scores in enumerate(raw[4:]):
        waiting = [anchor for anchor in np.argsort(-scores) if scores[anchor] >= least]
        while waiting:
            best = waiting.pop(0)
            rows.append((*boxes[best].clip([0, 0, 0, 0], [640, 480, 640, 480]), number, scores[best]))
            overlap = pairwise_iou(boxes[best : best + 1], boxes[waiting])[0] if waiting else []
            waiting = [each for each, share in zip(waiting, overlap, strict=True) if share <= 0.65]
    rows = np.array(sorted(rows, key=lambda row: -row[5])[: EVALUATION_RULES.most], float)
    return Detections(rows[:, :4], rows[:, 5], rows[:, 4].astype(np.int64))


def test_map_on_a_video_is_the_pytorch_models(detector_package, video, truth):
    objects = Objects(truth["boxes"][::EVERY].astype(np.float64), truth["classes"][::EVERY])
    with Detector(detector_package, rules=EVALUATION_RULES) as detector:
        found = [as_detections(outcome.value) for outcome in detector.stream(video)][::EVERY]
    with open_source(video) as source:
        expected = list(pytorch_detections(itertools.islice(source, 0, None, EVERY)))
    assert len(found) == len(expected) == FRAMES // EVERY
    ours, theirs = (mean_average_precision(match(each, objects)) for each in (found, expected))
    assert ours == pytest.approx(theirs, abs=0.1)
    assert ours > 50


def test_objects_keep_their_numbers_through_a_shot(detector_package, video, truth):
    with Detector(detector_package) as detector:
        frames = [outcome.value for outcome in detector.stream(video, track=True)]
    pairs = set()
    for index, found in enumerate(frames[:50]):
        sure = [each for each in found if each.track is not None and each.score > 0.6]
        overlap = pairwise_iou(as_detections(sure).boxes, truth["boxes"][index].astype(float))
        pairs |= {(sure[row].track, int(truth["tracks"][index, column])) for row, column in np.argwhere(overlap > 0.7)}
    # As many numbers as objects that are found, but for the few whose class flickers: another class is another track.
    assert 3 <= len({item for _, item in pairs}) <= 4
    assert len({track for track, _ in pairs}) <= 6


def test_command_tells_and_saves_what_it_found(sanderling_here, detector_package, video, out, truth):
    done = sanderling_here("detect", detector_package, video, "--save", out / "out.mp4", "--track", "--json")
    assert done.code == 0
    answer = done.answer
    assert (answer["head"], answer["variant"], len(answer["results"])) == ("yolov8", "fp32", FRAMES)
    first = answer["results"][0]
    assert (first["width"], first["height"], first["frame"]) == (640, 480, 0)
    overlap = pairwise_iou(np.array([each["box"] for each in first["objects"]]), truth["boxes"][0].astype(float))
    assert (overlap.max(axis=0) > 0.7).sum() >= 3
    with open_source(out / "out.mp4") as saved, open_source(video) as source:
        pairs = list(zip(saved, source, strict=True))
    assert len(pairs) == FRAMES
    for box in first["objects"][:1]:
        left, top = round(box["box"][0]), round((box["box"][1] + box["box"][3]) / 2)
        edge = [frame.pixels[top - 4 : top + 4, left : left + 2].astype(int) for frame in pairs[0]]
        assert np.abs(edge[0] - edge[1]).mean() > 20  # there is a line


def test_pictures_are_told_for_people(sanderling_here, work):
    package = square_detector_package(work).path
    Image.fromarray(squares((20, 24, 0), (40, 8, 1))).save(work / "größe.png")
    Image.fromarray(squares()).save(work / "nothing.png")
    done = sanderling_here("detect", package, work / "größe.png", work / "nothing.png", "--score", "0.9")
    assert done.code == 0
    assert done.stdout.splitlines() == [
        str(work / "größe.png"),
        "  red 100 % at 20,24 to 32,36",
        "  green 100 % at 40,8 to 52,20",
        str(work / "nothing.png"),
        "  nothing",
    ]


def test_a_classifier_is_refused(refused, package, work):
    Image.fromarray(squares()).save(work / "picture.png")
    refused("detect", package, work / "picture.png", says=["is no detector: outputs are", "build --detection"])


def test_suppression_in_the_graph_finds_what_suppression_here_finds(detector_package, video, tmp_path):
    model = onnx.load(detector_package / "model.fp32.onnx")
    onnx.save(with_nms(model, classes=10, anchors=500, most_overlap=0.65), tmp_path / "nms.onnx")
    asked = {**PLAIN, "inputs": ()}
    built = build(tmp_path / "nms.onnx", tmp_path / "nms.sdl", preprocess='{"resize": "letterbox"}', **asked)
    assert built.manifest.detection.head == "nms_in_graph"
    with Detector(built.path, rules=EVALUATION_RULES) as one, Detector(detector_package, rules=EVALUATION_RULES) as two:
        for got, expected in zip(one.stream(video, limit=5), two.stream(video, limit=5), strict=True):
            assert [each.index for each in got.value] == [each.index for each in expected.value]
            np.testing.assert_allclose(as_detections(got.value).boxes, as_detections(expected.value).boxes, atol=1e-3)


def test_other_familys_build_is_judged_by_the_same_map(detector_package, tmp_path, monkeypatch):
    scenes = composer().compose(40, seed=0)
    labelled = {"images": scenes.images, "boxes": scenes.boxes, "classes": scenes.classes}
    write_npz(tmp_path / "evaluation.npz", labelled)
    monkeypatch.syspath_prepend(str(ROOT))
    result = build(
        "benchmarks.zoo.scene_heads:build",
        tmp_path / "ssd.sdl",
        weights=WEIGHTS,
        factory_arguments={"head": "ssd"},
        evaluation=tmp_path / "evaluation.npz",
        preprocess='{"resize": "none"}',
        detection="ssd",
        budget="map=5",
        **PLAIN,
    )
    spec, (variant,) = result.manifest.detection, result.manifest.variants
    assert (spec.head, spec.scores, spec.units, spec.boxes, spec.background) == ("ssd", "softmax", "shares", "xyxy", 0)
    objects = Objects(scenes.boxes.astype(np.float64), scenes.classes)
    with Detector(detector_package, rules=EVALUATION_RULES) as detector:
        found = [as_detections(detector.detect(picture)) for picture in scenes.images]
    # Scores are scaled where several classes are likely, which changes few ranks.
    assert variant.accuracy.value == pytest.approx(mean_average_precision(match(found, objects)), abs=1.0)
    assert variant.accuracy.also["map50"] > variant.accuracy.value > 50
    assert "takes for what" in (result.path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "within"),
    [
        ("yolov5", 0.01),
        ('{"head": "yolox", "strides": [8, 16]}', 0.01),
        ("ssd", 1.0),  # scores are scaled where several classes are likely
        ('{"head": "centernet", "strides": [8], "scores": "probability"}', 10.0),  # has no coarser grid
    ],
)
def test_every_family_of_the_same_weights_has_the_same_map(text, within):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from benchmarks.zoo.scene_detector import build as build_yolov8
    from benchmarks.zoo.scene_heads import build as build_other

    scenes = composer().compose(30, seed=0)
    pixels = torch.from_numpy(scenes.images).permute(0, 3, 1, 2).float() / 255
    picture = TensorSpec(name="images", dtype="float32", shape=("N", 3, 160, 160))
    percents = []
    for spec in (parse_detection("yolov8"), parse_detection(text)):
        module = build_yolov8() if spec.head == "yolov8" else build_other(spec.head)
        module.load_state_dict(load_file(WEIGHTS))
        with torch.no_grad():
            given = module(pixels)
        arrays = [given.numpy()] if torch.is_tensor(given) else [tensor.numpy() for tensor in given]
        outputs = {f"output{place}": array for place, array in enumerate(arrays)}
        shapes = tuple(TensorSpec(name=name, dtype="float32", shape=a.shape) for name, a in outputs.items())
        found = find_reader((picture,), shapes, spec).read(outputs, EVALUATION_RULES)
        percents.append(mean_average_precision(match(found, Objects(scenes.boxes.astype(float), scenes.classes))))
    assert percents[0] > 60
    assert percents[1] == pytest.approx(percents[0], abs=within)


@pytest.mark.skipif(importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="its weights are not installed")
def test_text_is_found_where_it_was_written(tmp_path):
    from sanderling.workshop.optimize.shapes import apply_shapes
    from sanderling.workshop.options import parse_input

    width, height = 480, 320
    folder = Path(importlib.util.find_spec("rapidocr_onnxruntime").origin).parent
    model = onnx.load(folder / "models" / "ch_PP-OCRv4_det_infer.onnx")
    apply_shapes(model, [parse_input(f"x=1,3,{height},{width}")], dynamic_batch=False)
    plain = package_of(tmp_path / "plain.sdl", {"fp32": model}, [{"x": np.zeros((1, 3, height, width), np.float32)}])
    shades = {"color": "bgr", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    preprocessing = Preprocessing(width=width, height=height, resize="letterbox", **shades)
    changes = {"preprocessing": preprocessing, "detection": family_spec("db_text", growth=1.6)}
    rewrite_manifest(plain, plain.manifest.model_copy(update=changes), tmp_path / "text.sdl", {})

    image = Image.new("RGB", (720, 480), (90, 120, 90))
    pen, font, written = ImageDraw.Draw(image), ImageFont.load_default(40), []
    for place, text in [((60, 50), "MARKET STREET"), ((120, 200), "No entry after 18:00"), ((60, 380), "Sanderling")]:
        pen.text(place, text, font=font, fill="white")
        written.append(pen.textbbox(place, text, font=font))
    with Detector(Package.open(tmp_path / "text.sdl").path) as detector:
        found = detector.detect(np.asarray(image))
    overlap = pairwise_iou(as_detections(found).boxes, np.array(written, float))
    assert (len(found), overlap.max(axis=0) > 0.6) == (3, pytest.approx([True] * 3))
    assert {each.label for each in found} == {"text"}
    assert all(len(each.corners) == 4 for each in found)
