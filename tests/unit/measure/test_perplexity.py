import numpy as np
import pytest

from sanderling.core.errors import DataError
from sanderling.measure.perplexity import change, perplexity
from sanderling.measure.text_golden import agreeing_tokens
from sanderling.measure.texts import choice_texts, default_texts, read_texts


def test_perplexity_of_a_fair_die_is_its_sides():
    assert perplexity(np.log(np.full(10, 1 / 6))) == pytest.approx(6)


def test_a_change_is_in_percent_of_the_perplexity_and_its_bound_is_above():
    reference = [np.full(50, -1.0), np.full(50, -2.0)]
    other = [reference[0] - np.tile([0.0, 0.2], 25), reference[1]]

    found = change(reference, other)

    assert found.tokens == 100
    assert found.percent == pytest.approx(100 * (np.exp(0.05) - 1))
    assert found.percent_upper > found.percent


def test_the_bound_holds_as_often_as_it_says():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        lost = random.normal(0.03, 0.5, 300)
        held += change([np.zeros(300)], [-lost]).percent_upper >= 100 * (np.exp(0.03) - 1)

    assert held >= 0.92 * 400


def test_equal_scores_change_nothing():
    found = change([np.full(9, -1.0)], [np.full(9, -1.0)])

    assert found.percent == found.percent_upper == 0


def test_answers_agree_up_to_their_first_difference():
    assert agreeing_tokens([1, 2, 3], [1, 2, 4]) == 2
    assert agreeing_tokens([1, 2], [1, 2]) == 2
    assert agreeing_tokens([1], [2]) == 0


def test_texts_are_there_and_those_decided_on_are_others():
    reported, choice = default_texts(), choice_texts()

    assert reported.keys() == choice.keys() == {"prose", "code"}
    assert all(len(text.split()) > 400 for text in (*reported.values(), *choice.values()))
    assert not set(reported.values()) & set(choice.values())


def test_files_of_text_are_read_by_their_names_or_refused(tmp_path):
    good, short, binary = tmp_path / "good.txt", tmp_path / "short.txt", tmp_path / "binary.txt"
    good.write_text("some words", encoding="utf-8")
    short.write_text("word", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe words")

    assert read_texts([good]) == {"good.txt": "some words"}
    for path, told in ((short, "too short"), (binary, "is not UTF-8"), (tmp_path / "none.txt", "cannot be read")):
        with pytest.raises(DataError, match=told):
            read_texts([path])
