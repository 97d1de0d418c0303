from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sanderling.core.errors import DataError, ModelError
from sanderling.model.colors import VIDEO_STANDARDS
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.vision.frames import PIXEL_FORMATS, frame_of
from sanderling.run.vision.transforms import transform
from sanderling.workshop.fused_preprocessing import FrameSource, fuse, preprocessing_alone
from tests.frames import FRAME_OF_CHROMA, every_chroma
from tests.models import conv_classifier, sum_and_difference

pytest.importorskip("cv2")
COLORS = ({"color": "rgb"}, {"color": "bgr"}, {"color": "gray", "mean": (3.0,), "std": (1.0,)})
FILTERS = {  # levels that graph and host may differ by
    ("nearest", True): 0.0,
    ("bicubic", True): 0.0,
    ("bilinear", True): 0.001,  # floats, which are added up in another order
    ("area", True): 0.51,  # OpenCV rounds to levels, the graph does not
    ("bilinear", False): 1.001,  # and has weights of 11 bits
    ("bicubic", False): 1.001,
}


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
    how=st.sampled_from(list(FILTERS)),
    color=st.sampled_from(COLORS),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    seed=st.integers(0, 1000),
)
@example("nv12", "bt601-wide", (15, 16), {"resize": "letterbox"}, ("bicubic", True), COLORS[0], "NCHW", 989)
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
    assert np.abs(got - wanted).max() <= FILTERS[how]


def graph_and_host(preprocessing, source):
    """What compares both on a frame."""
    made = preprocessing_alone(preprocessing, source, name="frame").SerializeToString()
    session = onnxruntime.InferenceSession(made)

    def compared(pixels):
        wanted, _ = transform(frame_of(pixels, source.format, standard=source.standard), preprocessing)
        np.testing.assert_array_equal(session.run(None, {"frame": pixels})[0], wanted)

    return compared


@pytest.mark.parametrize("standard", VIDEO_STANDARDS)
@pytest.mark.parametrize("pixel_format", ["nv12", "nv21", "i420"])
@pytest.mark.parametrize("color", COLORS, ids=lambda color: color["color"])
def test_luma_and_chroma_have_the_same_levels_in_graph_and_host(standard, pixel_format, color):
    size = FRAME_OF_CHROMA
    preprocessing = Preprocessing(width=size, height=size, resize="none", scale=1.0, **color)
    compared = graph_and_host(preprocessing, FrameSource(pixel_format, size, size, standard))
    all_of_them = (pixel_format, color["color"]) == ("nv12", "rgb")
    for start in range(0, 256, 4 if all_of_them else 36):
        compared(every_chroma(range(start, start + 4), pixel_format))


@pytest.mark.parametrize("order", ["rgb", "bgr", "rgba"])
def test_colours_have_the_same_grey_in_graph_and_host(order):
    preprocessing = Preprocessing(width=256, height=256, resize="none", scale=1.0, **COLORS[2])
    compared = graph_and_host(preprocessing, FrameSource(order, 256, 256, "bt601-narrow"))
    red, green = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    for blue in range(0, 256, 1 if order == "rgb" else 16):
        compared(np.stack([red, green, np.full_like(red, blue), green][: len(order)], axis=-1))


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
