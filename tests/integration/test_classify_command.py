"""`sanderling classify` on what users point it at."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from sanderling.api import build
from sanderling.cli import main
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
        (["camera:99"], 3, "cannot be opened"),
        (["a.png", "--drop", "oldest"], 2, "expected newest or none"),
        (["a.png", "--save", "out.txt"], 2, "expected a video"),
    ],
)
def test_bad_use_ends_in_one_line(command, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (30, 20)).save("a.png")
    got, told, err = command(*arguments)
    assert got == code
    assert message in told["error"]["message"]
    assert err.count("sanderling: error:") == 1
    assert not (tmp_path / "out.txt").exists()
