"""What bytes become, held against fixed-point arithmetic in NumPy and against Pillow, over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sanderling.model.colors import VIDEO_STANDARDS
from sanderling.run.vision.color import FACTOR_BITS, converted, factors_as_computed, whole, zeros_of
from sanderling.run.vision.frames import frame_of
from tests.frames import FRAME_OF_CHROMA, every_chroma

pytest.importorskip("cv2")
HALF = 1 << (FACTOR_BITS - 1)


def by_hand(standard, pixels):
    """NV12 to RGB in integers, halves up."""
    luma = pixels[:FRAME_OF_CHROMA].astype(np.int64)
    pairs = pixels[FRAME_OF_CHROMA:].reshape(256, 256, 2).repeat(2, 0).repeat(2, 1)
    zeros = zeros_of(standard)
    yuv = np.stack([np.maximum(luma, zeros[0]), pairs[..., 0], pairs[..., 1]]) - zeros[:, None, None]
    return ((np.tensordot(factors_as_computed(standard), yuv, 1) + HALF) >> FACTOR_BITS).clip(0, 255)


@pytest.mark.parametrize("standard", VIDEO_STANDARDS)
def test_luma_and_chroma_become_what_fixed_point_makes_of_them(standard):
    for start in range(0, 256, 16):
        pixels = every_chroma(range(start, start + 4), "nv12")
        frame = frame_of(pixels, "nv12", standard=standard)
        got = converted(frame, whole(frame), "rgb")
        np.testing.assert_array_equal(got.transpose(2, 0, 1), by_hand(standard, pixels))


@pytest.mark.parametrize("standard", VIDEO_STANDARDS)
def test_factors_are_those_of_the_standard_to_a_fifth_of_a_level(standard):
    low, zeros = zeros_of(standard)[0], zeros_of(standard)
    exact = np.array(VIDEO_STANDARDS[standard].rows)[:, :3]
    apart = np.abs(factors_as_computed(standard) / (1 << FACTOR_BITS) - exact)
    assert (apart @ (255 - low, 128, 128)).max() <= 0.2
    np.testing.assert_allclose(-exact @ zeros, np.array(VIDEO_STANDARDS[standard].rows)[:, 3])


@pytest.mark.parametrize("order", ["rgb", "bgr", "rgba"])
def test_every_colour_has_pillows_grey(order):
    red, green = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    channels = {"r": red, "g": green, "a": red}
    for blue in range(0, 256, 1 if order == "rgb" else 16):
        channels["b"] = np.full_like(red, blue)
        frame = frame_of(np.stack([channels[letter] for letter in order], axis=-1), order)
        rgb = np.stack([channels[letter] for letter in "rgb"], axis=-1)
        np.testing.assert_array_equal(converted(frame, whole(frame), "gray"), Image.fromarray(rgb).convert("L"))


def test_grey_is_written_to_what_is_given():
    frame = frame_of(np.full((6, 8, 3), 90, np.uint8))
    out = np.zeros((6, 8), np.uint8)
    assert converted(frame, whole(frame), "gray", out=out) is out
    assert (out == 90).all()
