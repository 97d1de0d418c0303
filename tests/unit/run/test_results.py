from __future__ import annotations

import copy

import numpy as np

from sanderling.run.results import Outputs


def test_outputs_are_a_plain_mapping_that_says_how_they_came_about():
    scores = np.zeros((2, 3), np.float32)
    outputs = Outputs({"scores": scores}, lane="onnxruntime/cpu/int8", variant="int8", batch_rows=2)
    assert dict(outputs) == {"scores": scores}
    assert outputs["scores"] is scores
    assert (outputs.lane, outputs.variant, outputs.batch_rows) == ("onnxruntime/cpu/int8", "int8", 2)
    assert not outputs.stale
    assert not outputs.tripped


def test_copies_keep_what_is_known_about_outputs():
    outputs = Outputs({"scores": np.ones(2)}, lane="a", variant="b", batch_rows=3, stale=True, tripped="NaN")
    for made in (copy.copy(outputs), copy.deepcopy(outputs)):
        np.testing.assert_array_equal(made["scores"], outputs["scores"])
        assert (made.lane, made.variant, made.batch_rows, made.stale, made.tripped) == ("a", "b", 3, True, "NaN")
