"""Guesses from earlier text."""

from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.text.drafts import PromptLookup


def test_what_followed_the_same_tokens_before_is_guessed():
    assert PromptLookup(4).guess([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 10) == [4, 5, 6, 7]


def test_the_latest_of_several_places_is_taken():
    assert PromptLookup(2).guess([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 10) == [5, 1]


def test_text_that_repeats_itself_is_guessed_beyond_its_end():
    assert PromptLookup(6).guess([7, 8, 9, 7, 8, 9], 10) == [7, 8, 9, 7, 8, 9]


def test_nothing_is_guessed_where_nothing_was_there_before():
    assert PromptLookup(7).guess([1, 2, 3, 4, 5], 10) == []
    assert PromptLookup(7).guess([1], 10) == []
    assert PromptLookup(0).guess([1, 1, 1, 1, 1], 10) == []


def test_no_more_than_is_of_use_is_guessed():
    assert PromptLookup(7).guess([1, 2, 3, 1, 2, 3], 1) == [1]
    assert PromptLookup(7).guess([1, 2, 3, 1, 2, 3], 0) == []


def test_wrong_guesses_get_shorter_and_then_there_are_none_for_a_while():
    lookup, ids = PromptLookup(8), [1, 2, 3, 1, 2, 3]
    first = lookup.guess(ids, 10)
    lookup.told(len(first), 0, len(ids))
    second = lookup.guess([*ids, 1, 2, 3], 10)
    lookup.told(len(second), 0, len(ids) + 3)

    assert len(second) < len(first)
    assert lookup.guess([*ids, 1, 2, 3, 1], 10) == []
    assert lookup.guess([*ids, *[1, 2, 3] * 3], 10) != []


def test_a_right_guess_makes_the_next_one_as_long_as_it_may_be():
    lookup, ids = PromptLookup(8), [1, 2, 3, 1, 2, 3]
    lookup.told(8, 0, 6)
    lookup.told(4, 4, 7)

    assert len(lookup.guess(ids, 10)) == 8


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 9))
def test_a_guess_is_what_came_after_the_same_tokens(ids, most):
    guess = PromptLookup(9).guess(ids, most)

    assert len(guess) <= most
    if guess:
        text = [*ids, *guess]
        pair = ids[-2:]
        assert any(
            ids[place : place + 2] == pair and text[place + 2 : place + 2 + len(guess)] == guess
            for place in range(len(ids) - 2)
        )
