"""JSON of many megabytes is read as Python's own reader does, and leaves others time to run."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.serve import long_json
from sanderling.serve.long_json import read_long, write_numbers

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=40
)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(long_json, "_SLICE", 8)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (" , ", " : ")]))
def test_it_gives_what_pythons_reader_gives(value, indent, separators):
    text = json.dumps(value, indent=indent, separators=separators)
    assert read_long(text) == json.loads(text)


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet='[]{},:"1. e-\\n', max_size=40))
def test_it_refuses_what_pythons_reader_refuses(text):
    def outcome(read):
        try:
            return read(text)
        except ValueError:
            return "no JSON"

    assert outcome(read_long) == outcome(json.loads)


@pytest.mark.parametrize(
    "text", ["[1,1,1,1,1,1,]", "[,1,1,1,1,1,1]", "[1,1,1,,1,1,1]", "[1 1,1,1,1,1,1]", "[1,1,1,1,1,1", "["]
)
def test_a_list_with_a_hole_is_no_json(text):
    with pytest.raises(json.JSONDecodeError):
        read_long(text)


def test_a_fault_is_told_with_its_place():
    with pytest.raises(json.JSONDecodeError, match="char 15"):
        read_long("[1,1,1,1,1,1,1,x,1,1,1]")


def test_very_many_lists_are_refused_before_they_take_memory():
    with pytest.raises(ValueError, match="at most 1048576"):
        read_long("[" + "[]," * 2**20 + "1]")


def test_numbers_are_written_as_python_writes_them():
    array = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    assert json.loads(b"[" + b"".join(write_numbers(array)) + b"]") == array.reshape(-1).tolist()
    assert b"".join(write_numbers(np.empty((0, 3), np.int8))) == b""


def test_others_run_while_a_long_text_is_read(monkeypatch):
    monkeypatch.setattr(long_json, "_SLICE", 64 * 1024)
    text = json.dumps(np.random.default_rng(0).standard_normal(500_000).tolist())
    ended, rounds = threading.Event(), 0
    thread = threading.Thread(target=lambda: (read_long(text), ended.set()))
    thread.start()
    while not ended.is_set():
        rounds += 1
        time.sleep(0.001)
    thread.join()
    assert rounds > 5
