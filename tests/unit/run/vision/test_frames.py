from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import DataError
from sanderling.run.vision.frames import frame_of


@pytest.mark.parametrize(
    ("pixel_format", "shape"),
    [("rgb", (6, 8, 3)), ("bgr", (6, 8, 3)), ("rgba", (6, 8, 4)), ("gray", (6, 8)), ("nv12", (9, 8)), ("i420", (9, 8))],
)
def test_frame_knows_its_size(pixel_format, shape):
    pixels = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
    for given in (frame_of(pixels, pixel_format), frame_of(pixels.tobytes(), pixel_format, width=8, height=6)):
        assert (given.width, given.height, given.format) == (8, 6, pixel_format)
        np.testing.assert_array_equal(given.pixels, pixels)


def test_pixels_are_not_copied():
    pixels = np.zeros((6, 8, 3), np.uint8)
    assert frame_of(pixels).pixels is pixels


@pytest.mark.parametrize(("width", "height"), [(5, 4), (4, 5), (1, 2), (7, 7)])
@pytest.mark.parametrize("pixel_format", ["nv12", "nv21", "i420"])
def test_odd_sizes_of_subsampled_formats_are_refused(pixel_format, width, height):
    with pytest.raises(DataError, match=rf"{pixel_format} picture has {width}×{height} pixels.* even width and height"):
        frame_of(bytes(width * height * 3 // 2), pixel_format, width=width, height=height)


@pytest.mark.parametrize("shape", [(9, 7), (10, 8), (0, 8), (9, 8, 1)])
def test_arrays_that_are_no_nv12_are_refused(shape):
    with pytest.raises(DataError, match="nv12 picture"):
        frame_of(np.zeros(shape, np.uint8), "nv12")


@pytest.mark.parametrize(
    ("pixels", "pixel_format", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), "rgb", r"float32\[4, 4, 3\]: expected uint8"),
        (np.zeros((4, 4, 4), np.uint8), "rgb", r"expected uint8 \(H, W, 3\)"),
        (np.zeros((4, 4), np.uint8), "yuyv", "expected one of rgb, bgr"),
        (b"12345", "rgb", "width and height in pixels are needed"),
    ],
)
def test_what_is_no_picture_is_refused(pixels, pixel_format, message):
    with pytest.raises(DataError, match=message):
        frame_of(pixels, pixel_format)


def test_wrong_number_of_bytes_is_told():
    with pytest.raises(DataError, match="has 47 bytes: expected 48"):
        frame_of(bytes(47), "rgb", width=4, height=4)


def test_unknown_video_standard_is_refused():
    with pytest.raises(DataError, match="expected one of bt601-narrow"):
        frame_of(np.zeros((6, 4), np.uint8), "nv12", standard="bt2020")
