from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.core.errors import OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.detection import PriorBoxes, family_spec
from sanderling.run.vision.detections import DetectionRules
from sanderling.run.vision.heads import HEADS
from sanderling.run.vision.heads.ssd import prior_boxes
from sanderling.run.vision.reading import find_reader
from tests import detectors
from tests.detectors import CLASSES, OBJECTS, SIZE, as_rows, greedy_suppression

INPUTS = (TensorSpec(name="images", dtype="float32", shape=(1, 3, SIZE[1], SIZE[0])),)
RULES = DetectionRules(least_score=0.25, most_overlap=0.5)
FORMS = {
    "yolov5": detectors.yolov5_output,
    "yolov8": detectors.yolov8_output,
    "yolox": detectors.yolox_output,
    "ssd": detectors.ssd_output,
    "detr": detectors.detr_output,
    "centernet": detectors.centernet_output,
    "nms_in_graph": detectors.nms_rows_output,
    "nms_in_graph, rows of seven": detectors.caffe_rows_output,
    "nms_in_graph, in parts": detectors.nms_parts_output,
}
every_form = pytest.mark.parametrize("form", FORMS)


def specs(outputs):
    return tuple(TensorSpec(name=name, dtype=array.dtype.name, shape=array.shape) for name, array in outputs.items())


def reader_for(outputs, spec=None, inputs=INPUTS):
    return find_reader(inputs, specs(outputs), spec)


@every_form
def test_family_is_recognised_and_finds_the_objects_where_they_are(form):
    outputs = FORMS[form]()
    reader = reader_for(outputs)
    assert reader.spec.head == form.split(",")[0]
    (found,) = reader.read(outputs, RULES)
    np.testing.assert_allclose(as_rows(found), OBJECTS, atol=2e-4)


@every_form
def test_half_precision_and_more_pictures_are_read_alike(form):
    once = FORMS[form]()
    twice = {
        name: np.concatenate([array, array]).astype(np.float16 if array.dtype.kind == "f" else array.dtype)
        for name, array in once.items()
    }
    first, second = reader_for(once).read(twice, RULES)
    np.testing.assert_array_equal(as_rows(first), as_rows(second))
    np.testing.assert_allclose(as_rows(first)[:, 4], [each[4] for each in OBJECTS])
    np.testing.assert_allclose(as_rows(first), OBJECTS, atol=0.3)


@every_form
@pytest.mark.filterwarnings("error")
def test_outputs_that_are_no_numbers_are_no_detections(form):
    outputs = {
        name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array for name, array in FORMS[form]().items()
    }
    assert [len(found) for found in reader_for(outputs).read(outputs, RULES)] in ([0], [])


@every_form
def test_number_of_classes_is_what_the_outputs_tell(form):
    expected = None if form.startswith("nms") else CLASSES
    assert reader_for(FORMS[form]()).classes == expected


@every_form
def test_agnostic_rules_drop_boxes_of_another_class(form):
    objects = [OBJECTS[0], (*OBJECTS[0][:3], 44.0, 2, 0.6)]
    build = FORMS[form]
    if form == "yolox":  # both would be of one cell
        objects[1] = (8.0, 26.0, 40.0, 58.0, 2, 0.6)
    if form == "centernet":
        objects[1] = (*OBJECTS[0][:3], 44.5, 2, 0.6)
    outputs = build(objects)
    rules = DetectionRules(most_overlap=0.3, agnostic=True)
    reader = reader_for(outputs)
    assert [len(found) for found in reader.read(outputs, DetectionRules(most_overlap=0.3))] == [2]
    assert [found.classes.tolist() for found in reader.read(outputs, rules)] == [[1]]


@settings(max_examples=25, deadline=None)
@given(form=st.sampled_from(sorted(FORMS)), seed=st.integers(0, 1 << 20), wild=st.sampled_from([0.0, 0.02, 0.5]))
def test_whatever_the_outputs_hold_detections_keep_the_rules(form, seed, wild):
    generator = np.random.default_rng(seed)
    outputs = FORMS[form]()
    reader = reader_for(outputs)
    for name, array in outputs.items():
        if array.dtype.kind != "f":
            continue
        outputs[name] = generator.normal(0, 3, array.shape).astype(np.float32)
        odd = generator.random(array.shape) < wild
        outputs[name][odd] = generator.choice([np.nan, np.inf, -np.inf, 3e38, 0], odd.sum())
    rules = DetectionRules(least_score=0.1, most_overlap=0.5, most=20)
    with np.errstate(all="ignore"):
        for found in reader.read(outputs, rules):
            assert len(found) <= rules.most
            assert len(found.boxes) == len(found.scores) == len(found.classes)
            assert (found.scores >= rules.least_score).all()
            assert (np.diff(found.scores) <= 0).all()
            assert ((found.classes >= 0) & (found.classes < 2_048)).all()


def noisy(shape, seed=0):
    return np.random.default_rng(seed).uniform(0, 1, shape).astype(np.float32)


def test_yolov5_decodes_as_one_box_at_a_time():
    raw = noisy((1, 3 * len(detectors.cells()), 5 + CLASSES))
    raw[..., :4] *= 60
    (found,) = reader_for({"output": raw}).read({"output": raw}, RULES)
    expected = greedy_suppression(detectors.decode_yolov5(raw[0], 0.25), 0.5)
    np.testing.assert_allclose(as_rows(found), expected, rtol=1e-6)


def test_yolov8_decodes_as_one_box_at_a_time():
    raw = noisy((1, 4 + CLASSES, len(detectors.cells())))
    raw[:, :4] *= 60
    (found,) = reader_for({"output": raw}).read({"output": raw}, RULES)
    expected = greedy_suppression(detectors.decode_yolov8(raw[0], 0.25), 0.5)
    np.testing.assert_allclose(as_rows(found), expected, rtol=1e-6)


def test_yolox_decodes_as_one_box_at_a_time():
    raw = noisy((1, len(detectors.cells()), 5 + CLASSES))
    (found,) = reader_for({"output": raw}).read({"output": raw}, RULES)
    expected = greedy_suppression(detectors.decode_yolox(raw[0], 0.25), 0.5)
    np.testing.assert_allclose(as_rows(found), expected, rtol=1e-6)


def test_ssd_starts_from_the_priors_that_the_package_lists():
    priors = PriorBoxes(strides=(16, 32), sizes=(((10, 10), (20, 12)), ((40, 40),)))
    places = [
        ((column + 0.5) * stride, (row + 0.5) * stride, *side)
        for stride, sides in zip(priors.strides, priors.sizes, strict=True)
        for row in range(SIZE[1] // stride)
        for column in range(SIZE[0] // stride)
        for side in sides
    ]
    np.testing.assert_allclose(prior_boxes(priors, SIZE), places)
    generator = np.random.default_rng(1)
    outputs = {
        "loc": generator.normal(size=(1, len(places), 4)).astype(np.float32),
        "conf": generator.normal(size=(1, len(places), CLASSES + 1)).astype(np.float32) * 2,
    }
    spec = family_spec("ssd", priors=priors, outputs={"boxes": "loc", "scores": "conf"})
    (found,) = reader_for(outputs, spec).read(outputs, RULES)
    expected = detectors.decode_ssd_priors(outputs["loc"][0], outputs["conf"][0], 0.25, places, priors.variances)
    np.testing.assert_allclose(as_rows(found), greedy_suppression(expected, 0.5), rtol=1e-6)


def test_centernet_has_the_peaks_that_pooling_finds():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(2)
    outputs = {
        "hm": generator.normal(size=(1, CLASSES, 16, 24)).astype(np.float32),
        "wh": generator.uniform(1, 4, (1, 2, 16, 24)).astype(np.float32),
        "reg": generator.uniform(0, 1, (1, 2, 16, 24)).astype(np.float32),
    }
    (found,) = reader_for(outputs).read(outputs, RULES)
    heat = torch.from_numpy(outputs["hm"]).sigmoid()
    peaks = heat * (torch.nn.functional.max_pool2d(heat, 3, 1, 1) == heat)
    expected = []
    for number, row, column in (peaks[0] >= 0.25).nonzero().tolist():
        x, y = column + outputs["reg"][0, 0, row, column], row + outputs["reg"][0, 1, row, column]
        width, height = outputs["wh"][0, :, row, column] * 4
        expected.append((*detectors.corners(x * 4, y * 4, width, height), number, peaks[0, number, row, column].item()))
    expected.sort(key=lambda each: -each[5])
    np.testing.assert_allclose(as_rows(found), expected, rtol=1e-5)


def test_detr_scores_are_a_softmax_without_its_last_class():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(3)
    logits, boxes = generator.normal(size=(1, 50, CLASSES + 1)), generator.uniform(0.2, 0.8, (1, 50, 4))
    outputs = {"logits": logits.astype(np.float32), "boxes": boxes.astype(np.float32)}
    (found,) = reader_for(outputs).read(outputs, DetectionRules(least_score=0.4))
    shares = torch.from_numpy(outputs["logits"]).softmax(-1)[0, :, :-1].numpy()
    expected = sorted(
        (
            (*detectors.corners(*outputs["boxes"][0, row].astype(float) * [*SIZE, *SIZE]), number, share)
            for row, shares_of_row in enumerate(shares)
            for number, share in enumerate(shares_of_row)
            if share >= 0.4
        ),
        key=lambda each: -each[5],
    )
    assert len(expected) > 5
    np.testing.assert_allclose(as_rows(found), expected, rtol=1e-5)


def test_detr_with_a_sigmoid_has_no_class_for_nothing():
    outputs = {"logits": np.full((1, 50, CLASSES), -9, np.float32), "boxes": np.full((1, 50, 4), 0.5, np.float32)}
    outputs["logits"][0, 4, 2] = 0.0
    reader = reader_for(outputs, family_spec("detr", scores="sigmoid"))
    (found,) = reader.read(outputs, RULES)
    assert (reader.classes, found.classes.tolist(), found.scores.tolist()) == (CLASSES, [2], [0.5])


def test_sides_in_the_order_of_tensorflow_are_turned():
    outputs = detectors.nms_parts_output()
    outputs["det_boxes"] = outputs["det_boxes"][..., [1, 0, 3, 2]] / np.float32([SIZE[1], SIZE[0], SIZE[1], SIZE[0]])
    (found,) = reader_for(outputs, family_spec("nms_in_graph", boxes="yxyx", units="shares")).read(outputs, RULES)
    np.testing.assert_allclose(as_rows(found), OBJECTS, atol=1e-4)


def test_text_is_a_turned_box_that_grows():
    cv2 = pytest.importorskip("cv2")
    heat = np.zeros((64, 96), np.float32)
    corners = cv2.boxPoints(((48, 32), (50, 12), 20))
    cv2.fillPoly(heat, [corners.astype(np.int32)], 0.8)
    outputs = {"maps": heat[None, None]}
    (found,) = reader_for(outputs, family_spec("db_text")).read(outputs, RULES)
    assert found.scores == pytest.approx([0.8], abs=0.08)  # its rim is part of the box
    growth = 50 * 12 * 1.5 / (2 * (50 + 12))
    expected = cv2.boxPoints(((48, 32), (50 + 2 * growth, 12 + 2 * growth), 20))
    assert np.abs(np.sort(found.quads[0], axis=0) - np.sort(expected, axis=0)).max() < 2.5
    first, second, third, _ = found.quads[0]
    assert first[0] < second[0]
    assert second[1] < third[1]
    np.testing.assert_allclose(found.boxes[0], [*found.quads[0].min(axis=0), *found.quads[0].max(axis=0)])


def test_a_map_is_text_only_where_the_package_says_so():
    outputs = {"maps": np.zeros((1, 1, SIZE[1], SIZE[0]), np.float32)}
    assert reader_for(outputs) is None
    assert [len(found) for found in reader_for(outputs, family_spec("db_text")).read(outputs, RULES)] == [0]


@pytest.mark.parametrize("head", HEADS)
def test_outputs_that_are_not_the_familys_are_refused_with_what_it_has(head):
    outputs = {"scores": np.zeros((1, 10), np.float32)}
    with pytest.raises(OptionError, match=rf"detection: '{head}' has .*: the outputs are scores: float32\[1, 10\]"):
        reader_for(outputs, family_spec(head))


def test_output_of_a_name_that_the_model_does_not_have_is_refused():
    with pytest.raises(OptionError, match="there is no output boxen"):
        reader_for(detectors.ssd_output(), family_spec("ssd", outputs={"boxes": "boxen", "scores": "scores"}))


def test_a_model_that_takes_no_picture_is_no_detector():
    outputs = detectors.yolov8_output()
    tokens = (TensorSpec(name="tokens", dtype="float32", shape=(1, 3, 64)),)
    assert reader_for(outputs, inputs=tokens) is None
    dynamic = (TensorSpec(name="images", dtype="float32", shape=(1, 3, "height", "width")),)
    with pytest.raises(OptionError, match=r"give the size with --input NAME=1,3,H,W"):
        reader_for(outputs, family_spec("yolov8"), inputs=dynamic)


@pytest.mark.parametrize(
    ("shape", "head"),
    [
        (("N", 4 + 10, 500), "yolov8"),
        ((1, 84, 8400), "yolov8"),
        ((1, 84, "anchors"), "yolov8"),
        (("N", 4, 500), None),
        (("N", 500, 14), None),  # no number of anchors that a grid over 96×64 pixels has
        (("N", 126, 14), "yolox"),
        (("N", 378, 14), "yolov5"),
        (("N", 378, 6), "yolov5"),
        (("N", 300, 6), "nms_in_graph"),
        (("N", "C", 500), None),
        (("N", 14), None),
    ],
)
def test_one_output_is_recognised_by_its_axes(shape, head):
    found = find_reader(INPUTS, (TensorSpec(name="y", dtype="float32", shape=shape),))
    assert (found.spec.head if found else None) == head


def test_integers_are_no_boxes():
    assert find_reader(INPUTS, (TensorSpec(name="y", dtype="int64", shape=("N", 14, 500)),)) is None
