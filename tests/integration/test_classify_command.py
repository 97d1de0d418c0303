"""`sanderling classify` on what users point it at."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

from sanderling.api import build
from sanderling.cli import main
from sanderling.run.vision import sources
from sanderling.run.vision.captures import LiveSource
from sanderling.run.vision.sources import open_source
from tests.models import conv_classifier, save
from tests.videos import numbered, write_animation, write_video

pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    source = save(conv_classifier(size=16), folder / "classifier.onnx")
    return build(source, folder / "small.sdl", preprocess="unit", precision="fp32", repeats=2).path


@pytest.fixture
def command(package, monkeypatch, capsys):
    """Runs the command; returns exit code, JSON and stderr."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["sanderling", "classify", str(package), *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, json.loads(out), err

    return run


def test_video_gives_labels_for_every_frame_and_a_video_with_them(command, tmp_path):
    video = write_video(tmp_path / "a.avi", numbered(12, width=160, height=120))
    code, told, err = command(video, "--save", tmp_path / "out.mp4", "--top", 2, "--show-fps")
    assert code == 0
    assert [result["frame"] for result in told["results"]] == list(range(12))
    assert all(len(result["labels"]) == 2 for result in told["results"])
    assert told["statistics"]["dropped"] == 0
    assert "12 frames" in err
    with open_source(tmp_path / "out.mp4") as source, open_source(video) as before:
        saved, given = list(source), list(before)
    assert len(saved) == 12
    assert abs(saved[5].pixels.astype(int) - given[5].pixels).max() > 60  # something is written on it


def test_pictures_and_folders_are_classified_and_bad_ones_told(command, tmp_path):
    folder = tmp_path / "Bilder ü"
    folder.mkdir()
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (30, 20), (200, 30, 40)).save(folder / name)
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("x")
    code, told, err = command(folder, folder / "a.png", "--save", tmp_path / "frames")
    assert code == 0
    assert len(told["results"]) == 3
    assert {event["kind"] for event in told["events"]} == {"picture-skipped", "files-ignored"}
    assert "empty.jpg" in err
    assert len(list((tmp_path / "frames").iterdir())) == 3


def test_animation_is_a_stream_and_the_limit_ends_it(command, tmp_path):
    code, told, _ = command(write_animation(tmp_path / "a.gif", numbered(6)), "--limit", 4)
    assert code == 0
    assert [result["time_s"] for result in told["results"]] == pytest.approx([0, 0.05, 0.1, 0.15])


def test_frames_of_an_animation_are_told_one_a_line(package, tmp_path, monkeypatch, capsys):
    animation = write_animation(tmp_path / "a.gif", numbered(2))
    monkeypatch.setattr("sys.argv", ["sanderling", "classify", str(package), str(animation), "--top", "1"])
    with pytest.raises(SystemExit):
        main()
    out, err = capsys.readouterr()
    assert [line[: line.index(":")] for line in out.splitlines()] == ["frame 0 (0.00 s)", "frame 1 (0.05 s)"]
    assert "2 frames" in err


def test_what_a_camera_showed_is_kept_when_it_stays_away(command, tmp_path, monkeypatch):
    captures = [write_video(tmp_path / "a.avi", numbered(9)), tmp_path / "nothing.avi"]

    def opened(_):
        import cv2

        return cv2.VideoCapture(str(captures.pop(0) if len(captures) > 1 else captures[0]))

    def camera(name, address, progress):
        source = LiveSource(name, address, progress, open_capture=opened, patience_s=0.02)
        source.live = True
        return source

    monkeypatch.setattr(sources, "LiveSource", camera)
    code, told, _ = command("camera:0", "--save", tmp_path / "out.avi", "--drop", "none")
    assert code == 3
    assert "did not come back" in told["error"]["message"]
    assert "until then is in" in told["error"]["message"]
    with open_source(tmp_path / "out.avi") as source:
        assert len(list(source)) == 9


def test_names_that_are_no_utf_8_are_told(command, tmp_path):
    if sys.platform != "linux":
        pytest.skip("names are text here")
    path = Path(os.fsdecode(os.fsencode(tmp_path / "a") + b"\xff.png"))
    Image.new("RGB", (30, 20)).save(path)
    code, told, _ = command(path)
    assert code == 0
    assert told["results"][0]["file"] == str(path)


def test_same_picture_gives_the_same_labels_as_run(command, package, tmp_path, monkeypatch, capsys):
    Image.new("RGB", (30, 20), (200, 30, 40)).save(tmp_path / "a.png")
    _, told, _ = command(tmp_path / "a.png")
    monkeypatch.setattr("sys.argv", ["sanderling", "run", str(package), str(tmp_path / "a.png"), "--json"])
    with pytest.raises(SystemExit):
        main()
    labels = json.loads(capsys.readouterr().out)["results"][0]["labels"]
    for one, other in zip(told["results"][0]["labels"], labels, strict=True):
        assert one["index"] == other["index"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.mp4"], 2, "does not exist"),
        ([""], 2, "no source is given"),
        (["a.png", "--top", "0"], 2, "Invalid value for '--top'"),
        (["a.avi", "--save", "a.avi"], 2, "it is what is read"),
        (["camera:99"], 3, "cannot be opened"),
        (["a.png", "--drop", "oldest"], 2, "expected newest or none"),
        (["a.png", "--save", "out.txt"], 2, "expected a video"),
    ],
)
def test_bad_use_ends_in_one_line(command, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (30, 20)).save("a.png")
    write_video(tmp_path / "a.avi", numbered(2))
    got, told, err = command(*arguments)
    assert got == code
    assert message in told["error"]["message"]
    assert err.count("sanderling: error:") == 1
    assert not (tmp_path / "out.txt").exists()
