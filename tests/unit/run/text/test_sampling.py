from collections import Counter

import numpy as np
import pytest

from sanderling.core.errors import EngineError, OptionError
from sanderling.run.text.base import Sampling
from sanderling.run.text.sampling import Sampler


def scores(*probabilities):
    return np.log(np.asarray(probabilities, np.float32))


def counted(sampling, logits, draws=4000):
    sampler = Sampler(sampling)
    return Counter(sampler.choose(logits.copy(), []) for _ in range(draws))


def test_without_temperature_the_likeliest_is_taken():
    assert counted(Sampling(temperature=0), scores(0.2, 0.5, 0.3), 10) == {1: 10}


def test_tokens_come_as_often_as_they_are_likely():
    found = counted(Sampling(temperature=1, seed=0), scores(0.2, 0.5, 0.3))

    assert [found[token] / 4000 for token in range(3)] == pytest.approx([0.2, 0.5, 0.3], abs=0.03)


def test_a_low_temperature_sharpens_and_a_high_one_flattens():
    sharp = counted(Sampling(temperature=0.5, seed=0), scores(0.2, 0.8))
    flat = counted(Sampling(temperature=2, seed=0), scores(0.2, 0.8))

    assert sharp[1] / 4000 == pytest.approx(16 / 17, abs=0.03)
    assert flat[1] / 4000 == pytest.approx(2 / 3, abs=0.03)


def test_top_k_keeps_the_likeliest():
    assert set(counted(Sampling(top_k=2, seed=0), scores(0.1, 0.4, 0.2, 0.3))) == {1, 3}


def test_top_p_keeps_as_many_as_hold_that_probability():
    assert set(counted(Sampling(top_p=0.65, seed=0), scores(0.1, 0.4, 0.2, 0.3))) == {1, 3}
    assert set(counted(Sampling(top_p=0.01, seed=0), scores(0.1, 0.4, 0.2, 0.3))) == {1}


def test_top_p_counts_within_top_k():
    assert set(counted(Sampling(top_k=3, top_p=0.7, seed=0), scores(0.1, 0.4, 0.2, 0.3))) == {1, 3}


def test_seen_tokens_become_less_likely_whatever_their_sign():
    penalized = Sampler(Sampling(temperature=0, repetition_penalty=2.0))

    assert penalized.choose(np.asarray([3.0, 2.0], np.float32), [0, 0]) == 1
    assert penalized.choose(np.asarray([-1.0, -1.5], np.float32), [0]) == 1


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_scores_that_say_nothing_are_refused(logits):
    with pytest.raises(EngineError, match="no token can be chosen"):
        Sampler(Sampling()).choose(np.asarray(logits, np.float32), [])


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"repetition_penalty": 0}, {"max_tokens": 0}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Sampling(**wrong)
