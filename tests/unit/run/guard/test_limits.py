from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.guard.inner import Extremes
from sanderling.run.guard.limits import inner_fault, learned_limits

INF, NAN = np.inf, np.nan
VALUES = st.floats(-1e6, 1e6, width=32)


def extremes(*rows: tuple[float, float, float]) -> Extremes:
    return Extremes(*np.array(rows, np.float32).reshape(-1, 3).T)


def extremes_of(*tensors: np.ndarray) -> Extremes:
    return extremes(*((tensor.min(), tensor.max(), np.abs(tensor).sum()) for tensor in tensors))


def reason(golden: Extremes, found: Extremes, *, lengths_vary: bool = False, check_finite: bool = True) -> str | None:
    limits = learned_limits([{"t": golden}], lengths_vary=lengths_vary)
    fault = inner_fault(limits, {"t": found}, check_finite=check_finite)
    assert fault is None or fault[:2] == ("inner", "t")
    return fault and fault.reason


@given(st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=4))
def test_what_the_golden_inputs_gave_is_always_allowed(rows):
    golden = extremes_of(*np.array(rows, np.float32))
    assert reason(golden, golden) is None


@given(st.lists(VALUES, min_size=3, max_size=3), st.floats(-2, 2))
def test_twice_the_golden_values_are_allowed_with_either_sign_of_the_scale(row, factor):
    tensor = np.array(row, np.float32)
    golden = extremes_of(tensor, -tensor)
    assert reason(golden, extremes_of(np.float32(factor) * tensor)) is None


@pytest.mark.parametrize(
    ("golden", "low", "high"),
    [((0, 6), -18, 24), ((-2, 2), -14, 14), ((5, 5), 3.5, 6.5), ((100, 101), 69.7, 131.3), ((0, 0), -3e-6, 3e-6)],
)
def test_limits_lie_three_golden_widths_beyond_either_end(golden, low, high):
    known = learned_limits([{"t": extremes((*golden, 1))}], lengths_vary=False)["t"]
    assert (known.low, known.high) == pytest.approx((low, high))


def test_all_golden_calls_count():
    calls = [{"t": extremes((0, 1, 1))}, {"t": extremes((-1, 0, 1), (0, 2, 5))}]
    known = learned_limits(calls, lengths_vary=False)["t"]
    assert known.golden == (-1, 2)
    assert known.l1 == 20


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((-18.5, 6, 30), "1 of 2 rows are out of range, the first is 1: its lowest value is -18.5, at least -18"),
        ((0, 3e38, 3e38), "its highest value is 3e+38, at most 24 is allowed; the golden inputs gave 0 to 6"),
        ((0, 6, 200), "its sum of absolute values is 200, at most 120 is allowed"),
        ((0, INF, INF), "its highest value is inf"),
        ((0, 6, NAN), "1 of 2 rows hold NaN or infinity, the first is 1"),
        ((NAN, NAN, NAN), "1 of 2 rows hold NaN or infinity, the first is 1"),
    ],
)
def test_row_that_is_out_of_range_is_told_with_the_limit(row, text):
    assert text in reason(extremes((0, 6, 30)), extremes((0, 6, 30), row))


def test_sums_are_not_compared_where_lengths_vary():
    golden, longer = extremes((0, 6, 30)), extremes((0, 6, 3000))
    assert reason(golden, longer, lengths_vary=True) is None
    assert "sum of absolute values" in reason(golden, longer)


def test_rows_without_values_are_no_fault():
    empty = extremes((INF, -INF, 0))
    assert reason(extremes((0, 6, 30)), empty) is None
    assert reason(empty, empty) is None
    assert reason(empty, extremes()) is None
    assert reason(empty, extremes((0, 6, 30))) is None
    assert inner_fault({}, {"t": empty}, check_finite=True) is None


def test_golden_rows_without_values_do_not_widen_the_limits():
    known = learned_limits([{"t": extremes((INF, -INF, 0), (0, 6, 30))}], lengths_vary=False)["t"]
    assert known.golden == (0, 6)


def test_infinity_that_the_golden_inputs_gave_is_allowed_on_that_side_alone():
    golden = extremes((-INF, 4, INF))
    assert reason(golden, extremes((-INF, 3, INF))) is None
    assert "highest value is inf" in reason(golden, extremes((-INF, INF, INF)))
    assert "NaN" in reason(golden, extremes((NAN, NAN, NAN)))


def test_nan_that_the_golden_inputs_gave_is_allowed_and_the_other_rows_still_have_limits():
    golden = extremes((NAN, NAN, NAN), (0, 6, 30))
    assert reason(golden, golden) is None
    assert "highest value is 1000" in reason(golden, extremes((NAN, NAN, NAN), (0, 1000, 1000)))


def test_nan_is_not_looked_for_when_the_policy_says_so():
    golden = extremes((0, 6, 30))
    assert reason(golden, extremes((NAN, NAN, NAN)), check_finite=False) is None
    assert "highest value is inf" in reason(golden, extremes((0, INF, INF)), check_finite=False)


@pytest.mark.parametrize(("row", "is_fault"), [((0, 1e30, 1e30), False), ((0, INF, INF), True), ((0, 1, NAN), True)])
def test_only_nan_and_infinity_are_faults_before_limits_are_known(row, is_fault):
    assert (inner_fault({}, {"t": extremes(row)}, check_finite=True) is not None) == is_fault
    assert inner_fault({}, {"t": extremes(row)}, check_finite=False) is None
