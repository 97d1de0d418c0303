from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sanderling.core.errors import DataError, UnavailableError
from sanderling.core.progress import Recorder, Silent
from sanderling.run import pictures
from sanderling.run.vision.sources import is_source, open_source
from tests.videos import number_of, numbered, write_animation, write_video

pytest.importorskip("cv2")


@pytest.fixture
def told():
    return Recorder(Silent())


def picture(path, size=(6, 4), color=(250, 20, 10), **options):
    Image.new("RGB", size, color).save(path, **options)
    return path


def frames_of(target, progress=None):
    with open_source(target, progress=progress) as source:
        return list(source)


def kinds(told):
    return [event.kind for event in told.events]


def test_folder_gives_its_pictures_in_order_and_tells_the_rest(tmp_path, told):
    for name in ("b.png", "a.jpg", "sub/c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "cut.jpg").write_bytes(picture(tmp_path / "a.jpg").read_bytes()[:100])
    (tmp_path / "empty.png").write_bytes(b"")
    found = frames_of(tmp_path, told)
    assert [frame.name.rsplit("/", 1)[1] for frame in found] == ["a.jpg", "b.png", "c.webp"]
    assert kinds(told) == ["files-ignored", "picture-skipped", "picture-skipped"]
    assert "notes.txt" in told.events[0].reason


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"text"], ids=["empty", "start", "text"])
def test_picture_that_was_named_must_be_readable(tmp_path, data):
    (tmp_path / "bad.jpg").write_bytes(data)
    with pytest.raises(DataError, match=r"bad\.jpg is not a readable picture"):
        frames_of(tmp_path / "bad.jpg")


def test_truncated_jpeg_is_refused(tmp_path):
    whole = tmp_path / "a.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-600])
    with pytest.raises(DataError, match=r"cut\.jpg is not a readable picture"):
        frames_of(tmp_path / "cut.jpg")


def test_formats_of_pictures_become_frames(tmp_path):
    wide = (np.arange(24, dtype=np.uint16) * 2849).reshape(4, 6)
    Image.fromarray(wide).save(tmp_path / "deep.png")
    Image.new("RGB", (16, 16), (250, 20, 10)).convert("CMYK").save(tmp_path / "print.jpg", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(tmp_path / "turned.png", exif=exif)
    picture(tmp_path / "one.png", (1, 1))
    (deep,), (printed,) = frames_of(tmp_path / "deep.png"), frames_of(tmp_path / "print.jpg")
    np.testing.assert_array_equal(deep.pixels, wide >> 8)
    assert deep.format == "gray"
    assert np.abs(printed.pixels.astype(int) - (250, 20, 10)).max() < 12
    (turned,), (one,) = frames_of(tmp_path / "turned.png"), frames_of(tmp_path / "one.png")
    assert (turned.width, turned.height) == (4, 6)
    assert (one.width, one.height) == (1, 1)


def test_unicode_paths_are_read(tmp_path):
    folder = tmp_path / "Bilder ä 写真 🐦"
    folder.mkdir()
    picture(folder / "vögel.png")
    write_video(tmp_path / "out.avi", numbered(3)).rename(folder / "película.avi")
    assert len(frames_of(folder / "vögel.png")) == 1
    assert len(frames_of(folder / "película.avi")) == 3


def test_animation_gives_all_frames_with_their_times(tmp_path):
    found = frames_of(write_animation(tmp_path / "a.gif", numbered(4)))
    assert [number_of(frame.pixels) for frame in found] == [0, 1, 2, 3]
    assert [frame.timestamp_s for frame in found] == pytest.approx([0, 0.05, 0.10, 0.15])


def test_animation_has_a_rate_and_browsers_pace_where_it_says_none(tmp_path):
    with open_source(write_animation(tmp_path / "a.gif", numbered(2))) as source:
        assert source.fps == pytest.approx(20)
    pictures = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    pictures[0].save(tmp_path / "b.png", save_all=True, append_images=pictures[1:])
    with open_source(tmp_path / "b.png") as source:
        assert source.fps == pytest.approx(10)
        assert [frame.timestamp_s for frame in source] == pytest.approx([0, 0.1])


def test_gif_of_one_frame_is_a_picture(tmp_path):
    assert len(frames_of([picture(tmp_path / "a.gif"), picture(tmp_path / "b.png")])) == 2


def test_animation_that_ends_within_a_frame_gives_those_before(tmp_path, told):
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (48, 64, 3)).astype(np.uint8) for _ in range(4)]
    whole = write_animation(tmp_path / "a.gif", frames).read_bytes()
    (tmp_path / "cut.gif").write_bytes(whole[: int(len(whole) * 0.6)])
    found = frames_of(tmp_path / "cut.gif", told)
    assert 1 <= len(found) < 4
    assert set(kinds(told)) <= {"video-cut-short"}


def test_enormous_jpeg_is_read_smaller_and_says_so(tmp_path, told, monkeypatch):
    monkeypatch.setattr(pictures, "PIXEL_LIMIT", 40_000)
    monkeypatch.setattr(pictures, "_REDUCED_LIMIT", 10_000)
    path = picture(tmp_path / "big.jpg", (400, 400))
    (found,) = frames_of(path, told)
    assert (found.width, found.height, found.reduction) == (100, 100, 4)
    assert kinds(told) == ["picture-reduced"]


@pytest.mark.parametrize("options", [{"format": "png"}, {"format": "jpeg", "progressive": True}])
def test_other_enormous_pictures_are_refused_before_they_are_decoded(tmp_path, monkeypatch, options):
    monkeypatch.setattr(pictures, "PIXEL_LIMIT", 20_000)
    path = picture(tmp_path / "big.png", (400, 400), **options)
    with pytest.raises(DataError, match="400×400 pixels: at most 20,000"):
        frames_of(path)


def test_picture_of_400_million_pixels_takes_no_memory(tmp_path):
    path = tmp_path / "huge.png"
    Image.new("1", (20_000, 20_000)).save(path, compress_level=1)
    with pytest.raises(DataError, match=r"400000000 pixels.*at most 100,000,000 are read"):
        frames_of(path)


@pytest.mark.drill
def test_jpeg_of_400_million_pixels_is_read_within_bounds(tmp_path):
    path = tmp_path / "huge.jpg"
    Image.new("L", (20_000, 20_000), 90).save(path)
    (found,) = frames_of(path)
    assert (found.width, found.height, found.reduction) == (5_000, 5_000, 4)
    assert found.pixels.min() == found.pixels.max() == 90


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("nowhere.jpg", "does not exist"),
        ("nowhere.mp4", "does not exist"),
        ("camera:front", "expected camera:0"),
        ("ftp://host/a.mp4", "scheme 'ftp'"),
        (["camera:0", "a.jpg"], "must be the only source"),
        ([], "no source is given"),
    ],
)
def test_what_is_no_source_is_refused(targets, message):
    with pytest.raises(DataError, match=message):
        frames_of(targets)


def test_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match="holds no pictures"):
        frames_of(tmp_path)


def test_missing_camera_is_unavailable():
    with pytest.raises(UnavailableError, match="camera:99 cannot be opened"):
        frames_of("camera:99")


def test_cameras_and_urls_are_told_from_files():
    assert is_source("camera:0")
    assert is_source("rtsp://host/stream")
    assert not is_source("camera.mp4")
    assert not is_source("C:/videos/a.mp4")
