"""How the workshop finds out what a detector's numbers mean: by graphs that give constant outputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from sanderling.core.errors import OptionError
from sanderling.core.progress import Recorder, Silent
from sanderling.core.tensor import TensorSpec
from sanderling.measure.samples import Samples
from sanderling.model.detection import parse_detection
from sanderling.run.vision.detections import DetectionRules
from sanderling.workshop.detection import chosen_reader, settled
from tests import detectors
from tests.detectors import OBJECTS, SIZE, as_rows
from tests.models import make_model, tensor

INPUTS = (TensorSpec(name="images", dtype="float32", shape=(1, 3, SIZE[1], SIZE[0])),)


def settle(outputs, text=None):
    """The reader that the workshop ends with, and the events that it told."""
    constants = {f"{name}_constant": array for name, array in outputs.items()}
    nodes = [helper.make_node("Identity", [f"{name}_constant"], [name], name=name) for name in outputs]
    tensors = [tensor(name, array.shape, array.dtype.name) for name, array in outputs.items()]
    model = make_model(nodes, [tensor("images", INPUTS[0].shape)], tensors, constants)
    specs = tuple(TensorSpec(name=name, dtype=array.dtype.name, shape=array.shape) for name, array in outputs.items())
    samples = Samples({"images": np.zeros(INPUTS[0].shape, np.float32)}, None, ("one",))
    recorder = Recorder(Silent())
    reader = chosen_reader(text, INPUTS, specs)
    return settled(reader, text, model, samples, recorder), recorder.events


def assert_finds(reader, outputs, atol=1e-3):
    (found,) = reader.read(outputs, DetectionRules())
    np.testing.assert_allclose(as_rows(found), OBJECTS, atol=atol)


@pytest.mark.parametrize(
    "form", ["yolov5", "yolov8", "yolox", "ssd", "detr", "centernet", "nms_rows", "caffe_rows", "nms_parts"]
)
def test_what_the_published_networks_give_stays_as_it_is(form):
    outputs = getattr(detectors, f"{form}_output")()
    reader, events = settle(outputs)
    assert events == []
    assert_finds(reader, outputs)


def test_samples_on_which_nothing_is_found_tell_nothing():
    reader, events = settle({"output": np.zeros((1, 0, 6), np.float32)}, "nms_in_graph")
    assert events == []
    assert len(reader.read({"output": np.zeros((1, 0, 6), np.float32)}, DetectionRules())[0]) == 0


def test_logits_are_told_from_probabilities():
    outputs = detectors.yolov8_output()
    outputs["output0"][:, 4:] = np.log((outputs["output0"][:, 4:] + 1e-6) / (1 - outputs["output0"][:, 4:]))
    reader, (event,) = settle(outputs)
    assert reader.spec.scores == "sigmoid"
    assert (event.kind, event.subject) == ("detection-recognised", "yolov8")
    assert "read as 'sigmoid': they are -13.8 to" in event.reason
    assert_finds(reader, outputs)


def test_a_softmax_in_the_graph_is_seen():
    outputs = detectors.ssd_output()
    shares = np.exp(outputs["scores"])
    outputs["scores"] = shares / shares.sum(axis=-1, keepdims=True)
    reader, (event,) = settle(outputs)
    assert reader.spec.scores == "probability"
    assert "sum is 1" in event.reason
    assert_finds(reader, outputs)


def test_a_sigmoid_in_the_graph_is_seen():
    outputs = detectors.centernet_output()
    outputs["hm"] = 1 / (1 + np.exp(-outputs["hm"]))
    reader, _ = settle(outputs)
    assert reader.spec.scores == "probability"
    assert_finds(reader, outputs)


def test_shares_are_told_from_pixels():
    outputs = detectors.yolov8_output()
    outputs["output0"][:, :4] /= np.float32([*SIZE, *SIZE])[:, None]
    reader, (event,) = settle(outputs)
    assert reader.spec.units == "shares"
    assert "units are read as 'shares'" in event.reason
    assert_finds(reader, outputs)


def test_boxes_that_the_graph_decodes_are_told_from_offsets_in_cells():
    outputs = detectors.yolox_output()
    for place, (column, row, stride) in enumerate(detectors.cells()):
        x, y, width, height = outputs["output"][0, place, :4]
        outputs["output"][0, place, :4] = [
            (x + column) * stride,
            (y + row) * stride,
            np.exp(width) * stride,
            np.exp(height) * stride,
        ]
    reader, _ = settle(outputs)
    assert (reader.spec.head, reader.spec.units) == ("yolox", "pixels")
    assert_finds(reader, outputs)


def test_centres_are_told_from_edges():
    outputs = detectors.ssd_output()
    left, top, right, bottom = np.moveaxis(outputs["boxes"], -1, 0)
    outputs["boxes"] = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], axis=-1)
    outputs["boxes"][0, 1:90] = [0.5, 0.5, 0.1, 0.1]
    reader, _ = settle(outputs)
    assert reader.spec.boxes == "cxcywh"
    assert_finds(reader, outputs)


def test_offsets_from_priors_that_nobody_listed_are_refused():
    outputs = detectors.ssd_output()
    outputs["boxes"] = np.random.default_rng(0).normal(size=outputs["boxes"].shape).astype(np.float32)
    with pytest.raises(OptionError, match="look like offsets from prior boxes; list these with --detection"):
        settle(outputs)


def test_what_the_user_says_is_held_to_or_refused():
    outputs = detectors.yolov8_output()
    reader, events = settle(outputs, '{"head": "yolov8", "scores": "probability", "units": "pixels"}')
    assert (reader.spec.scores, reader.spec.units, events) == ("probability", "pixels", [])
    with pytest.raises(OptionError, match=r"scores are said to be 'sigmoid', but they are 0 to 0.9: expected 'prob"):
        settle(outputs, '{"head": "yolov8", "scores": "sigmoid"}')
    with pytest.raises(OptionError, match=r"units are said to be 'shares', but the largest of .* expected 'pixels'"):
        settle(outputs, '{"head": "yolov8", "units": "shares"}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yolov9", "neither a family (yolov5, yolov8"),
        ("{}", "head is None: available are yolov5"),
        ('{"head": "yolov8", "colour": 1}', "detection: colour: .*known keys are head, outputs"),
        ('{"head": "yolov8", "units": "feet"}', "detection: units: "),
        ('{"head": "ssd", "units": "priors"}', "priors are given with the unit"),
        ('{"head": "yolox", "strides": []}', "the unit 'cells' needs strides"),
        ('{"head": "ssd", "priors": {"strides": [8], "sizes": []}}', "sizes are of 0 levels, strides of 1"),
        ('{"head": "ssd", "priors": {"strides": [0], "sizes": [[[1, 1]]]}}', "must be greater than 0"),
        ('{"head": "yolov8", "head": "detr"}', "stands twice"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_in_one_line(text, says):
    with pytest.raises(OptionError, match=says.replace("(", r"\(")) as told:
        parse_detection(text)
    assert "\n" not in str(told.value)


def test_a_file_is_read_as_its_text(tmp_path):
    path = tmp_path / "detection.json"
    path.write_text('{"head": "detr", "scores": "sigmoid"}')
    assert parse_detection(str(path)) == parse_detection('{"head": "detr", "scores": "sigmoid"}')
    assert parse_detection(str(path)).background is None
