from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.policy.batching import BatchRules, batch_rows, call_rows
from sanderling.run.policy.latency import LatencyModel, from_table, predict_ms

FLAT = from_table({1: 10.0, 8: 12.0})  # rows of a batch are nearly free
LINEAR = from_table({1: 10.0, 8: 80.0})
DEAR = from_table({1: 2.0, 2: 6.0, 8: 16.0})  # two rows cost more than one by one
models = st.dictionaries(st.integers(1, 64), st.floats(0.01, 1000), max_size=6).map(from_table)
rules = st.builds(
    lambda low, more, target_ms, profiles: BatchRules(low, low + more, target_ms, tuple(sorted(profiles))),
    st.integers(1, 8),
    st.integers(0, 32),
    st.floats(0.1, 500),
    st.sets(st.integers(1, 64), max_size=4),
)


def test_request_that_is_alone_runs_alone_whatever_the_least_size_is():
    assert batch_rows(BatchRules(min_rows=4), FLAT, 1) == 1


def test_as_many_rows_as_wait_are_taken_where_they_are_nearly_free():
    assert [batch_rows(BatchRules(), FLAT, waiting) for waiting in (1, 2, 5, 8, 20)] == [1, 2, 5, 8, 8]


def test_batch_keeps_the_target():
    assert batch_rows(BatchRules(target_ms=45.0), LINEAR, 8) == 4


def test_batch_keeps_the_limit_of_the_earliest_deadline():
    assert batch_rows(BatchRules(target_ms=1000.0), LINEAR, 8, limit_ms=25.0) == 2


@pytest.mark.parametrize("limit_ms", [0.0, -5.0, 1.0])
def test_one_row_is_taken_even_over_the_limit(limit_ms):
    assert batch_rows(BatchRules(), LINEAR, 8, limit_ms=limit_ms) == 1


def test_target_does_not_keep_a_batch_below_the_least_size_but_the_limit_does():
    rules = BatchRules(min_rows=4, target_ms=15.0)
    assert batch_rows(rules, LINEAR, 8) == 4
    assert batch_rows(rules, LINEAR, 8, limit_ms=25.0) == 2


def test_batch_whose_rows_are_dearer_than_one_by_one_is_not_taken():
    assert batch_rows(BatchRules(target_ms=12.0), DEAR, 4) == 1
    assert batch_rows(BatchRules(target_ms=100.0), DEAR, 8) == 8


def test_one_row_is_taken_where_no_latency_is_known():
    assert batch_rows(BatchRules(), LatencyModel(), 8) == 1


def test_call_has_the_smallest_profile_that_holds_the_rows():
    profiles = BatchRules(profiles=(1, 2, 4, 8))
    assert [call_rows(profiles, rows) for rows in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 9]
    assert call_rows(BatchRules(), 3) == 3


def test_batch_is_never_larger_than_the_largest_profile():
    assert batch_rows(BatchRules(max_rows=8, target_ms=1000, profiles=(1, 4)), FLAT, 8) == 4


def test_profile_is_filled_only_where_the_padding_pays():
    padded = BatchRules(profiles=(4, 8), target_ms=1000.0)
    model = from_table({4: 10.0, 8: 20.0})
    assert [batch_rows(padded, model, waiting) for waiting in (4, 5, 7, 8)] == [4, 4, 4, 8]


@given(rules, models, st.integers(1, 100), st.floats(-10, 1000))
def test_batch_keeps_all_its_promises(rules, model, waiting, limit_ms):
    rows = batch_rows(rules, model, waiting, limit_ms=limit_ms)
    each_ms = [predict_ms(model, call_rows(rules, few)) / few for few in range(1, rows + 1)]
    assert 1 <= rows <= max(1, min(waiting, rules.max_rows))
    assert not rules.profiles or rows == 1 or call_rows(rules, rows) in rules.profiles
    if rows > 1:
        cost_ms = predict_ms(model, call_rows(rules, rows))
        assert cost_ms <= limit_ms
        assert cost_ms <= rules.target_ms or rows <= rules.min_rows
        assert each_ms[-1] <= min(each_ms) * 1.05 + 1e-9


@given(rules, models, st.integers(1, 50))
def test_more_waiting_rows_never_make_the_batch_smaller(rules, model, waiting):
    assert batch_rows(rules, model, waiting + 1) >= batch_rows(rules, model, waiting)
