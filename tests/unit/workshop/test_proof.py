from __future__ import annotations

import pytest

from sanderling.core.progress import Recorder, Silent
from sanderling.model.manifest import Accuracy
from sanderling.workshop.proof import warn_of_nothing_to_lose


def events_of(metric: str, value: float) -> list[str]:
    recorder = Recorder(Silent())
    accuracy = Accuracy(metric=metric, value=value, drop=0, drop_upper=0, samples=10, sqnr_db={}, cosine={})
    warn_of_nothing_to_lose(accuracy, recorder)
    return [str(event) for event in recorder.events]


def test_detector_that_finds_nothing_is_told_to_keep_every_budget():
    (told,) = events_of("map", 0.007)
    assert "nothing-to-lose: accuracy (FP32's mAP50-95 is 0.007 %, so that no variant can lose more" in told
    assert "pixels of the model's input" in told


@pytest.mark.parametrize(("metric", "value"), [("map", 40.0), ("cosine", 1.0), ("agreement", 3.0)])
def test_other_references_are_not_warned_of(metric, value):
    assert events_of(metric, value) == []
