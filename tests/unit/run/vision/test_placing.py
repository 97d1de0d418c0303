from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.model.preprocessing import Preprocessing
from sanderling.run.vision.placing import fit, place

WAYS = st.sampled_from([{"resize": "letterbox"}, {"resize": "stretch"}, {"resize": "shorter", "resize_to": 80}])


@settings(deadline=None)
@given(
    way=WAYS,
    size=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    anchor=st.sampled_from(["center", "top-left"]),
    box=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_boxes_come_back_to_where_they_were(way, size, anchor, box):
    width, height = size
    placement = place(Preprocessing(width=64, height=48, anchor=anchor, **way), width, height)
    left, right = sorted((box[0] * width, box[1] * width))
    top, bottom = sorted((box[2] * height, box[3] * height))
    boxes = np.array([[left, top, right, bottom]])
    back = placement.to_source(placement.to_model(boxes))
    np.testing.assert_allclose(back, boxes, atol=1e-3 * max(size))


def test_boxes_end_at_the_pictures_edges():
    placement = place(Preprocessing(width=64, height=64, resize="letterbox"), 128, 64)
    np.testing.assert_allclose(placement.to_source(np.array([[-5.0, 0.0, 70.0, 64.0]])), [[0, 0, 128, 64]])


@pytest.mark.parametrize(
    ("size", "anchor", "expected"),
    [
        ((1280, 720), "center", (0, 140, 640, 360)),
        ((720, 1280), "center", (140, 0, 360, 640)),
        ((1280, 720), "top-left", (0, 0, 640, 360)),
        ((500, 333), "center", (0, 107, 640, 426)),
        ((10_000, 1), "center", (0, 319, 640, 1)),
    ],
)
def test_letterbox_lies_where_ultralytics_has_it(size, anchor, expected):
    found = fit(Preprocessing(width=640, height=640, resize="letterbox", anchor=anchor), *size)
    assert (found.left, found.top, found.width, found.height) == expected
