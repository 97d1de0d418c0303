from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.workshop.quantize.histogram import BINS, Histogram
from sanderling.workshop.quantize.thresholds import METHODS, entropy, mean_squared_error, min_max, percentile

all_methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def histogram_of(values: np.ndarray) -> Histogram:
    low, high = float(values.min()), float(values.max())
    counts, _ = np.histogram(values, bins=BINS, range=(low, high))
    return Histogram(low, high, counts.astype(np.int64))


def gaussian(count: int = 200_000) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count)


def with_outliers(outlier: float) -> np.ndarray:
    """A standard normal, and six values far outside of it."""
    return np.concatenate([gaussian(), [outlier, -outlier] * 3])


def squared_error(values: np.ndarray, span: tuple[float, float]) -> float:
    """Mean squared error of eight bits over ``span``, computed on the values themselves."""
    low, high = span
    scale = (high - low) / 255
    return float(np.mean(np.square(values - (np.clip(np.round((values - low) / scale), 0, 255) * scale + low))))


@st.composite
def histograms(draw) -> Histogram:
    low = draw(st.floats(-100, 100, width=32))
    high = low + draw(st.sampled_from([1e-1, 1.0, 37.5, 1e4]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = generator.integers(0, 50, BINS) * (generator.random(BINS) < draw(st.sampled_from([0.002, 0.3, 1.0])))
    counts[[0, -1]] += 1
    return Histogram(low, high, counts)


@all_methods
@settings(deadline=None, max_examples=25)
@given(histogram=histograms())
def test_range_holds_zero_and_stays_inside_what_was_observed(method, histogram):
    low, high = method(histogram)
    slack = 1e-6 * max(abs(histogram.low), abs(histogram.high))
    assert min(histogram.low, 0) - slack <= low <= 0 <= high <= max(histogram.high, 0) + slack


@all_methods
@pytest.mark.parametrize("value", [-3.0, 0.0, 5.0])
def test_constant_tensor_gets_a_range_from_zero_to_it(method, value):
    counts = np.zeros(BINS, np.int64)
    counts[0] = 100
    assert method(Histogram(value, value, counts)) == (min(value, 0), max(value, 0))


@all_methods
@pytest.mark.timeout(5)
def test_narrow_range_far_from_zero_is_settled_at_once(method):
    # Such as the output of a layer that is a large bias with little on top of it.
    low, high = method(Histogram(100.0, 100.0005, np.full(BINS, 7)))
    assert low == 0
    assert high == pytest.approx(100, rel=1e-3)


def test_minmax_is_the_whole_range():
    assert min_max(histogram_of(np.array([-1.5, 0, 4.0]))) == (-1.5, 4.0)
    assert min_max(histogram_of(np.array([1.0, 4.0]))) == (0, 4.0)
    assert min_max(histogram_of(np.array([-4.0, -1.0]))) == (-4.0, 0)


def test_percentile_cuts_its_share_evenly_from_both_ends():
    low, high = percentile(histogram_of(gaussian()), percent=99.0)
    assert low == pytest.approx(-2.576, abs=0.03)
    assert high == pytest.approx(2.576, abs=0.03)


@pytest.mark.parametrize(("name", "furthest"), [("percentile", 10), ("entropy", 30), ("mse", 55)])
def test_few_outliers_are_cut_off(name, furthest):
    low, high = METHODS[name](histogram_of(with_outliers(60.0)))
    assert -furthest < low < -2.5
    assert 2.5 < high < furthest


@pytest.mark.parametrize("name", ["percentile", "entropy", "mse"])
def test_gaussian_keeps_nearly_all_of_its_values(name):
    low, high = METHODS[name](histogram_of(gaussian()))
    assert low < -2.5
    assert high > 2.5


@all_methods
def test_relu_output_keeps_its_low_end_at_zero_and_most_of_its_values(method):
    # Half of the values are exactly zero: that spike must not pull the range together.
    values = np.maximum(gaussian(), 0)
    low, high = method(histogram_of(values))
    assert low == 0
    assert 2.5 < high <= values.max()


@all_methods
def test_uniform_values_are_not_clipped(method):
    low, high = method(histogram_of(np.linspace(-1, 1, 100_001)))
    assert low == pytest.approx(-1, abs=0.03)
    assert high == pytest.approx(1, abs=0.03)


def sparse(share_of_zeros: float) -> np.ndarray:
    """What a ReLU leaves: exact zeros, and half a normal distribution."""
    generator = np.random.default_rng(1)
    zero = generator.random(200_000) < share_of_zeros
    return np.where(zero, 0.0, np.abs(generator.standard_normal(200_000)))


@pytest.mark.parametrize(
    "values",
    [gaussian(), with_outliers(20.0), np.abs(with_outliers(20.0)), sparse(0.5), sparse(0.95)],
    ids=["gaussian", "outliers", "outliers above", "half zero", "sparse"],
)
def test_least_squared_error_is_no_worse_than_any_other_method(values):
    histogram = histogram_of(values)
    chosen = squared_error(values, mean_squared_error(histogram))
    for method in (min_max, percentile, entropy):
        assert chosen <= 1.05 * squared_error(values, method(histogram))


def test_least_squared_error_moves_each_end_by_itself():
    # Outliers above only: the lower end, where little is to be won, nearly stays.
    values = np.concatenate([np.clip(gaussian(), -2, 2), [80.0] * 3])
    low, high = mean_squared_error(histogram_of(values))
    assert -2 <= low < -1.8
    assert high < 76
