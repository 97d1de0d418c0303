from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.workshop.search import MOST_ROUGH, MOST_TESTS, last_that_holds, order_of_tests, rough_boundary

LENGTHS = st.integers(1, 400)


class Counted:
    """A monotone predicate that counts its calls."""

    def __init__(self, first_good: int) -> None:
        self.first_good, self.asked = first_good, []

    def __call__(self, index: int) -> bool:
        self.asked.append(index)
        return index >= self.first_good


@given(LENGTHS, st.data())
def test_boundary_is_found_with_a_call_for_each_halving(length, data):
    good = Counted(data.draw(st.integers(0, length - 1)))
    assert rough_boundary(length, good, most=20) == good.first_good
    assert len(good.asked) <= math.ceil(math.log2(length))


@given(LENGTHS, st.data())
def test_boundary_after_too_few_calls_is_on_the_safe_side(length, data):
    good = Counted(data.draw(st.integers(0, length - 1)))
    boundary = rough_boundary(length, good)
    assert len(good.asked) <= MOST_ROUGH
    assert good.first_good <= boundary <= length - 1
    assert boundary - good.first_good <= length / 2**MOST_ROUGH + 1


@pytest.mark.parametrize("length", [1, 2, 3])
def test_last_form_is_the_boundary_when_no_other_is_good(length):
    assert rough_boundary(length, lambda _: False) == length - 1


@given(LENGTHS, st.integers(1, 12), st.data())
def test_order_is_safest_first_without_repeats_and_in_range(length, most, data):
    boundary = data.draw(st.integers(0, length - 1))
    order = order_of_tests(boundary, length, most=most)
    assert order == sorted(set(order), reverse=True)
    assert len(order) <= most
    assert all(1 <= index <= length - 2 for index in order)
    if order:
        assert order[0] >= min(boundary, length - 2)
        assert most == 1 or order[-1] == 1


@pytest.mark.parametrize(("length", "order"), [(1, []), (2, []), (3, [1]), (4, [2, 1])])
def test_short_paths_have_what_lies_between_their_ends(length, order):
    assert order_of_tests(length - 1, length, most=MOST_TESTS) == order


def test_tests_are_spread_evenly_from_beyond_the_boundary():
    assert order_of_tests(30, 60, most=MOST_TESTS) == [39, 33, 26, 20, 14, 7, 1]


def test_first_failure_ends_the_tests_though_a_later_form_would_hold():
    asked = []

    def holds(index: int) -> bool:
        asked.append(index)
        return index != 5

    assert last_that_holds([9, 7, 5, 3], holds) == 7
    assert asked == [9, 7, 5]


@pytest.mark.parametrize(("order", "last"), [([], None), ([4], None), ([9, 4], 9), ([9, 8], 8)])
def test_last_that_held_is_taken(order, last):
    assert last_that_holds(order, lambda index: index > 4) == last
