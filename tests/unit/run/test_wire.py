from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sanderling.run import wire


def through_a_pipe(header: dict, given_arrays: dict) -> tuple[dict, dict]:
    source, sink = os.pipe()
    writer = threading.Thread(target=wire.send, args=(sink, header, given_arrays))
    writer.start()
    try:
        return wire.receive(source, timeout_s=10)
    finally:
        writer.join()
        os.close(source)
        os.close(sink)


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_arrays_arrive_as_they_were_sent(array):
    header, got = through_a_pipe({"command": "run", "key": 3}, {"x": array})
    assert header == {"command": "run", "key": 3}
    assert got["x"].dtype == array.dtype
    np.testing.assert_array_equal(got["x"], array)


def test_arrays_larger_than_the_pipe_and_not_contiguous_arrive():
    array = np.arange(400_000, dtype=np.float32).reshape(200, 2000).T
    _, got = through_a_pipe({}, {"first": array, "second": array[:1]})
    np.testing.assert_array_equal(got["first"], array)
    np.testing.assert_array_equal(got["second"], array[:1])


def test_received_arrays_can_be_written_to():
    _, got = through_a_pipe({}, {"x": np.zeros(3, np.float32)})
    got["x"][0] = 1
    assert got["x"][0] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        (1 << 40).to_bytes(8, "little"),
        (4).to_bytes(8, "little") + b"nope",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}",
    ],
)
def test_what_is_no_message_counts_as_a_closed_pipe(data):
    source, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    with pytest.raises(wire.Closed):
        wire.receive(source)
    os.close(source)


@pytest.mark.parametrize("described", [{"dtype": "O", "shape": [1]}, {"dtype": "<f4", "shape": [1 << 40]}])
def test_objects_and_lying_sizes_are_refused_before_memory_is_taken(described):
    text = wire.json.dumps({"arrays": [{"name": "x", **described}]}).encode()
    source, sink = os.pipe()
    os.write(sink, len(text).to_bytes(8, "little") + text)
    with pytest.raises(wire.Closed):
        wire.receive(source, timeout_s=1)
    os.close(source)
    os.close(sink)


def test_silence_ends_at_the_timeout():
    source, sink = os.pipe()
    with pytest.raises(wire.TimedOut):
        wire.receive(source, timeout_s=0.05)
    os.close(source)
    os.close(sink)


def test_reader_that_takes_nothing_is_noticed_at_the_timeout():
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    with pytest.raises(wire.TimedOut):
        wire.send(sink, {}, {"x": np.zeros(1 << 20, np.uint8)}, timeout_s=0.05)
    os.close(source)
    os.close(sink)
