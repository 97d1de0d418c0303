from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.core.errors import DataError, ModelError
from sanderling.model.colors import VIDEO_STANDARDS
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.vision.frames import PIXEL_FORMATS, frame_of
from sanderling.run.vision.transforms import transform
from sanderling.workshop.fused_preprocessing import FrameSource, fuse, preprocessing_alone
from tests.models import conv_classifier, sum_and_difference

pytest.importorskip("cv2")
COLORS = ({"color": "rgb"}, {"color": "bgr"}, {"color": "gray", "mean": (3.0,), "std": (1.0,)})
FILTERS = (
    ("bilinear", True),
    ("bilinear", False),
    ("bicubic", True),
    ("bicubic", False),
    ("area", True),
    ("nearest", True),
)


def pixels_of(source, seed):
    """Blocks and noise over all levels."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (source.shape[0] // 5 + 1, source.shape[1] // 5 + 1, *source.shape[2:]))
    whole = blocks.repeat(5, 0).repeat(5, 1)[: source.shape[0], : source.shape[1]]
    return (whole + random.integers(-30, 31, source.shape)).clip(0, 255).astype(np.uint8)


def run(model, pixels):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"frame": pixels})[0]


@settings(deadline=None, max_examples=120)
@given(
    pixel_format=st.sampled_from(PIXEL_FORMATS),
    standard=st.sampled_from(list(VIDEO_STANDARDS)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    way=st.sampled_from([{"resize": "letterbox"}, {"resize": "stretch"}, {"resize": "shorter", "resize_to": 60}]),
    how=st.sampled_from(FILTERS),
    color=st.sampled_from(COLORS),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    seed=st.integers(0, 1000),
)
def test_graph_and_host_agree_to_one_level(pixel_format, standard, size, way, how, color, layout, seed):
    preprocessing = Preprocessing(
        **{"width": 48, "height": 40, "scale": 1.0, "layout": layout, "mean": (3.0, 2.0, 1.0)} | way | color,
        interpolation=how[0],
        antialias=how[1],
    )
    source = FrameSource(pixel_format, 2 * size[0], 2 * size[1], standard)
    model = preprocessing_alone(preprocessing, source, name="frame")
    onnx.checker.check_model(model, full_check=True)
    pixels = pixels_of(source, seed)
    wanted, _ = transform(frame_of(pixels, pixel_format, standard=standard), preprocessing)
    got = run(model, pixels)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= 1.001


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(("width", "height"), [(48, 60), (60, 40), (48, 40)])
def test_overshoots_are_cut_off_where_only_one_axis_changes(width, height, antialias):
    preprocessing = Preprocessing(
        width=48, height=40, resize="stretch", interpolation="bicubic", antialias=antialias, scale=1.0
    )
    source = FrameSource("rgb", width, height, "bt601-narrow")
    pixels = np.random.default_rng(0).integers(0, 2, source.shape).astype(np.uint8) * 255
    wanted, _ = transform(frame_of(pixels), preprocessing)
    got = run(preprocessing_alone(preprocessing, source, name="frame"), pixels)
    assert np.abs(got - wanted).max() <= 1.001


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
def test_joined_graph_gives_what_its_parts_give(opset):
    preprocessing = Preprocessing(width=16, height=16, resize_to=18, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    model = conv_classifier(size=16, opset=opset)
    before = model.SerializeToString(deterministic=True)
    source = FrameSource("nv12", 40, 30, "bt601-narrow")
    fused = fuse(model, preprocessing, source, name="frame")
    onnx.checker.check_model(fused, full_check=True)
    pixels = pixels_of(source, 0)
    tensor = run(preprocessing_alone(preprocessing, source, name="frame", opset=opset), pixels)
    apart = onnxruntime.InferenceSession(before).run(None, {"image": tensor})[0]
    np.testing.assert_allclose(run(fused, pixels), apart, rtol=1e-4, atol=1e-5)
    assert model.SerializeToString(deterministic=True) == before


def test_models_that_cannot_be_fused_are_refused():
    preprocessing, source = (
        Preprocessing(width=16, height=16, resize="none"),
        FrameSource("rgb", 16, 16, "bt601-narrow"),
    )
    with pytest.raises(ModelError, match="has 2 inputs"):
        fuse(sum_and_difference(), preprocessing, source, name="frame")
    with pytest.raises(ModelError, match="opset 10: preprocessing needs at least 11"):
        fuse(conv_classifier(size=16, opset=10), preprocessing, source, name="frame")
    with pytest.raises(DataError, match="20×16 pixels: expected 16×16"):
        fuse(conv_classifier(size=16), preprocessing, FrameSource("rgb", 20, 16, "bt601-narrow"), name="frame")
