from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import EngineError, TensorError
from sanderling.core.tensor import TensorSpec
from sanderling.run.batches import Rows, TensorPool


def spec(name, *shape, dtype="float32"):
    return TensorSpec(name=name, dtype=dtype, shape=shape)


FREE = Rows([spec("x", "N", 2)], [spec("y", "N", 2)], profiles=())
FIXED = Rows([spec("x", 4, 2)], [spec("y", 4, 2)], profiles=(4,))


def rows_of(number, count):
    return {"x": np.full((count, 2), number, np.float32) + np.arange(count, dtype=np.float32)[:, None] / 64}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 3))
def test_every_caller_gets_exactly_its_own_rows_back(counts, filled):
    given_rows = [rows_of(number, count) for number, count in enumerate(counts)]
    joined, copied = FREE.join(given_rows, sum(counts) + filled, TensorPool(2))
    assert copied == sum(each["x"].nbytes for each in given_rows)
    assert joined["x"].shape == (sum(counts) + filled, 2)
    assert not joined["x"][sum(counts) :].any()
    for own, given_row in zip(FREE.split({"y": joined["x"] * 2}, counts), given_rows, strict=True):
        np.testing.assert_array_equal(own["y"], given_row["x"] * 2)


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=2, max_size=6))
def test_buffer_that_is_used_again_holds_nothing_of_the_batch_before(batches):
    pool = TensorPool(1)
    for number, counts in enumerate(batches):
        joined, _ = FREE.join([rows_of(number + 1, count) for count in counts], 16, pool)
        assert not joined["x"][sum(counts) :].any()
        pool.give_back(joined["x"])


def test_buffers_of_calls_at_the_same_time_are_different():
    pool = TensorPool(2)
    first, second = pool.take((4, 2), "float32"), pool.take((4, 2), "float32")
    assert not np.shares_memory(first, second)
    pool.give_back(first)
    assert pool.take((4, 2), "float32") is first
    assert pool.take((4, 2), "float64") is not first


def test_pool_keeps_no_more_than_its_size_and_counts_what_it_keeps():
    pool = TensorPool(2)
    for buffer in [pool.take((4, 2), "float32") for _ in range(5)]:
        pool.give_back(buffer)
    assert pool.held_bytes == 2 * 32
    assert pool.clear() == 64
    assert pool.held_bytes == 0


def test_pool_is_right_after_many_threads_used_it():
    pool = TensorPool(3)

    def use():
        for _ in range(300):
            buffer = pool.take((2, 2), "float32")
            buffer[:] = threading.get_ident() % 1000
            assert (buffer == buffer[0, 0]).all()
            pool.give_back(buffer)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert 0 < pool.held_bytes <= 3 * 16
    assert pool.clear() % 16 == 0


def test_model_of_fixed_calls_takes_fewer_rows_and_refuses_more():
    assert FIXED.batched
    assert FIXED.accepted[0].shape == ("rows", 2)
    FIXED.check_count(rows_of(1, 4))
    with pytest.raises(TensorError, match=r"'x' has 5 rows: expected at least 1 and at most 4"):
        FIXED.check_count(rows_of(1, 5))


def test_no_rows_are_refused():
    with pytest.raises(TensorError, match=r"'x' has 0 rows: expected at least 1; x: float32\[N, 2\]"):
        FREE.check_count(rows_of(1, 0))


def test_fixed_batch_is_one_callers_unless_the_policy_has_it_as_a_profile():
    plain = Rows([spec("x", 4, 2)], [spec("y", 4, 2)], profiles=())
    assert not plain.batched
    assert plain.accepted == plain.inputs


def test_strings_are_never_joined_because_longer_ones_would_be_cut():
    assert not Rows([spec("x", "N", dtype="str")], [spec("y", "N")], profiles=()).batched


def test_output_with_too_few_rows_is_an_error_and_no_callers():
    with pytest.raises(EngineError, match="output 'y' has 2 rows after a call with 3"):
        FREE.split({"y": np.zeros((2, 2), np.float32)}, [1, 2])
