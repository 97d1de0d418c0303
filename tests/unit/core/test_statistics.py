from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.core.statistics import (
    SQNR_CAP_DB,
    binomial_upper,
    fitted_slope,
    mean_upper,
    paired_drop_upper,
    percentiles,
    relative_error,
    sign_test,
    sqnr_db,
)

REPEATS = 400
cached_bound = cache(paired_drop_upper)


@st.composite
def discordant_counts(draw):
    trials = draw(st.integers(1, 2000))
    lost = draw(st.integers(0, trials))
    return lost, draw(st.integers(0, trials - lost)), trials


@settings(deadline=None)
@given(discordant_counts())
def test_bound_on_the_drop_is_never_below_the_drop(counts):
    lost, won, trials = counts
    bound = paired_drop_upper(lost, won, trials)
    assert (lost - won) / trials <= bound <= 1


@pytest.mark.parametrize("trials", [50, 200, 500])
@pytest.mark.parametrize(("p_lost", "p_won"), [(0.0, 0.0), (0.02, 0.0), (0.02, 0.01), (0.05, 0.04), (0.1, 0.02)])
def test_true_drop_exceeds_the_bound_in_about_one_of_twenty_repeats(p_lost, p_won, trials):
    counts = np.random.default_rng(0).multinomial(trials, [p_lost, p_won, 1 - p_lost - p_won], REPEATS)
    bounds = np.array([cached_bound(int(lost), int(won), trials) for lost, won, _ in counts])
    exceeded = float((bounds < p_lost - p_won - 1e-12).mean())
    assert exceeded <= 0.07


def binomial_shares(trials: int, probability: float, count: int) -> np.ndarray:
    """Probabilities of 0 … count − 1 successes."""
    successes = range(count)
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(probability) + (trials - k) * math.log1p(-probability)
        for k in successes
    ]  # fmt: skip
    return np.exp(logs)


@pytest.mark.parametrize("trials", [100, 200, 500])
def test_bound_covers_the_drop_at_every_rate_of_losses(trials):
    # Exact, not simulated: where the bound changes its method, it must not become too hopeful.
    bounds = np.array([cached_bound(lost, 0, trials) for lost in range(61)])
    exceeded = {
        rate: float(binomial_shares(trials, rate, 61)[bounds < rate - 1e-12].sum())
        for rate in np.linspace(0.5, 35, 70) / trials
    }
    assert max(exceeded.values()) <= 0.07


@pytest.mark.parametrize("trials", [50, 200, 500])
def test_bound_rejects_a_drop_that_is_much_larger(trials):
    # Without this a bound of 1 would pass every test of coverage.
    assert paired_drop_upper(1, 1, trials) < 6 / trials
    assert paired_drop_upper(trials // 5, 0, trials) < 0.35


@pytest.mark.parametrize("trials", [200, 500, 1000])
def test_losing_one_more_sample_never_lowers_the_bound(trials):
    bounds = [paired_drop_upper(lost, 0, trials) for lost in range(15, 26)]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("trials", [20, 100, 500])
def test_nothing_lost_is_not_reported_as_no_risk(trials):
    assert paired_drop_upper(0, 0, trials) == pytest.approx(binomial_upper(0, trials), rel=0.05)


def test_drop_bound_is_the_same_for_the_same_seed():
    assert paired_drop_upper(40, 20, 1000, seed=3) == paired_drop_upper(40, 20, 1000, seed=3)


@pytest.mark.parametrize("trials", [1, 2, 20, 59, 1000])
def test_nothing_lost_leaves_the_rule_of_three(trials):
    assert binomial_upper(0, trials) == pytest.approx(1 - 0.05 ** (1 / trials), abs=1e-9)


@pytest.mark.parametrize(
    ("successes", "trials", "expected"),
    # One-sided 95 % Clopper–Pearson bounds: quantile 0.95 of Beta(k + 1, n - k).
    [(1, 10, 0.394163), (5, 100, 0.102253), (3, 3, 1.0), (9, 10, 0.994884)],
)
def test_exact_bound_equals_published_values(successes, trials, expected):
    assert binomial_upper(successes, trials) == pytest.approx(expected, abs=2e-6)


def test_higher_confidence_gives_a_higher_bound():
    assert binomial_upper(2, 50, confidence=0.99) > binomial_upper(2, 50, confidence=0.95) > 2 / 50


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        binomial_upper(successes, trials)


def test_relative_error_is_the_largest_difference_over_the_largest_reference():
    reference, other = np.array([1.0, -4.0, 2.0], np.float32), np.array([1.5, -4.0, 1.0], np.float32)
    assert relative_error(reference, other) == pytest.approx(0.25)


def test_relative_error_of_equal_arrays_is_zero():
    assert relative_error(np.array([1, 2, 3]), np.array([1, 2, 3])) == 0.0
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0


def test_relative_error_of_another_shape_is_infinite():
    assert relative_error(np.zeros((2, 1)), np.zeros((1, 2))) == math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_value_that_became_infinite_or_nan_makes_the_error_infinite(bad):
    assert relative_error(np.array([1.0, 2.0]), np.array([1.0, bad])) == math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_infinite_reference_must_be_met_exactly(bad):
    assert relative_error(np.array([1.0, bad]), np.array([1.0, bad])) == 0.0
    assert relative_error(np.array([bad]), np.array([bad])) == 0.0
    assert relative_error(np.array([1.0, bad]), np.array([1.0, 5.0])) == math.inf


def test_infinite_of_the_other_sign_is_an_infinite_error():
    assert relative_error(np.array([1.0, -np.inf]), np.array([1.0, np.inf])) == math.inf


def test_near_zero_reference_does_not_blow_the_error_up_without_limit():
    assert relative_error(np.zeros(3), np.full(3, 1e-6)) == pytest.approx(0.5)


def test_rounding_of_a_sigmoid_that_is_zero_everywhere_is_no_error():
    assert relative_error(np.zeros(3), np.full(3, np.finfo(np.float32).eps)) == 0


def test_scale_of_other_inputs_counts_when_it_is_larger():
    assert relative_error(np.array([1e-3]), np.array([2e-3]), scale=10) == pytest.approx(1e-4, rel=1e-3)
    assert relative_error(np.array([1.0]), np.array([1.5]), scale=0.1) == pytest.approx(0.5, rel=1e-5)


def test_sqnr_is_ten_decibels_a_decade():
    assert sqnr_db(100.0, 1.0) == pytest.approx(20.0)
    assert sqnr_db(1.0, 100.0) == pytest.approx(-20.0)


def test_sqnr_stays_inside_its_caps():
    assert sqnr_db(1.0, 0.0) == SQNR_CAP_DB
    assert sqnr_db(0.0, 1e300) == -SQNR_CAP_DB
    assert sqnr_db(0.0, 0.0) == 0.0


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_noise_that_is_not_finite_counts_as_the_worst(noise):
    assert sqnr_db(1.0, noise) == -SQNR_CAP_DB


@settings(deadline=None)
@given(st.floats(min_value=0, allow_infinity=False), st.floats(min_value=0))
def test_sqnr_is_always_a_number_between_the_caps(signal, noise):
    assert -SQNR_CAP_DB <= sqnr_db(signal, noise) <= SQNR_CAP_DB


def test_percentiles_of_a_ramp_are_its_ranks():
    result = percentiles(list(range(101)))
    assert result == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "min": 0.0, "mean": 50.0}


def test_percentiles_of_one_value_are_that_value():
    assert set(percentiles([2.5]).values()) == {2.5}


def test_bound_on_a_mean_covers_the_true_mean():
    generator = np.random.default_rng(0)
    missed = sum(mean_upper(generator.exponential(1.0, 100)) < 1.0 for _ in range(200))
    assert missed <= 0.12 * 200
    assert mean_upper(np.full(50, 0.25)) == pytest.approx(0.25)


@pytest.mark.parametrize(("won", "lost", "chance"), [(10, 0, 2**-10), (0, 10, 1.0), (5, 5, 0.623046875), (0, 0, 1.0)])
def test_sign_test_is_the_tail_of_fair_coins(won, lost, chance):
    assert sign_test(won, lost) == pytest.approx(chance)


def test_slope_of_a_line_is_exact_and_its_interval_covers_it():
    assert fitted_slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx((2, 2, 2))
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        _, low, high = fitted_slope(list(0.5 * np.arange(12) + generator.standard_normal(12)))
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.98
