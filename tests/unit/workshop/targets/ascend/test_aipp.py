"""AIPP's settings against the package's own preprocessing, on every colour and on real photos."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sanderling.core.errors import OptionError
from sanderling.demo.photos import find_photos
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.pictures import normalize
from sanderling.workshop.targets.ascend.aipp import (
    SOURCES,
    STANDARDS,
    configure,
    convert,
    largest_allowed,
    on_the_host,
    to_text,
    unpacked,
    worst_difference,
)

NARROW, WIDE, HD = "bt601-narrow", "bt601-wide", "bt709-narrow"
IMAGENET = Preprocessing(width=224, height=224, resize="none", mean=IMAGENET_MEAN, std=IMAGENET_STD)
UNIT = Preprocessing(width=224, height=224, resize="none")
CAFFE = Preprocessing(
    width=64, height=48, resize="none", color="bgr", scale=1.0, mean=(103.94, 116.78, 123.68), std=(58.8, 58.8, 58.8)
)
FASHION = Preprocessing(width=28, height=28, resize="none", color="gray", mean=(0.286,), std=(0.353,))
COLORED = [(source, standard) for source in ("nv12", "nv21") for standard in STANDARDS]
COLORED += [("rgb", NARROW), ("xrgb", NARROW)]


def levels(chip, host, preprocessing):
    """Largest difference of two tensors (1, C, H, W), in levels of a picture."""
    std = np.asarray(preprocessing.std)[:, None, None]
    return float((np.abs(chip.astype(np.float64) - host) * std).max()) / preprocessing.scale


def nv12(photo: Image.Image, *, swapped: bool = False) -> np.ndarray:
    """A frame (H * 3 / 2, W) in BT.601's wide range, as Pillow converts; chroma is the mean of 2×2 pixels."""
    planes = np.asarray(photo.convert("YCbCr"))
    height, width = planes.shape[:2]
    chroma = planes[..., 1:].reshape(height // 2, 2, width // 2, 2, 2).mean(axis=(1, 3)).round().astype(np.uint8)
    chroma = chroma[..., ::-1] if swapped else chroma
    return np.concatenate([planes[..., 0], chroma.reshape(height // 2, width)])


def fields(text):
    return dict(re.findall(r"(\w+): (\S+)", text))


@pytest.mark.parametrize(("source", "standard"), COLORED)
@pytest.mark.parametrize("preprocessing", [IMAGENET, UNIT, CAFFE], ids=["imagenet", "unit", "caffe"])
def test_every_colour_is_within_a_level_of_the_host(preprocessing, source, standard):
    aipp = configure(preprocessing, source, standard)
    assert worst_difference(aipp, preprocessing) <= largest_allowed(aipp) <= 1.13


@pytest.mark.parametrize(
    ("source", "standard"), [("gray", NARROW), ("rgb", NARROW), ("xrgb", NARROW), ("nv12", NARROW), ("nv21", WIDE)]
)
def test_every_grey_is_within_a_level_of_the_host(source, standard):
    aipp = configure(FASHION, source, standard)
    assert worst_difference(aipp, FASHION) <= largest_allowed(aipp)


PHOTOS = pytest.mark.parametrize("name", ["skimage/coffee.png", "skimage/chelsea.png", "sklearn/flower.jpg"])


def photo_of(name):
    return Image.open(*find_photos([name])).convert("RGB").resize((224, 224))


@PHOTOS
@pytest.mark.parametrize("source", ["rgb", "xrgb", "nv12", "nv21"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_real_photo_is_within_a_255th_of_the_host(name, source, color):
    preprocessing, photo = IMAGENET.model_copy(update={"color": color}), photo_of(name)
    rgb = np.asarray(photo)
    frame = {
        "rgb": lambda: rgb,
        "xrgb": lambda: np.concatenate([np.full((224, 224, 1), 255, np.uint8), rgb], axis=2),
        "nv12": lambda: nv12(photo),
        "nv21": lambda: nv12(photo, swapped=True),
    }[source]()
    pixels = unpacked(source, frame)
    chip = convert(configure(preprocessing, source, WIDE), pixels)
    assert levels(chip, on_the_host(preprocessing, source, WIDE, pixels), preprocessing) <= 1.0
    if source in ("rgb", "xrgb"):
        host = normalize((rgb if color == "rgb" else rgb[..., ::-1])[None], preprocessing)
        assert levels(chip, host, preprocessing) <= 1.0


@PHOTOS
def test_frame_decoded_by_pillow_is_the_same_photo(name):
    frame = nv12(photo_of(name))
    rgb = np.asarray(Image.fromarray(unpacked("nv12", frame), "YCbCr").convert("RGB"))  # it cuts off each product
    chip = convert(configure(IMAGENET, "nv12", WIDE), unpacked("nv12", frame))
    assert levels(chip, normalize(rgb[None], IMAGENET), IMAGENET) <= 2.0


def test_greys_of_both_ranges_become_black_and_white():
    white, black = (np.full((6, 4), value, np.uint8) for value in (235, 16))
    white[4:], black[4:] = 128, 128
    for source, standard in (("nv12", NARROW), ("nv21", HD)):
        aipp = configure(UNIT.model_copy(update={"width": 4, "height": 4}), source, standard)
        for frame, level in ((white, 1.0), (black, 0.0)):
            assert np.abs(convert(aipp, unpacked(source, frame)) - level).max() <= 1.1 / 255


@given(
    st.floats(0, 250),
    st.floats(0.05, 4.0),
    st.sampled_from([1.0, 1 / 255, 2 / 255]),
    st.sampled_from(SOURCES),
    st.sampled_from([NARROW, WIDE]),
    st.lists(st.integers(0, 255), min_size=3, max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_any_mean_and_deviation_stay_within_a_level(mean, deviation, scale, source, standard, pixel):
    channels = 1 if source == "gray" else 3
    preprocessing = Preprocessing(
        width=2,
        height=2,
        resize="none",
        color="gray" if source == "gray" else "rgb",
        scale=scale,
        mean=(mean * scale,) * channels,
        std=(deviation * 255 * scale,) * channels,
    )
    aipp = configure(preprocessing, source, standard)
    pixels = np.array([[pixel[:channels]]], np.uint8)
    host = on_the_host(preprocessing, source, standard, pixels)
    chip = convert(aipp, pixels)
    step = float(np.spacing(np.abs(chip).max())) / min(aipp.reciprocal)
    assert levels(chip, host, preprocessing) <= 1.0 + 0.25 + step


def test_file_says_what_is_computed():
    text = to_text(configure(IMAGENET, "nv21", NARROW))
    said = fields(text)
    assert text.startswith("aipp_op {\n  aipp_mode: static\n  input_format: YUV420SP_U8\n")
    assert (said["src_image_size_w"], said["src_image_size_h"]) == ("224", "224")
    assert (said["csc_switch"], said["rbuv_swap_switch"]) == ("true", "true")
    assert [said[f"matrix_r1c{column}"] for column in range(3)] == ["298", "-100", "-208"]
    assert [said[f"input_bias_{axis}"] for axis in range(3)] == ["16", "128", "128"]
    for channel in range(3):
        least, factor = float(said[f"min_chn_{channel}"]), float(said[f"var_reci_chn_{channel}"])
        assert (np.float16(least), np.float16(factor)) == (least, factor)
        subtracted = int(said[f"mean_chn_{channel}"]) + least
        assert subtracted == pytest.approx(255 * IMAGENET_MEAN[channel] - 0.5, abs=1e-3)
        assert factor == pytest.approx(1 / 255 / IMAGENET_STD[channel], rel=1e-3)


def test_colours_of_a_bgr_model_change_places():
    nv, rgb = (fields(to_text(configure(CAFFE, source, NARROW))) for source in ("nv12", "rgb"))
    assert [nv[f"matrix_r0c{column}"] for column in range(3)] == ["298", "516", "0"]
    assert (nv["rbuv_swap_switch"], rgb["rbuv_swap_switch"], rgb["csc_switch"]) == ("false", "true", "false")


def test_size_is_left_open_where_it_is_dynamic():
    said = fields(to_text(configure(IMAGENET, "rgb", NARROW, fixed_size=False)))
    assert (said["src_image_size_w"], said["src_image_size_h"]) == ("0", "0")


@pytest.mark.parametrize(
    ("changes", "source", "standard", "told"),
    [
        ({"width": 225}, "nv12", NARROW, "nv12 has one U and V for 2×2 pixels: the input is 225×224"),
        ({"height": 223}, "nv21", NARROW, "nv21 has one U and V for 2×2 pixels: the input is 224×223"),
        ({}, "yuyv", NARROW, "unknown source 'yuyv': available are nv12, nv21, rgb, xrgb, gray"),
        ({}, "nv12", "bt2020", "unknown matrix 'bt2020': available are bt601-narrow"),
        ({}, "gray", NARROW, "source=gray has one channel: the model expects rgb"),
        ({"layout": "NHWC"}, "rgb", NARROW, "layout NCHW: this one is NHWC"),
        ({"width": 5000}, "rgb", NARROW, "got 5000×224"),
        ({"mean": (-0.5, 0.0, 0.0)}, "rgb", NARROW, "0 to 510 levels from a channel: mean / scale is -127.5"),
        ({"color": "gray", "mean": (0.0,), "std": (1.0,)}, "nv12", HD, "Y of bt709-narrow is another"),
    ],
)
def test_what_aipp_cannot_do_is_refused(changes, source, standard, told):
    preprocessing = Preprocessing.model_validate({**UNIT.model_dump(), **changes})
    with pytest.raises(OptionError, match=re.escape(told)):
        configure(preprocessing, source, standard)


def test_odd_sizes_are_fine_for_rgb():
    assert configure(UNIT.model_copy(update={"width": 225}), "rgb", NARROW).width == 225
