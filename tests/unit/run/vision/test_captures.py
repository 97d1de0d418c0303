from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import numpy as np
import pytest

from sanderling.core.errors import DataError, UnavailableError
from sanderling.core.progress import Recorder, Silent
from sanderling.run.vision import captures
from sanderling.run.vision.captures import LiveSource, VideoSource
from sanderling.run.vision.sources import open_source
from tests.videos import number_of, numbered, write_video

cv2 = pytest.importorskip("cv2")


@pytest.fixture
def told():
    return Recorder(Silent())


class FakeCapture:
    """A camera that gives some frames and is gone then."""

    def __init__(self, frames, *, opens=True):
        self._frames, self._opens = list(frames), opens

    def isOpened(self):
        return self._opens

    def read(self):
        return (True, self._frames.pop(0)) if self._frames else (False, None)

    def get(self, which):
        return 20.0 if which == cv2.CAP_PROP_FPS else 0.0

    def release(self):
        self._frames = []


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(captures, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(captures, "LONGEST_WAIT_S", 0.004)


@pytest.mark.parametrize("suffix", [".avi", ".mp4"])
def test_video_gives_every_frame_with_its_time(tmp_path, told, suffix):
    source = VideoSource(write_video(tmp_path / f"a{suffix}", numbered(12)), told)
    with source:
        found = list(source)
    assert [number_of(frame.pixels) for frame in found] == list(range(12))
    assert [frame.index for frame in found] == list(range(12))
    assert found[10].timestamp_s == pytest.approx(0.5)
    assert (source.count, source.fps, found[0].format) == (12, 20.0, "bgr")
    assert told.events == []


def test_video_that_ends_within_a_frame_gives_whole_frames_and_says_so(tmp_path, told):
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (48, 64, 3)).astype(np.uint8) for _ in range(20)]
    data = write_video(tmp_path / "a.avi", frames).read_bytes()
    (tmp_path / "cut.avi").write_bytes(data[: len(data) * 6 // 10])
    with VideoSource(tmp_path / "cut.avi", told) as source:
        found = list(source)
    assert 5 < len(found) < 15
    assert all(frame.pixels.shape == (48, 64, 3) for frame in found)
    (event,) = told.events
    assert event.kind == "video-cut-short"
    assert f"20 frames, and {len(found)} could be read" in event.reason


class TimedCapture(FakeCapture):
    """Frames with the times that a file says they have, in ms."""

    def __init__(self, times_ms, count):
        super().__init__(numbered(len(times_ms)))
        self._times_ms, self._count, self._read = times_ms, count, -1

    def read(self):
        self._read += 1
        return super().read()

    def get(self, which):
        told = {cv2.CAP_PROP_FPS: 10.0, cv2.CAP_PROP_FRAME_COUNT: self._count}
        return told.get(which, float(self._times_ms[min(self._read, len(self._times_ms) - 1)]))


def timed(monkeypatch, told, path, times_ms, count):
    path.write_bytes(b"video")
    monkeypatch.setattr(captures, "_opened", lambda _: TimedCapture(times_ms, count))
    with VideoSource(path, told) as source:
        return [frame.timestamp_s for frame in source]


def test_video_of_a_varying_rate_gives_each_frame_its_own_time(tmp_path, told, monkeypatch):
    times = timed(monkeypatch, told, tmp_path / "phone.mp4", [40, 140, 540, 560, 0], 5)
    assert times == pytest.approx([0, 0.1, 0.5, 0.52, 0.52])  # the last one's is not told
    assert told.events == []


def test_video_is_not_let_go_of_while_a_thread_reads_it(tmp_path, told, monkeypatch):
    reading, go_on, released = threading.Event(), threading.Event(), []

    class Slow(FakeCapture):
        def read(self):
            reading.set()
            go_on.wait(10)
            return super().read()

        def release(self):
            released.append(go_on.is_set())

    (tmp_path / "a.mp4").write_bytes(b"video")
    monkeypatch.setattr(captures, "_opened", lambda _: Slow(numbered(3)))
    with VideoSource(tmp_path / "a.mp4", told) as source:
        thread = threading.Thread(target=lambda: list(source))
        thread.start()
        assert reading.wait(10)
        threading.Timer(0.05, go_on.set).start()
    thread.join(10)
    assert released == [True]


def test_video_goes_on_after_frames_that_are_ruined(tmp_path, told, monkeypatch):
    class Ruined(FakeCapture):
        def read(self):
            good, pixels = super().read()
            return (good, pixels) if good and not 4 <= number_of(pixels) < 24 else (False, None)

        def get(self, which):
            return {cv2.CAP_PROP_FPS: 20.0, cv2.CAP_PROP_FRAME_COUNT: 28.0}.get(which, 0.0)

    (tmp_path / "a.mp4").write_bytes(b"video")
    monkeypatch.setattr(captures, "_opened", lambda _: Ruined(numbered(28)))
    with VideoSource(tmp_path / "a.mp4", told) as source:
        found = list(source)
    assert [frame.index for frame in found] == [0, 1, 2, 3, 24, 25, 26, 27]
    assert found[-1].timestamp_s == pytest.approx(1.35)
    assert [event.reason for event in told.events] == ["it says that it has 28 frames, and 8 could be read"]


@pytest.mark.parametrize(("times_ms", "count", "cut"), [([0, 200, 400], 5, False), ([0, 100, 200], 30, True)])
def test_video_that_only_says_how_long_it_is_counts_as_cut_when_it_ends_early(
    tmp_path, told, monkeypatch, times_ms, count, cut
):
    timed(monkeypatch, told, tmp_path / "a.mkv", times_ms, count)
    assert [event.kind for event in told.events] == ["video-cut-short"] * cut
    assert all("lasts 3.0 s, and its last frame is at 0.2 s" in event.reason for event in told.events)


@pytest.mark.parametrize(("data", "message"), [(b"", "is empty"), (b"no video" * 50, "is no readable video")])
def test_what_is_no_video_is_refused(tmp_path, told, data, message):
    (tmp_path / "a.mp4").write_bytes(data)
    with pytest.raises(DataError, match=message):
        VideoSource(tmp_path / "a.mp4", told)


def test_camera_that_disappears_is_found_again(told, quick):  # noqa: ARG001
    steps = [
        FakeCapture(numbered(2)),
        FakeCapture([], opens=False),
        FakeCapture([], opens=False),
        FakeCapture(numbered(3)),
    ]
    source = LiveSource("camera:0", 0, told, open_capture=lambda _: steps.pop(0), patience_s=30)
    taken = []
    with source:
        for frame in source:
            taken.append(frame)
            if len(taken) == 5:
                break
    assert [frame.index for frame in taken] == [0, 1, 2, 3, 4]
    assert [event.kind for event in told.events] == ["camera-lost", "camera-found"]
    assert "3 tries" in told.events[1].reason
    assert source.losses == 1
    assert all(before.timestamp_s <= after.timestamp_s for before, after in pairwise(taken))


def test_waits_between_tries_grow_to_a_limit(told, monkeypatch):
    waits = []
    steps = [FakeCapture([])] + [FakeCapture([], opens=False)] * 8
    source = LiveSource("camera:0", 0, told, open_capture=lambda _: steps.pop(0) if steps else None, patience_s=1e6)

    def wait(seconds):
        waits.append(seconds)
        return len(waits) == 8

    monkeypatch.setattr(source._ended, "wait", wait)
    assert list(source) == []
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


def test_camera_that_stays_away_is_given_up(told, quick):  # noqa: ARG001
    steps = [FakeCapture(numbered(1))]
    source = LiveSource(
        "camera:0",
        0,
        told,
        open_capture=lambda _: steps.pop(0) if steps else FakeCapture([], opens=False),
        patience_s=0.02,
    )
    with source, pytest.raises(UnavailableError, match=r"camera:0 disappeared and did not come back within 0\.02 s"):
        list(source)


def test_video_behind_a_url_ends(tmp_path, told):
    write_video(tmp_path / "a.mp4", numbered(8))
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with open_source(f"http://127.0.0.1:{server.server_port}/a.mp4", progress=told) as source:
            found = list(source)
            assert (source.live, source.count) == (False, 8)
        server.shutdown()
    assert [number_of(frame.pixels) for frame in found] == list(range(8))
    assert told.events == []


def test_camera_that_was_closed_is_not_opened_again(told, monkeypatch):
    opened = []
    source = LiveSource(
        "camera:0", 0, told, open_capture=lambda _: opened.append(FakeCapture([], opens=not opened)) or opened[-1]
    )
    monkeypatch.setattr(source._ended, "wait", lambda _: source.close())  # just after the wait is over
    assert list(source) == []
    assert len(opened) == 1


def test_closing_ends_a_search_at_once(told):
    steps = [FakeCapture([])]
    source = LiveSource(
        "camera:0", 0, told, open_capture=lambda _: steps.pop(0) if steps else FakeCapture([], opens=False)
    )
    thread = threading.Thread(target=lambda: list(source))
    thread.start()
    source.close()
    thread.join(5)
    assert not thread.is_alive()
