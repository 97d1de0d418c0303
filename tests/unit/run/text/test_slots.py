"""Memory for sequences that lie side by side."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.text.slots import SLOTS, CacheTensor, Slots, neighbours

TENSORS = [CacheTensor("key", 2, 4, np.float32), CacheTensor("value", 2, 4, np.float16)]


def test_a_slot_that_was_freed_is_taken_again_and_empty():
    slots = Slots(TENSORS, 100)
    first, second = slots.take(), slots.take()
    for view in slots.views(first, 1):
        view[...] = 5

    slots.free(first)

    assert (first, second) == (0, 1)
    assert slots.take() == first
    assert all(not view[:, :, :100].any() for view in slots.views(first, 1))


def test_all_slots_can_be_taken_and_no_more():
    slots = Slots(TENSORS, 8)

    assert [slots.take() for _ in range(SLOTS + 1)] == [*range(SLOTS), None]
    assert not slots.is_empty


def test_neighbouring_slots_are_one_array_without_a_copy():
    slots = Slots(TENSORS, 8)
    slots.views(2, 1)[0][...] = 7

    wide = slots.views(1, 3)

    assert [view.shape[0] for view in wide] == [3, 3]
    assert wide[0].flags.c_contiguous
    assert (wide[0][1] == 7).all()
    assert not wide[0][0].any()


def test_slots_that_change_places_keep_their_tokens():
    slots = Slots(TENSORS, 16)
    one, other = slots.take(), slots.take()
    slots.views(one, 1)[1][0, :, :5] = 1
    slots.views(other, 1)[1][0, :, :9] = 2

    slots.swap(one, other, tokens=(5, 9))

    assert (slots.views(one, 1)[1][0, :, :9] == 2).all()
    assert (slots.views(other, 1)[1][0, :, :5] == 1).all()


def test_a_free_slot_that_a_sequence_moves_to_is_not_free_any_more():
    slots = Slots(TENSORS, 16)
    first = slots.take()

    slots.swap(first, 3, tokens=(4, 0))

    assert [slots.take() for _ in range(4)] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [([0, 1, 2], (0, [])), ([5], (5, [])), ([4, 1, 3], (1, [(4, 2)])), ([0, 31], (0, [(31, 1)]))],
)
def test_neighbours_need_as_few_exchanges_as_possible(slots, expected):
    assert neighbours(slots) == expected


@given(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=8, unique=True))
def test_after_the_exchanges_slots_are_neighbours(slots):
    first, exchanges = neighbours(slots)
    moved = dict(exchanges)

    assert sorted(moved.get(slot, slot) for slot in slots) == list(range(first, first + len(slots)))
