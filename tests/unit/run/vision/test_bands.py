"""Resampling by blocks, held against the weights as one matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.model.preprocessing import Preprocessing
from sanderling.model.resampling import taps_of
from sanderling.run.vision import bands
from sanderling.run.vision.bands import axis_of_columns, axis_of_rows, resample
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.transforms import Transform, transform

pytest.importorskip("cv2")
SIZES = st.integers(1, 300)


@settings(deadline=None, max_examples=150)
@given(
    height=SIZES,
    width=SIZES,
    target=st.tuples(SIZES, SIZES),
    how=st.sampled_from(["bilinear", "bicubic", "area"]),
    antialias=st.booleans(),
    columns_first=st.booleans(),
    row_bytes=st.sampled_from([1, 10_000, 1_000_000]),
)
def test_blocks_are_the_matrix_of_the_weights(height, width, target, how, antialias, columns_first, row_bytes):
    rows = taps_of(how, height, 0, height, target[0], antialias=antialias)
    columns = taps_of(how, width, 0, width, target[1], antialias=antialias)
    planes = np.random.default_rng(0).integers(0, 256, (2, height, width)).astype(np.uint8)
    wanted = rows.matrix(height) @ planes @ columns.matrix(width).T
    axes = axis_of_rows(rows, height, row_bytes), axis_of_columns(columns, width)
    got = resample(planes, *axes, columns_first=columns_first, rounded=False)
    np.testing.assert_allclose(got, wanted, atol=2e-3)


@pytest.mark.parametrize("columns_first", [True, False])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (3, 900), (200, 331), (130, 70)])
def test_fixed_point_has_no_rounding_errors(height, width, columns_first):
    rows, columns = (taps_of("bicubic", size, 0, size, 37).in_fixed_point() for size in (height, width))
    planes = np.random.default_rng(0).integers(0, 256, (3, height, width)).astype(np.uint8)
    axes = axis_of_rows(rows, height, 10_000, dtype=np.float64), axis_of_columns(columns, width, np.float64)
    got = resample(planes, *axes, columns_first=columns_first, rounded=True)
    first, last = [1, columns.matrix(width).T], [rows.matrix(height), 1]
    if not columns_first:
        first, last = last, first
    between = np.clip(np.floor(_product(first, planes) + 0.5), 0, 255)
    np.testing.assert_array_equal(got, _product(last, between))


def _product(factors, planes):
    return np.array([np.dot(np.dot(factors[0], plane), factors[1]) for plane in planes.astype(np.float64)])


def test_equal_steps_of_windows_make_one_run():
    for source, target in ((1280, 640), (1920, 640), (720, 320)):
        assert len(axis_of_columns(taps_of("bilinear", source, 0, source, target), source).runs) == 1


@pytest.mark.parametrize("run_bytes", [1, 50_000, 10**9])
@pytest.mark.parametrize("size", [(96, 130), (150, 64), (20, 30)])
def test_strips_of_any_height_make_the_same_tensor(run_bytes, size, monkeypatch):
    preprocessing = Preprocessing(width=40, height=48, resize="letterbox", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels = np.random.default_rng(1).integers(0, 256, (size[0] * 3 // 2, size[1])).astype(np.uint8)
    wanted, _ = transform(frame_of(pixels, "nv12"), preprocessing)
    monkeypatch.setattr(bands, "_RUN_BYTES", run_bytes)
    made = Transform(preprocessing)
    for _ in range(2):
        got, _ = made(frame_of(pixels, "nv12"))
        np.testing.assert_allclose(got, wanted, atol=1e-5)
