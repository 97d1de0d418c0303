from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.policy.batching import BatchRules, batch_rows
from sanderling.run.policy.latency import (
    LatencyModel,
    from_density,
    from_table,
    least_ms,
    observe,
    predict_ms,
    unsure,
)

tables = st.dictionaries(st.integers(1, 128), st.floats(0.01, 1e4), min_size=1, max_size=8)


def observed(model, rows, latency_ms, times=1):
    for _ in range(times):
        model = observe(model, rows, latency_ms)
    return model


def test_nothing_is_predicted_where_nothing_is_known():
    assert predict_ms(LatencyModel(), 4) == 0.0
    assert least_ms(LatencyModel(), 4) == 0.0


def test_prediction_lies_on_straight_lines_and_grows_with_the_rows_beyond():
    model = from_table({8: 24.0, 2: 6.0})
    assert [predict_ms(model, rows) for rows in (1, 2, 4, 8, 16)] == [6.0, 6.0, 12.0, 24.0, 48.0]


def test_table_in_any_order_is_sorted():
    assert from_table({8: 3.0, 1: 1.0}) == LatencyModel((1, 8), (1.0, 3.0), (1, 1))


def test_first_measurements_outweigh_a_prediction():
    assert predict_ms(observed(from_table({1: 100.0}), 1, 10.0, times=9), 1) == pytest.approx(19.0)


def test_changed_latency_is_learned():
    model = observed(LatencyModel(), 1, 10.0, times=500)
    model = observed(model, 1, 20.0, times=40)
    assert predict_ms(model, 1) == pytest.approx(20.0, rel=0.02)


def test_new_size_is_put_in_its_place():
    model = observed(observed(observed(LatencyModel(), 8, 30.0), 1, 10.0), 4, 20.0)
    assert model == LatencyModel((1, 4, 8), (10.0, 20.0, 30.0), (1, 1, 1))


def test_bad_first_measurement_of_a_large_batch_is_forgotten():
    model = observed(observed(LatencyModel(), 1, 5.0), 4, 500.0)
    rules = BatchRules(target_ms=100.0)
    assert batch_rows(rules, model, 4) == 1
    model = observed(model, 1, 5.0, times=1000)
    assert predict_ms(model, 4) == pytest.approx(20.0, rel=0.05)
    assert batch_rows(rules, model, 4) == 4


def test_unsure_model_learns_from_one_measurement_as_much_as_it_knew():
    model = observed(LatencyModel(), 1, 100.0, times=50)
    assert predict_ms(observe(unsure(model), 1, 10.0), 1) == pytest.approx(55.0)


def test_small_batch_takes_no_longer_than_a_large_one_at_least():
    model = from_table({1: 500.0, 8: 30.0})
    assert least_ms(model, 1) == 30.0
    assert least_ms(from_table({8: 80.0}), 1) == 10.0
    assert least_ms(from_table({1: 10.0}), 8) == 80.0


def test_batches_save_more_where_few_macs_meet_many_weights():
    memory_bound = from_density(1e6, 1e7, 1e4, row_ms=1.0)
    compute_bound = from_density(1e10, 1e6, 1e6, row_ms=1.0)
    assert predict_ms(memory_bound, 8) < 1.1
    assert predict_ms(compute_bound, 8) == pytest.approx(8.0)
    assert predict_ms(from_density(0, 0, 0, row_ms=2.0), 8) == 2.0


@given(tables, st.integers(1, 256))
def test_prediction_rises_with_the_rows_where_the_means_do(table, rows):
    model = from_table(dict(zip(sorted(table), sorted(table.values()), strict=True)))
    assert predict_ms(model, rows) <= predict_ms(model, rows + 1) * (1 + 1e-12)


@given(tables, st.integers(1, 256))
def test_least_is_never_more_than_the_prediction_of_a_known_size(table, rows):
    model = from_table(table)
    assert least_ms(model, rows) <= max(predict_ms(model, rows), max(table.values())) + 1e-9
    for size in table:
        assert least_ms(model, size) <= table[size]


@given(tables, st.integers(1, 128), st.floats(0.01, 1e4), st.integers(1, 50))
def test_mean_moves_towards_the_measurement_and_sizes_stay_in_order(table, rows, latency_ms, times):
    before = from_table(table)
    after = observed(before, rows, latency_ms, times=times)
    assert list(after.sizes) == sorted(set(table) | {rows})
    assert len(after.sizes) == len(after.means_ms) == len(after.counts)
    if rows in table:
        low, high = sorted((table[rows], latency_ms))
        assert low * (1 - 1e-9) <= after.means_ms[after.sizes.index(rows)] <= high * (1 + 1e-9)
    assert all(after.means_ms[after.sizes.index(size)] == table[size] for size in table if size < rows)
