from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from sanderling.core.errors import OutputError
from sanderling.core.progress import Recorder, Silent
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.saving import check_target, saving
from sanderling.run.vision.sources import open_source
from tests.videos import number_of, numbered

pytest.importorskip("cv2")


@pytest.fixture
def told():
    return Recorder(Silent())


def write_all(target, frames, told, fps=20.0):
    with saving(target, fps=fps, progress=told) as write:
        for index, pixels in enumerate(frames):
            write(frame_of(pixels, "bgr", index=index))


@pytest.mark.parametrize("name", ["out.mp4", "out.avi", "out.mkv", "Ausgabe ü 写真.mp4"])
def test_video_holds_every_frame(tmp_path, told, name):
    write_all(tmp_path / name, numbered(10), told)
    with open_source(tmp_path / name) as source:
        assert [number_of(frame.pixels) for frame in source] == list(range(10))
        assert source.fps == pytest.approx(20)
    assert told.events == []


def test_folder_holds_a_picture_for_each_frame(tmp_path, told):
    write_all(tmp_path / "frames", numbered(3), told)
    files = sorted((tmp_path / "frames").iterdir())
    assert [file.name for file in files] == ["000000.jpg", "000001.jpg", "000002.jpg"]
    assert number_of(np.asarray(Image.open(files[2]))) == 2


def test_frames_of_other_sizes_are_fitted_and_told_once(tmp_path, told):
    frames = [*numbered(2), *numbered(2, width=30, height=40), np.full((49, 65, 3), 200, np.uint8)]
    write_all(tmp_path / "out.avi", frames, told)
    with open_source(tmp_path / "out.avi") as source:
        assert [(frame.width, frame.height) for frame in source] == [(64, 48)] * 5
    assert [event.kind for event in told.events] == ["frame-fitted"]


def test_odd_sizes_lose_a_row_and_a_column(tmp_path, told):
    write_all(tmp_path / "out.mp4", numbered(3, width=65, height=49), told)
    with open_source(tmp_path / "out.mp4") as source:
        assert [(frame.width, frame.height) for frame in source] == [(64, 48)] * 3


@pytest.mark.parametrize("name", ["out.mp4", "frames"])
def test_nothing_is_left_of_what_failed(tmp_path, told, name):
    def fail():
        with saving(tmp_path / name, fps=20, progress=told) as write:
            write(frame_of(numbered(1)[0], "bgr"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
@pytest.mark.parametrize("name", ["out.mp4", "out.avi", "out.mkv"])
def test_full_disk_keeps_the_video_that_was_there(tmp_path, told, name):
    import resource
    import signal

    (tmp_path / name).write_bytes(b"older")
    random = np.random.default_rng(0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it, but for what a test before may have changed
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
        with pytest.raises(OutputError, match="is there room on the disk"):
            write_all(tmp_path / name, random.integers(0, 256, (40, 96, 128, 3)).astype(np.uint8), told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(name, b"older")]


def test_video_without_frames_is_refused(tmp_path, told):
    with pytest.raises(OutputError, match="there was no frame"):
        write_all(tmp_path / "out.mp4", [], told)
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_to_are_refused_first(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.jpg").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "a.mp4").mkdir()
    for target, message in (
        (tmp_path / "full", "folder is not empty"),
        (tmp_path / "out.jpg", r"expected a video \(\.mp4"),
        (tmp_path / "file", "it is a file"),
        (tmp_path / "nowhere" / "out.mp4", "is no folder"),
        (tmp_path / "a.mp4", "it is a folder"),
    ):
        with pytest.raises(OutputError, match=message):
            check_target(target)


def test_what_is_read_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="it is what is read"):
        check_target(tmp_path / "walk.mp4", ["./walk.mp4"])


def test_video_without_its_dropped_frames_is_as_long_as_before(tmp_path, told):
    with saving(tmp_path / "out.avi", fps=20, progress=told) as write:
        for index in (3, 4, 8):
            write(frame_of(numbered(9)[index], "bgr", index=index))
    with open_source(tmp_path / "out.avi") as source:
        assert [number_of(frame.pixels) for frame in source] == [3, 4, 4, 4, 4, 8]


def test_video_of_a_camera_keeps_its_clock(tmp_path, told):
    with saving(tmp_path / "out.avi", fps=20, progress=told, live=True) as write:
        for index, at_s in enumerate((0, 0.04, 0.2, 0.21, 500, 500.1)):  # the camera was away
            write(frame_of(numbered(9)[index], "bgr", index=index, timestamp_s=7000 + at_s))
    with open_source(tmp_path / "out.avi") as source:
        assert [number_of(frame.pixels) for frame in source] == [0, 1, 1, 1, 2, 3, 4, 4, 5]


def test_pictures_of_long_names_have_shorter_ones(tmp_path, told):
    with saving(tmp_path / "frames", fps=None, progress=told) as write:
        write(frame_of(numbered(1)[0], "bgr", name="写" * 80 + ".jpg"))
    (file,) = (tmp_path / "frames").iterdir()
    assert file.name.startswith("000000-写写")
