from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sanderling.core.errors import DataError
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.pictures import fit_pixels, normalize, read_picture, read_pixels

GRAY = {"color": "gray", "mean": (0,), "std": (1,)}
RED, BLUE = (250, 20, 10), (10, 20, 250)


def exact(width: int, height: int, **changes: object) -> Preprocessing:
    """Takes pictures of exactly one size, so that every pixel can be compared."""
    return Preprocessing(**{"width": width, "height": height, "resize": "none"} | changes)


def noise(height: int, width: int, channels: int = 3, *, seed: int = 0) -> np.ndarray:
    """A picture whose every pixel differs from its neighbours, uint8 (H, W, C)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without edges, which JPEG keeps nearly as it is."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 / width, y * 255 / height, np.full((height, width), 90)], axis=-1).astype(np.uint8)


def stored(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def two_colors() -> Image.Image:
    """Left half red, right half blue, 6×4 pixels."""
    image = Image.new("RGB", (6, 4), RED)
    image.paste(BLUE, (3, 0, 6, 4))
    return image


def complaint(path: Path, preprocessing: Preprocessing | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read_pixels(path, preprocessing or exact(6, 4))
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".webp"])
def test_rgb_picture_is_read_pixel_by_pixel(tmp_path, suffix):
    options = {"lossless": True} if suffix == ".webp" else {}
    path = stored(Image.fromarray(noise(4, 6)), tmp_path / f"a{suffix}", **options)
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4)), noise(4, 6))


def test_gray_picture_fills_three_channels(tmp_path):
    path = stored(Image.fromarray(noise(4, 6)[:, :, 0]), tmp_path / "a.png")
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4)), np.repeat(noise(4, 6)[:, :, :1], 3, axis=2))


def test_gray_model_gets_one_channel(tmp_path):
    gray = noise(4, 6)[:, :, 0]
    path = stored(Image.fromarray(gray), tmp_path / "a.png")
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4, **GRAY)), gray[:, :, None])


def test_color_picture_becomes_luma_for_a_gray_model(tmp_path):
    path = stored(two_colors(), tmp_path / "a.png")
    luma = round(0.299 * RED[0] + 0.587 * RED[1] + 0.114 * RED[2])
    assert abs(int(read_pixels(path, exact(6, 4, **GRAY))[0, 0, 0]) - luma) <= 1


def test_alpha_is_dropped_and_colors_stay(tmp_path):
    rgba = np.concatenate([noise(4, 6), noise(4, 6, 1, seed=1)], axis=2)
    path = stored(Image.fromarray(rgba, "RGBA"), tmp_path / "a.png")
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4)), noise(4, 6))


def test_sixteen_bit_gray_is_scaled_and_not_clipped(tmp_path):
    wide = (np.arange(24, dtype=np.uint16) * 2849).reshape(4, 6)  # up to 65,527
    path = stored(Image.fromarray(wide), tmp_path / "a.png")
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4, **GRAY))[:, :, 0], wide >> 8)


def test_palette_picture_gets_its_colors(tmp_path):
    path = stored(two_colors().convert("P", palette=Image.Palette.ADAPTIVE, colors=2), tmp_path / "a.png")
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4)), np.asarray(two_colors()))


def test_palette_picture_with_transparency_gets_its_colors(tmp_path):
    palette = two_colors().convert("P", palette=Image.Palette.ADAPTIVE, colors=2)
    path = stored(palette, tmp_path / "a.png", transparency=0)
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4)), np.asarray(two_colors()))


def test_black_and_white_picture_is_read(tmp_path):
    bits = noise(4, 6)[:, :, 0] > 127
    path = stored(Image.fromarray(bits), tmp_path / "a.png")
    np.testing.assert_array_equal(read_pixels(path, exact(6, 4))[:, :, 0], bits * 255)


def test_jpeg_is_read(tmp_path):
    path = stored(Image.fromarray(smooth(32, 48)), tmp_path / "a.jpg", quality=95)
    got = read_pixels(path, exact(48, 32)).astype(int)
    assert np.abs(got - smooth(32, 48)).mean() < 3


def test_cmyk_jpeg_comes_out_in_the_right_colors(tmp_path):
    path = stored(Image.new("RGB", (16, 16), RED).convert("CMYK"), tmp_path / "a.jpg", quality=95)
    got = read_pixels(path, exact(16, 16)).astype(int)
    assert np.abs(got - RED).max() < 12


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: np.rot90(a, 2).transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a)),
    ],
)
def test_exif_orientation_is_applied(tmp_path, orientation, upright):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = stored(Image.fromarray(noise(4, 6)), tmp_path / "a.png", exif=exif)
    expected = upright(noise(4, 6))
    got = read_pixels(path, exact(expected.shape[1], expected.shape[0]))
    np.testing.assert_array_equal(got, expected)


def test_first_frame_of_an_animation_is_read(tmp_path):
    frames = [Image.new("RGB", (6, 4), RED), Image.new("RGB", (6, 4), BLUE)]
    path = stored(frames[0], tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=50, loop=0)
    assert np.abs(read_pixels(path, exact(6, 4)).astype(int) - RED).max() <= 2


def test_single_pixel_fills_the_input(tmp_path):
    path = stored(Image.new("RGB", (1, 1), RED), tmp_path / "a.png")
    pixels = read_pixels(path, Preprocessing(width=8, height=6, resize_to=10))
    assert pixels.shape == (6, 8, 3)
    assert (pixels == RED).all()


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (3, 1000)])
def test_long_thin_picture_is_cropped_in_its_centre(tmp_path, size):
    image = Image.new("RGB", size, RED)
    # A stripe across the middle, wide enough to fill what a square crop keeps.
    width, height = size
    image.paste(BLUE, (width // 2 - 20, 0, width // 2 + 20, height) if width > height else (0, 480, width, 520))
    if size == (1, 400):
        image.paste(BLUE, (0, 180, 1, 220))
    path = stored(image, tmp_path / "a.png")
    pixels = read_pixels(path, Preprocessing(width=8, height=8, resize_to=8))
    assert (pixels == BLUE).all()


def test_truncated_jpeg_is_refused(tmp_path):
    path = stored(Image.fromarray(noise(64, 64)), tmp_path / "cut.jpg")
    path.write_bytes(path.read_bytes()[:-600])
    message = complaint(path, exact(64, 64))
    assert "cut.jpg" in message
    assert "not a readable picture" in message


def test_truncated_png_is_refused(tmp_path):
    path = stored(Image.fromarray(noise(64, 64)), tmp_path / "cut.png")
    path.write_bytes(path.read_bytes()[:-600])
    assert "not a readable picture" in complaint(path, exact(64, 64))


@pytest.mark.parametrize("data", [b"", b"this is text, not a picture", b"\xff\xd8\xff"], ids=["empty", "text", "start"])
def test_file_that_is_no_picture_is_refused(tmp_path, data):
    (tmp_path / "bad.jpg").write_bytes(data)
    message = complaint(tmp_path / "bad.jpg")
    assert "bad.jpg" in message
    assert "not a readable picture" in message


def test_missing_picture_is_told(tmp_path):
    assert "does not exist" in complaint(tmp_path / "nowhere.jpg")


def test_folder_is_no_picture(tmp_path):
    assert "not a readable picture" in complaint(tmp_path)


def test_huge_picture_is_refused_before_it_is_decoded(tmp_path):
    path = stored(Image.new("1", (20_000, 6_000)), tmp_path / "huge.png")
    assert "20000×6000 pixels: at most 100,000,000" in complaint(path)


def test_wrong_size_is_told_when_nothing_may_be_resized(tmp_path):
    path = stored(two_colors(), tmp_path / "a.png")
    assert "has 6×4 pixels: expected 8×8" in complaint(path, exact(8, 8))


def reference_crop(image: Image.Image, preprocessing: Preprocessing) -> np.ndarray:
    """Resize the shorter side and crop the centre, step by step as torchvision does on Pillow images."""
    short = preprocessing.resize_to
    width, height = image.size
    longer = int(short * max(width, height) / min(width, height))
    scaled = (short, longer) if width <= height else (longer, short)
    whole = image.resize(scaled, Image.Resampling[preprocessing.interpolation.upper()])
    left = round((scaled[0] - preprocessing.width) / 2)
    top = round((scaled[1] - preprocessing.height) / 2)
    return np.asarray(whole.crop((left, top, left + preprocessing.width, top + preprocessing.height)))


@settings(deadline=None, max_examples=60)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    margin=st.integers(0, 20),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
)
def test_centre_crop_equals_torchvisions_steps(size, target, margin, interpolation):
    # Pillow resamples rows or columns first, whichever is cheaper, and rounds in between: hence two levels of
    # tolerance, and half the contrast, as bicubic overshoots and that is clipped in between as well.
    pixels = noise(size[1], size[0]) // 2 + 64
    preprocessing = Preprocessing(
        width=target[0], height=target[1], resize_to=max(target) + margin, interpolation=interpolation
    )
    expected = reference_crop(Image.fromarray(pixels), preprocessing).astype(int)
    assert np.abs(fit_pixels(pixels, preprocessing) - expected).max() <= 2


def test_stretch_ignores_the_aspect():
    got = fit_pixels(noise(10, 30), Preprocessing(width=8, height=8, resize="stretch"))
    expected = np.asarray(Image.fromarray(noise(10, 30)).resize((8, 8), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(got, expected)


def test_nearest_takes_pixels_as_they_are():
    got = fit_pixels(noise(4, 6), Preprocessing(width=12, height=8, resize="stretch", interpolation="nearest"))
    np.testing.assert_array_equal(got, noise(4, 6).repeat(2, axis=0).repeat(2, axis=1))


def test_bgr_turns_the_channels_around():
    got = fit_pixels(noise(4, 6), exact(6, 4, color="bgr"))
    np.testing.assert_array_equal(got, noise(4, 6)[:, :, ::-1])


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((4, 6, 3), np.float32), np.zeros((4, 6, 4), np.uint8), np.zeros((1, 4, 6, 3), np.uint8)],
    ids=["float", "four channels", "batch"],
)
def test_array_that_is_no_picture_is_refused_with_its_shape(pixels):
    with pytest.raises(DataError, match=r"expected uint8 \(H, W, 3\) or \(H, W\)"):
        fit_pixels(pixels, exact(6, 4))


def test_normalisation_uses_mean_and_std_of_each_channel():
    preprocessing = exact(6, 4, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    got = normalize(noise(4, 6)[None], preprocessing)
    assert (got.shape, got.dtype) == ((1, 3, 4, 6), np.float32)
    assert got.flags["C_CONTIGUOUS"]
    for channel in range(3):
        expected = (noise(4, 6)[:, :, channel] / 255 - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
        np.testing.assert_allclose(got[0, channel], expected, atol=1e-6)


def test_channels_last_layout_keeps_the_channels_last():
    first = normalize(noise(4, 6)[None], exact(6, 4))
    last = normalize(noise(4, 6)[None], exact(6, 4, layout="NHWC"))
    assert last.shape == (1, 4, 6, 3)
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), first)


def test_bgr_applies_the_mean_in_the_models_own_order(tmp_path):
    path = stored(Image.new("RGB", (6, 4), RED), tmp_path / "a.png")
    got = read_picture(path, exact(6, 4, color="bgr", scale=1, mean=(1, 2, 3), std=(1, 1, 2)))
    assert got.shape == (1, 3, 4, 6)
    np.testing.assert_allclose(got[0, :, 0, 0], [RED[2] - 1, RED[1] - 2, (RED[0] - 3) / 2])


def test_rows_of_a_batch_are_normalised_alike():
    pictures = np.stack([noise(4, 6, seed=seed) for seed in range(3)])
    together = normalize(pictures, exact(6, 4))
    for row in range(3):
        np.testing.assert_array_equal(together[row], normalize(pictures[row : row + 1], exact(6, 4))[0])
