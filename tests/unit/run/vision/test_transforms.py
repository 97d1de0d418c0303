"""A frame's tensor, held against Pillow and against the equations of video standards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.core.errors import DataError, TensorError
from sanderling.model.colors import VIDEO_STANDARDS
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.pictures import fit_pixels, normalize
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.placing import fit
from sanderling.run.vision.transforms import Transform, transform

cv2 = pytest.importorskip("cv2")
GRAY = {"color": "gray", "mean": (0.0,), "std": (1.0,)}
RESIZES = ({"resize": "letterbox"}, {"resize": "stretch"}, {"resize": "shorter", "resize_to": 50})
LEVEL = 1.001  # of 255, with the last bit of float32
PILLOWS = {"nearest": 0.0, "bicubic": 0.0, "bilinear": LEVEL}  # it rounds after each pass; frames' bilinear does not


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def levels(**changes):
    """Preprocessing whose tensor has levels of 0 to 255."""
    return Preprocessing(**{"width": 40, "height": 48, "resize": "stretch", "scale": 1.0} | changes)


@settings(deadline=None, max_examples=150)
@given(
    size=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    way=st.sampled_from(RESIZES),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic"]),
    color=st.sampled_from([{"color": "rgb"}, {"color": "bgr"}, GRAY]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_frame_is_resized_as_pillow_does_to_one_level(size, way, interpolation, color, layout):
    preprocessing = levels(interpolation=interpolation, layout=layout, **way, **color)
    pixels = noise(size[1], size[0], 3)
    wanted = normalize(fit_pixels(pixels, preprocessing)[None], preprocessing)
    got, _ = transform(frame_of(pixels), preprocessing)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= PILLOWS[interpolation]


@pytest.mark.parametrize("interpolation", PILLOWS)
@pytest.mark.parametrize("source", [(34, 214), (24, 144), (268, 96), (20, 20)])
def test_slopes_and_blocks_full_of_halves_are_rounded_as_pillow_does(source, interpolation):
    preprocessing = levels(interpolation=interpolation)
    height, width = source
    slope = (np.add.outer(np.arange(height), 3 * np.arange(width)) % 256).astype(np.uint8)
    blocks = noise(height // 5 + 1, width // 5 + 1).repeat(5, 0).repeat(5, 1)[:height, :width]
    pixels = np.stack([slope, blocks, blocks // 128 * 55], axis=-1)
    wanted = normalize(fit_pixels(pixels, preprocessing)[None], preprocessing)
    assert np.abs(transform(frame_of(pixels), preprocessing)[0] - wanted).max() <= PILLOWS[interpolation]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
@pytest.mark.parametrize("way", RESIZES)
def test_pixels_in_memory_and_frames_agree_without_antialiasing(interpolation, way):
    preprocessing = levels(interpolation=interpolation, antialias=False, **way)
    for seed, size in enumerate(((90, 120), (33, 47), (49, 200))):
        pixels = noise(*size, 3, seed=seed)
        got, _ = transform(frame_of(pixels), preprocessing)
        wanted = normalize(fit_pixels(pixels, preprocessing)[None], preprocessing)
        assert np.abs(got - wanted).max() <= LEVEL


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_without_antialiasing_it_is_pytorchs_interpolate(interpolation):
    torch = pytest.importorskip("torch")
    pixels = noise(61, 83, 3)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None], (48, 40), mode=interpolation
    ).clamp(0, 255)
    got, _ = transform(frame_of(pixels), levels(interpolation=interpolation, antialias=False))
    assert np.abs(got - wanted.numpy()).max() <= LEVEL


def test_antialiasing_is_pytorchs():
    torch = pytest.importorskip("torch")
    pixels = noise(161, 183, 3)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None], (48, 40), mode="bilinear", antialias=True
    )
    got, _ = transform(frame_of(pixels), levels())
    assert np.abs(got - wanted.numpy()).max() <= 0.01


def test_area_is_the_mean_of_what_a_pixel_covers():
    pixels = noise(96, 80, 3)
    wanted = pixels.reshape(48, 2, 40, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1)[None]
    got, _ = transform(frame_of(pixels), levels(interpolation="area"))
    assert np.abs(got - wanted).max() <= 0.51


def exact_rgb(standard, luma, u, v):
    """By the standard's equations, in float64; luma below black is black."""
    rows = np.array(VIDEO_STANDARDS[standard].rows)
    luma = np.maximum(luma, 16 if VIDEO_STANDARDS[standard].narrow else 0)
    yuv = np.stack([luma, u.repeat(2, 0).repeat(2, 1), v.repeat(2, 0).repeat(2, 1), np.ones_like(luma)]).astype(float)
    return np.tensordot(rows, yuv, 1).clip(0, 255)


@pytest.mark.parametrize("standard", VIDEO_STANDARDS)
@pytest.mark.parametrize("pixel_format", ["nv12", "nv21", "i420"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_camera_frames_agree_with_the_standard_to_one_level(standard, pixel_format, color):
    luma, u, v = noise(48, 40), noise(24, 20, seed=1), noise(24, 20, seed=2)
    if pixel_format == "i420":
        pixels = np.concatenate([luma.ravel(), u.ravel(), v.ravel()]).reshape(72, 40)
    else:
        pairs = np.stack([u, v] if pixel_format == "nv12" else [v, u], axis=-1)
        pixels = np.concatenate([luma, pairs.reshape(24, 40)])
    got, _ = transform(frame_of(pixels, pixel_format, standard=standard), levels(resize="none", color=color))
    wanted = exact_rgb(standard, luma, u, v)
    assert np.abs(got[0] - (wanted if color == "rgb" else wanted[::-1])).max() <= LEVEL


@pytest.mark.parametrize("way", RESIZES)
def test_camera_frames_are_converted_first_and_resized_then(way):
    pixels = noise(90, 64)
    rgb = cv2.cvtColor(pixels, cv2.COLOR_YUV2RGB_NV12)
    got, placement = transform(frame_of(pixels, "nv12"), levels(**way))
    wanted, same = transform(frame_of(rgb), levels(**way))
    np.testing.assert_allclose(got, wanted, atol=1e-3)
    assert placement == same


@pytest.mark.parametrize("standard", ["bt601-narrow", "bt709-narrow"])
@pytest.mark.parametrize(("interpolation", "method"), [("bilinear", cv2.INTER_LINEAR), ("bicubic", cv2.INTER_CUBIC)])
@pytest.mark.parametrize("size", [(90, 160), (160, 90), (72, 100)])
def test_of_a_crop_only_what_counts_is_converted(size, interpolation, method, standard):
    preprocessing = levels(resize="shorter", resize_to=56, interpolation=interpolation, antialias=False)
    pixels = noise(size[0] * 3 // 2, size[1])
    made = Transform(preprocessing)
    whole, _ = transform(
        frame_of(pixels, "nv12", standard=standard), levels(resize="none", width=size[1], height=size[0])
    )
    found = fit(preprocessing, size[1], size[0])
    resized = cv2.resize(whole[0].transpose(1, 2, 0).astype(np.uint8), found.scaled, interpolation=method)
    left, top = found.cut
    for _ in range(2):
        got, _ = made(frame_of(pixels, "nv12", standard=standard))
        np.testing.assert_array_equal(got[0].transpose(1, 2, 0), resized[top : top + 48, left : left + 40])


def test_rows_that_are_further_apart_than_long_are_read():
    padded = noise(72, 64)
    got, _ = transform(frame_of(padded[:, :40], "nv12"), levels(resize="none"))
    wanted, _ = transform(frame_of(padded[:, :40].copy(), "nv12"), levels(resize="none"))
    np.testing.assert_array_equal(got, wanted)


def test_orders_of_bytes_do_not_matter():
    rgb = noise(70, 90, 3)
    rgba = np.concatenate([rgb, noise(70, 90, 1, seed=1)], axis=2)
    wanted, _ = transform(frame_of(rgb), levels())
    for pixels, pixel_format in ((rgb[:, :, ::-1].copy(), "bgr"), (rgba, "rgba")):
        got, _ = transform(frame_of(pixels, pixel_format), levels())
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("way", RESIZES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_grey_frame_fills_all_channels(way, interpolation):
    preprocessing = levels(interpolation=interpolation, mean=(1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0), **way)
    gray = noise(70, 90)
    got, _ = transform(frame_of(gray, "gray"), preprocessing)
    wanted, _ = transform(frame_of(np.repeat(gray[:, :, None], 3, axis=2)), preprocessing)
    np.testing.assert_allclose(got, wanted, atol=1e-3)


def test_result_is_written_to_the_buffer_that_is_given():
    preprocessing = Preprocessing(width=32, height=32, resize_to=36, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    batch = np.full((3, 3, 32, 32), np.nan, np.float32)
    made, _ = transform(frame_of(noise(50, 60, 3)), preprocessing, out=batch[1:2])
    assert np.shares_memory(made, batch)
    assert np.isfinite(batch[1]).all()
    assert np.isnan(batch[[0, 2]]).all()
    np.testing.assert_array_equal(batch[1:2], transform(frame_of(noise(50, 60, 3)), preprocessing)[0])


def test_frames_of_changing_sizes_do_not_disturb_each_other():
    made = Transform(levels())
    sizes = ((50, 60), (97, 31), (50, 60), (48, 40))
    for seed, size in enumerate(sizes):
        pixels = noise(*size, 3, seed=seed)
        np.testing.assert_array_equal(made(frame_of(pixels))[0], transform(frame_of(pixels), levels())[0])


def test_padding_is_normalised_like_pixels():
    preprocessing = Preprocessing(
        width=32, height=32, resize="letterbox", pad=200, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    got, _ = transform(frame_of(noise(10, 40, 3)), preprocessing)
    wanted = (200 / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    np.testing.assert_allclose(got[0, :, 0, 5], wanted, atol=1e-5)
    np.testing.assert_allclose(got[0, :, -1, 5], wanted, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 900)])
@pytest.mark.parametrize("way", RESIZES)
def test_tiny_and_thin_frames_are_read(size, way):
    got, _ = transform(frame_of(np.full((*size, 3), 77, np.uint8)), levels(pad=77, **way))
    np.testing.assert_allclose(got, 77, atol=1e-3)


@pytest.mark.parametrize(
    "out", [np.zeros((1, 3, 48, 40)), np.zeros((1, 3, 40, 48), np.float32), np.zeros((3, 48, 40), np.float32)]
)
def test_buffer_of_another_kind_is_refused(out):
    with pytest.raises(TensorError, match=r"expected float32\[1, 3, 48, 40\]"):
        transform(frame_of(noise(9, 9, 3)), levels(), out=out)


def test_wrong_size_is_told_where_nothing_may_be_resized():
    with pytest.raises(DataError, match="9×8 pixels: expected 40×48"):
        transform(frame_of(noise(8, 9, 3)), levels(resize="none"))
