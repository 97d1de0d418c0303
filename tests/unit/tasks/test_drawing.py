from __future__ import annotations

import numpy as np
import pytest

from sanderling.run.vision.frames import frame_of
from sanderling.tasks.vision.classification import Label
from sanderling.tasks.vision.detection import Found
from sanderling.tasks.vision.drawing import color_of, draw_found, draw_labels, draw_text, label_tile

GRAY = np.full((240, 320, 3), 90, np.uint8)


def found(box, index=0, score=0.9, label="cat", **more):
    return Found(index=index, label=label, score=score, box=box, **more)


def changed(frame):
    """Rows and columns of the pixels that a drawing on ``GRAY`` has changed."""
    return np.argwhere((frame.pixels != 90).any(axis=2))


def test_box_is_drawn_along_its_edges_and_its_inside_is_left_alone():
    frame = frame_of(GRAY.copy())
    drawn = draw_found(frame, [found((100, 80, 200, 180))])
    np.testing.assert_array_equal(frame.pixels, GRAY)
    assert drawn.format == "bgr"
    for row, column in [(80, 150), (179, 150), (130, 100), (130, 199)]:
        assert tuple(drawn.pixels[row, column]) == color_of(0)
    assert (drawn.pixels[85:175, 105:195] == 90).all()
    rows = changed(drawn)[:, 0]
    assert rows.min() < 80  # the label stands above
    assert rows.max() == 179


@pytest.mark.parametrize("box", [(-50, -20, 500, 300), (0, 0, 3, 3), (300, 220, 320, 240), (10, 0, 12, 240)])
def test_label_of_a_box_at_the_edge_stays_on_the_picture(box):
    drawn = draw_found(frame_of(GRAY.copy()), [found(box, label="a long name of a class")])
    assert drawn.pixels.shape == GRAY.shape
    tile = label_tile("a long name of a class 90 %", color_of(0), 11)
    windows = np.lib.stride_tricks.sliding_window_view(drawn.pixels, tile.shape)[:, :, 0]
    assert (windows == tile).all(axis=(2, 3, 4)).any()


def test_labels_of_two_objects_in_one_place_do_not_cover_each_other():
    drawn = draw_found(frame_of(GRAY.copy()), [found((80, 80, 200, 200)), found((80, 80, 200, 200), 1, 0.5, "dog")])
    for text, number in (("cat 90 %", 0), ("dog 50 %", 1)):
        tile = label_tile(text, color_of(number), 11)
        windows = np.lib.stride_tricks.sliding_window_view(drawn.pixels, tile.shape)[:, :, 0]
        assert (windows == tile).all(axis=(2, 3, 4)).any(), text


def test_letters_are_readable_on_every_colour():
    for number in range(20):
        tile = label_tile("class", color_of(number), 16).astype(float)
        brightness = tile @ [0.114, 0.587, 0.299]
        assert brightness.max() - brightness.min() > 90


def test_classes_and_followed_objects_have_colours_of_their_own():
    assert len({color_of(number) for number in range(40)}) == 40
    one, other = (draw_found(frame_of(GRAY.copy()), [found((90, 90, 190, 190), track=track)]) for track in (1, 2))
    assert tuple(one.pixels[90, 150]) == color_of(1) != tuple(other.pixels[90, 150])


def test_turned_box_is_drawn_by_its_corners():
    corners = ((160, 60), (220, 120), (160, 180), (100, 120))
    drawn = draw_found(frame_of(GRAY.copy()), [found((100, 60, 220, 180), corners=corners)])
    assert (drawn.pixels[120, 100] != 90).any()
    assert (drawn.pixels[150, 190] != 90).any()
    assert (drawn.pixels[100:140, 140:180] == 90).all()
    assert (drawn.pixels[178, 218] == 90).all()  # the corner of the box around it


@pytest.mark.parametrize("pixel_format", ["rgb", "bgr", "gray", "nv12"])
def test_frames_of_every_format_can_be_drawn_on(pixel_format):
    shape = {"gray": (240, 320), "nv12": (360, 320)}.get(pixel_format, (240, 320, 3))
    frame = frame_of(np.full(shape, 128, np.uint8), pixel_format)
    labels = [Label(index=0, label="espresso", probability=0.5)]
    for drawn in (draw_found(frame, [found((9, 60, 99, 99))]), draw_labels(frame, labels), draw_text(frame, "30 fps")):
        assert drawn.pixels.shape == (240, 320, 3)
        assert len(np.unique(drawn.pixels.reshape(-1, 3), axis=0)) > 2
    assert (frame.pixels == 128).all()


def test_long_name_leaves_its_score_and_half_of_the_picture_to_be_seen():
    drawn = [draw_labels(frame_of(GRAY.copy()), [Label(index=0, label="x" * 400, probability=p)]) for p in (0.5, 0.75)]
    assert max(changed(frame)[:, 1].max() for frame in drawn) < 0.7 * 320
    assert (drawn[0].pixels != drawn[1].pixels).any()
