from __future__ import annotations

import gc
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.shared_memory import Block, Unshared, layout_for, offered

SIZES = st.dictionaries(st.text(max_size=3), st.integers(0, 1 << 20), max_size=4)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_two_processes_views_see_each_others_writes():
    with offered(4096) as (block, path):
        other = Block.attach(path, 4096)
    block.array({"dtype": "<f4", "shape": [4], "offset": 64})[:] = 5
    assert other.array({"dtype": "<f4", "shape": [2, 2], "offset": 64}).tolist() == [[5, 5], [5, 5]]


def test_block_of_another_size_than_was_told_is_not_attached():
    with offered(4096) as (_, path):
        for size in (4095, 8192, 0, -1):
            with pytest.raises(Unshared, match=f"{size} bytes was told, and has 4096"):
                Block.attach(path, size)


def test_path_that_is_gone_is_not_attached():
    with offered(4096) as (_, path):
        pass
    with pytest.raises(Unshared, match="cannot be attached"):
        Block.attach(path, 4096)


def test_no_side_can_change_the_size():
    with offered(4096) as (_, path):
        for size in (0, 8192):
            with pytest.raises(OSError, match="not permitted"):
                os.truncate(path, size)


@pytest.mark.parametrize(
    "told",
    [
        {"dtype": "<f4", "shape": [1024], "offset": 1},
        {"dtype": "<f4", "shape": [1025], "offset": 0},
        {"dtype": "<f4", "shape": [1], "offset": 4096},
        {"dtype": "<f4", "shape": [1], "offset": -4},
        {"dtype": "<f4", "shape": [1], "offset": 1 << 70},
        {"dtype": "<f4", "shape": [1], "offset": 0.0},
        {"dtype": "<f4", "shape": [-1, -1], "offset": 0},
        {"dtype": "<f4", "shape": [1 << 40, 1 << 40], "offset": 0},
        {"dtype": "O", "shape": [1], "offset": 0},
    ],
    ids=str,
)
def test_array_that_does_not_lie_in_the_block_is_refused(told):
    with offered(4096) as (block, _), pytest.raises(ValueError, match="does not lie in a block of 4096 bytes"):
        block.array(told)


def test_system_without_files_in_memory_shares_nothing(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(Unshared, match="makes no files in memory"), offered(4096):
        pass


def test_memory_that_cannot_be_had_shares_nothing():
    with pytest.raises(Unshared, match="cannot be shared"), offered(1 << 62):
        pass


def test_memory_goes_with_its_last_array():
    before = open_files()
    with offered(4096) as (block, path):
        other = Block.attach(path, 4096)
    array = other.array({"dtype": "<f4", "shape": [4], "offset": 0})
    del block, other
    gc.collect()
    array[:] = 3
    assert open_files() == before + 1
    del array
    gc.collect()
    assert open_files() == before


@given(SIZES, SIZES)
def test_places_are_aligned_and_apart(inputs, outputs):
    layout = layout_for(inputs, outputs)
    assert layout.holds(inputs, outputs)
    places = sorted([*layout.inputs.values(), *layout.outputs.values()], key=lambda place: place.offset)
    assert all(place.offset % 64 == 0 for place in places)
    assert all(one.offset + one.capacity_bytes <= other.offset for one, other in itertools.pairwise(places))
    assert all(place.offset + place.capacity_bytes <= layout.size_bytes for place in places)
    assert not layout.holds({}, {"unknown": 1})
