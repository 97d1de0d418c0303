from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sanderling.core.errors import OptionError
from sanderling.run.guard.checks import Checks
from sanderling.run.guard.inner import Extremes
from sanderling.run.policy.document import Guard
from tests.unit.run.guard.packages import package_with

GOLDEN = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 1, 4)
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=5)


def checks_of(folder: Path, guard: Guard | None = None, **golden: np.ndarray) -> Checks:
    package = package_with(folder / "tiny.sdl", {"fp32": golden or {"y": GOLDEN}})
    return Checks.of(guard or Guard(), package, package.manifest.outputs)


@cache
def finite_checks() -> Checks:
    """Checks of an output whose golden values are finite."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return checks_of(Path(folder))


def kinds(checks: Checks, *results: np.ndarray) -> list[str | None]:
    found = [checks.fault({"y": result}) for result in results]
    return [fault and fault.kind for fault in found]


@st.composite
def spoilt_arrays(draw):
    dtype = draw(st.sampled_from(FLOATS))
    shape = draw(SHAPES)
    # Near the largest number, so that a sum overflows, or cancels what is infinite.
    values = draw(arrays.arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0, -1.0, 0.9, -0.9])))
    array = np.asarray(values * float(ml_dtypes.finfo(dtype).max), dtype)
    place = tuple(draw(st.integers(0, size - 1)) for size in shape)
    return array, place, draw(st.sampled_from([np.nan, np.inf, -np.inf]))


@settings(deadline=None)
@given(spoilt_arrays())
def test_nan_and_infinity_are_found_wherever_they_are_and_huge_values_are_not_taken_for_them(spoilt):
    array, place, value = spoilt
    assert finite_checks().fault({"y": array}) is None
    array[place] = value
    fault = finite_checks().fault({"y": array})
    assert fault is not None
    assert (fault.kind, fault.subject) == ("not-finite", "y")
    assert f"1 of {array.size} values is not finite, the first at {list(place)}: {value:g}" in fault.reason


@settings(deadline=None)
@given(spoilt_arrays(), st.sampled_from(["raise", "warn"]))
def test_no_warning_and_no_floating_point_error_comes_out_of_a_check(spoilt, mode):
    array, place, value = spoilt
    array[place] = value
    with warnings.catch_warnings(), np.errstate(all=mode):
        warnings.simplefilter("error")
        assert finite_checks().fault({"y": array}) is not None


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "str", "object"])
def test_what_cannot_hold_nan_is_no_fault(dtype):
    assert finite_checks().fault({"y": np.array([[1, 0, 3]]).astype(dtype)}) is None


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_empty_output_is_no_fault(tmp_path, shape):
    checks = checks_of(tmp_path, Guard(ranges={"y": (0, 1)}, distribution=3))
    assert checks.fault({"y": np.empty(shape, np.float32)}) is None


def test_arrays_that_are_strided_or_read_only_are_checked_too():
    array = np.ones((4, 8), np.float32)
    array[3, 4] = np.nan
    array.flags.writeable = False
    assert kinds(finite_checks(), array, array[:, ::2], array[::-1], array[:3], array.T) == [
        "not-finite", "not-finite", "not-finite", None, "not-finite",
    ]  # fmt: skip


def test_reason_counts_the_values_and_says_where_the_first_is():
    array = np.zeros((2, 5), np.float32)
    array[1, 2:4] = np.inf
    assert finite_checks().fault({"y": array}).reason == "2 of 10 values are not finite, the first at [1, 2]: inf"


def test_mask_may_hold_the_infinity_that_its_golden_outputs_hold_but_no_nan(tmp_path):
    mask = GOLDEN.copy()
    mask[1, 0, 2] = -np.inf
    checks = checks_of(tmp_path, y=mask)
    assert kinds(checks, mask[1], mask[0], np.full((1, 4), np.nan, np.float32)) == [None, None, "not-finite"]
    assert [(note.kind, note.subject) for note in checks.notes] == [("guard-limited", "y")]
    assert "only NaN is looked for" in checks.notes[0].reason


def test_output_whose_golden_values_hold_nan_is_left_alone_and_that_is_told(tmp_path):
    golden = GOLDEN.copy()
    golden[0, 0, 0] = np.nan
    checks = checks_of(tmp_path, y=golden, z=GOLDEN)
    good, bad = GOLDEN[0], np.full((1, 4), np.nan, np.float32)
    assert checks.fault({"y": bad, "z": good}) is None
    assert checks.fault({"y": bad, "z": bad}).subject == "z"
    assert [note.subject for note in checks.notes] == ["y"]


def test_nothing_is_checked_when_the_policy_says_so(tmp_path):
    checks = checks_of(tmp_path, Guard(check_finite=False))
    assert kinds(checks, np.full((1, 4), np.nan, np.float32)) == [None]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0, 5.5, 1, 7], "2 of 4 values are outside -1 to 5, the first at [0, 1]: 5.5"),
        ([-1.25, 0, 1, 2], "1 of 4 values is outside -1 to 5, the first at [0, 0]: -1.25"),
    ],
)
def test_value_outside_its_range_is_told_with_the_range(tmp_path, values, reason):
    fault = checks_of(tmp_path, Guard(ranges={"y": (-1, 5)})).fault({"y": np.array([values], np.float32)})
    assert fault == ("range", "y", reason)


def test_limits_themselves_are_in_the_range_as_the_dtype_rounds_them(tmp_path):
    checks = checks_of(tmp_path, Guard(ranges={"y": (-0.1, 0.1)}))
    assert kinds(checks, np.array([[-0.1, 0.1]], np.float32), np.array([[0.1001]], np.float32)) == [None, "range"]


def test_range_of_a_half_output_may_be_wider_than_halves_go(tmp_path):
    checks = checks_of(tmp_path, Guard(ranges={"y": (-1e9, 1e9)}), y=GOLDEN.astype(np.float16))
    assert kinds(checks, np.array([[-65504, 65504]], np.float16)) == [None]


def test_integers_have_ranges_too(tmp_path):
    checks = checks_of(tmp_path, Guard(ranges={"y": (0, 9.5)}), y=np.zeros((4, 1, 1), np.int64))
    assert kinds(checks, np.array([[9]]), np.array([[10]]), np.array([[-1]])) == [None, "range", "range"]


def test_nan_is_outside_every_range(tmp_path):
    checks = checks_of(tmp_path, Guard(check_finite=False, ranges={"y": (-1e30, 1e30)}))
    assert kinds(checks, np.array([[0, np.nan]], np.float32)) == ["range"]


def test_range_that_the_golden_outputs_leave_is_told_before_anything_runs(tmp_path):
    notes = checks_of(tmp_path, Guard(ranges={"y": (0, 1)})).notes
    assert "golden outputs reach from -2 to 2, outside the policy's range" in notes[0].reason


@pytest.mark.parametrize(
    ("name", "hint"), [("scoers", "did you mean 'scores'?"), ("logits", "available are scores, boxes")]
)
def test_range_of_an_unknown_output_is_refused_with_the_known_ones(tmp_path, name, hint):
    with pytest.raises(OptionError, match=f"names '{name}', which is no output") as caught:
        checks_of(tmp_path, Guard(ranges={name: (0, 1)}), scores=GOLDEN, boxes=GOLDEN)
    assert hint in str(caught.value)


def test_range_of_text_is_refused(tmp_path):
    with pytest.raises(OptionError, match="'y', which holds text"):
        checks_of(tmp_path, Guard(ranges={"y": (0, 1)}), y=np.full((4, 1, 1), "cat"))


def test_distribution_is_checked_row_by_row(tmp_path):
    checks = checks_of(tmp_path, Guard(distribution=3))
    rows = np.concatenate([GOLDEN[0], GOLDEN[1], GOLDEN[2] + 40, GOLDEN[3]])
    fault = checks.fault({"y": rows})
    assert fault.kind == "distribution"
    assert fault.reason.startswith("row 2 has mean 40.5333, 33 standard deviations from the golden outputs' 0 ± 1.2")
    assert fault.reason.endswith("at most 3 are allowed")
    assert kinds(checks, *GOLDEN, rows[:2], rows[3:]) == [None] * 6


def test_other_rows_do_not_hide_one_that_is_off(tmp_path):
    checks = checks_of(tmp_path, Guard(distribution=3))
    assert kinds(checks, np.concatenate([GOLDEN[0]] * 63 + [GOLDEN[0] + 8])) == ["distribution"]


def test_huge_values_that_cancel_have_their_mean(tmp_path):
    checks = checks_of(tmp_path, Guard(distribution=3), y=GOLDEN * np.float32(1e38))
    assert kinds(checks, np.array([[3e38, 3e38, -3e38, -3e38]], np.float32)) == [None]


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_row_without_a_usable_mean_is_far_off(tmp_path, value):
    checks = checks_of(tmp_path, Guard(check_finite=False, distribution=3))
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert kinds(checks, np.array([[0, 0], [value, 1]], np.float32)) == ["distribution"]


@pytest.mark.parametrize("golden", [np.ones((4, 1, 4), np.float32), np.full((4, 1, 4), np.inf, np.float32)])
def test_output_without_a_distribution_is_told_and_not_held_to_one(tmp_path, golden):
    checks = checks_of(tmp_path, Guard(distribution=3), y=golden)
    assert "no distribution to keep" in checks.notes[-1].reason
    assert kinds(checks, GOLDEN[0]) == [None]


def test_integers_have_no_distribution(tmp_path):
    checks = checks_of(tmp_path, Guard(distribution=3), y=np.arange(4).reshape(4, 1, 1))
    assert kinds(checks, np.array([[999]])) == [None]
    assert checks.notes == ()


def test_first_axis_that_is_not_the_batch_counts_no_rows(tmp_path):
    package = package_with(tmp_path / "tiny.sdl", {"fp32": {"y": GOLDEN}})
    boxes = package.manifest.outputs[0].model_copy(update={"shape": (3, 4)})
    checks = Checks.of(Guard(distribution=3), package, [boxes])
    assert kinds(checks, np.concatenate([GOLDEN[0] - 10, GOLDEN[1] + 10, GOLDEN[2]])) == [None]


def test_faults_of_watched_tensors_come_after_those_of_outputs(tmp_path):
    checks = checks_of(tmp_path)
    good = Extremes(*(np.array([value], np.float32) for value in (0, 6, 100)))
    bad = Extremes(*(np.array([value], np.float32) for value in (0, 1e30, 1e30)))
    checks.learn([{"relu": good}, {"relu": good}])
    assert checks.fault({"y": GOLDEN[0]}, {"relu": good}) is None
    assert checks.fault({"y": GOLDEN[0]}, {"relu": bad})[:2] == ("inner", "relu")
    assert checks.fault({"y": GOLDEN[0] * np.nan}, {"relu": bad})[:2] == ("not-finite", "y")
