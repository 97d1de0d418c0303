from __future__ import annotations

import time

import numpy as np
import pytest

from sanderling.api import build
from sanderling.core.errors import DataError, OptionError
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.session import load
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.pipeline import Pipeline
from sanderling.run.vision.sources import open_source
from sanderling.run.vision.transforms import transform
from tests.models import conv_classifier, save, sum_and_difference
from tests.videos import numbered, write_video

pytest.importorskip("cv2")
UNIT = Preprocessing(width=16, height=16, resize="letterbox")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    source = save(conv_classifier(size=16), folder / "classifier.onnx")
    return build(source, folder / "small.sdl", preprocess=UNIT.model_dump_json(), precision="fp32", repeats=2).path


@pytest.fixture
def session(package):
    with load(package) as opened:
        yield opened


@pytest.fixture
def video(tmp_path):
    return write_video(tmp_path / "a.avi", numbered(25))


def scores(outputs, placement, frame):  # noqa: ARG001
    return outputs["scores"][0].copy()


def test_results_are_those_of_single_calls_in_the_order_of_frames(session, video):
    with open_source(video) as source:
        pipeline = Pipeline(source, session, UNIT, scores)
        outcomes = list(pipeline)
    assert [outcome.frame.index for outcome in outcomes] == list(range(25))
    for outcome in outcomes:
        tensor, placement = transform(outcome.frame, UNIT)
        np.testing.assert_allclose(outcome.value, session.run(tensor)["scores"][0], rtol=1e-5)
        assert outcome.placement == placement
    statistics = pipeline.statistics()
    assert (statistics.frames, statistics.results, statistics.dropped) == (25, 25, 0)
    assert statistics.stages_ms.keys() == {"capture", "preprocess", "infer", "read", "deliver"}
    assert statistics.latency_ms["p50"] > 0


def test_frames_are_written_where_the_engine_reads(session, video):
    with open_source(video) as source:
        pipeline = Pipeline(source, session, UNIT, scores)
        for _ in pipeline:
            pass
    assert pipeline.statistics().copied_bytes == 0


def test_drawn_frames_come_with_their_results(session, video):
    def draw(frame, value):
        return Frame(np.full_like(frame.pixels, value.argmax()), "bgr", frame.width, frame.height)

    with open_source(video) as source:
        outcomes = list(Pipeline(source, session, UNIT, scores, draw=draw))
    assert all((outcome.drawn.pixels == outcome.value.argmax()).all() for outcome in outcomes)


@pytest.mark.parametrize("drop", ["none", "newest"])
def test_limit_ends_a_stream_that_goes_on(session, drop):
    class Endless:
        name, live, fps, count, closed = "endless", True, None, None, False

        def __iter__(self):
            index = 0
            while not self.closed:
                yield Frame(np.zeros((8, 8, 3), np.uint8), "rgb", 8, 8, time.monotonic(), index)
                index += 1

        def close(self):
            self.closed = True

    source = Endless()
    assert len(list(Pipeline(source, session, UNIT, scores, drop=drop, limit=7))) == 7
    assert source.closed


def test_slow_reader_loses_frames_and_not_the_newest(session, video):
    def slow(outputs, placement, frame):  # noqa: ARG001
        time.sleep(0.15)
        return frame.index

    with open_source(video) as source:
        pipeline = Pipeline(source, session, UNIT, slow, drop="newest")
        seen = [outcome.value for outcome in pipeline]
    assert seen == sorted(set(seen))
    assert seen[-1] == 24
    statistics = pipeline.statistics()
    assert statistics.frames == 25
    assert statistics.dropped == 25 - len(seen) > 0


def test_failure_of_the_reader_is_told(session, video):
    def fail(outputs, placement, frame):  # noqa: ARG001
        raise DataError("unreadable outputs")

    with open_source(video) as source, pytest.raises(DataError, match="unreadable outputs"):
        list(Pipeline(source, session, UNIT, fail))


def test_models_with_several_inputs_are_refused(tmp_path):
    path = build(save(sum_and_difference(), tmp_path / "m.onnx"), tmp_path / "m.sdl", repeats=2, precision="fp32").path
    with load(path) as opened, pytest.raises(OptionError, match="one input: this one has 2"):
        Pipeline(None, opened, UNIT, scores)
