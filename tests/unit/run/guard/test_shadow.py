from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.guard.shadow import ShadowSampler, Tolerance, disagreement
from tests.models import conv_classifier, random_arrays, run_directly
from tests.quantized import in_int8
from tests.unit.run.guard.packages import package_of, package_with

REFERENCE = np.array([[[1.0, -2.0, 4.0]], [[0.5, 0.0, -1.0]]], np.float32)


def tolerance_of(folder, fp32, int8, given=None, *, variant="int8") -> Tolerance:
    package = package_with(folder / "tiny.sdl", {"fp32": fp32, "int8": int8})
    return Tolerance.of(package, package.variant(variant), given)


@given(st.integers(0, 2**64), st.integers(0, 10**12))
def test_no_request_runs_again_without_a_share_and_each_with_all_of_them(seed, number):
    assert not ShadowSampler(0.0, seed).takes(number)
    assert ShadowSampler(1.0, seed).takes(number)


@given(st.integers(0, 1000), st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 1))
def test_request_of_a_smaller_share_is_in_a_larger_one_too(seed, number, share, other):
    small, large = sorted((share, other))
    assert ShadowSampler(large, seed).takes(number) >= ShadowSampler(small, seed).takes(number)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
@pytest.mark.parametrize("step", [1, 4, 7, 64])
def test_share_holds_for_each_caller_that_takes_turns(share, step):
    sampler = ShadowSampler(share, seed=5)
    count = 20_000
    deviation = (share * (1 - share) / count) ** 0.5
    for first in range(min(step, 4)):
        taken = sum(sampler.takes(number) for number in range(first, first + count * step, step))
        assert abs(taken / count - share) < 4.5 * deviation


def test_same_requests_are_taken_each_time_and_others_with_another_seed():
    numbers = range(1000)
    taken = [number for number in numbers if ShadowSampler(0.1, 1).takes(number)]
    assert taken == [number for number in numbers if ShadowSampler(0.1, 1).takes(number)]
    assert taken[:5] == [15, 18, 23, 57, 64]
    others = [number for number in numbers if ShadowSampler(0.1, 2).takes(number)]
    assert len(set(taken) & set(others)) < 30


def test_variant_may_be_four_times_as_far_off_as_its_golden_vectors(tmp_path):
    int8 = REFERENCE.copy()
    int8[1, 0, 0] += 0.4  # a tenth of the largest golden value
    tolerance = tolerance_of(tmp_path, {"y": REFERENCE}, {"y": int8})
    assert tolerance.limits == {"y": pytest.approx(0.4, rel=1e-5)}
    assert tolerance.scales == {"y": 4.0}


def test_four_times_the_golden_vectors_tolerance_is_the_least(tmp_path):
    assert tolerance_of(tmp_path, {"y": REFERENCE}, {"y": REFERENCE}).limits == {"y": 0.2}


def test_policy_sets_the_tolerance_of_every_output(tmp_path):
    golden = {"y": REFERENCE, "z": REFERENCE}
    assert tolerance_of(tmp_path, golden, golden, 0.3).limits == {"y": 0.3, "z": 0.3}


def test_outputs_that_cannot_be_compared_are_told(tmp_path):
    other = np.full_like(REFERENCE, np.nan)
    classes = np.array([[[3]], [[5]]])
    tolerance = tolerance_of(
        tmp_path, {"y": REFERENCE, "z": REFERENCE, "class": classes}, {"y": other, "z": REFERENCE, "class": classes}
    )
    assert tolerance.limits.keys() == {"z"}
    assert [(note.kind, note.subject) for note in tolerance.notes] == [
        ("guard-limited", "y"), ("guard-limited", "class"),
    ]  # fmt: skip
    assert "it is int64: only floats are compared" in tolerance.notes[1].reason


def test_text_is_not_compared(tmp_path):
    words = np.array([[["cat"]], [["dog"]]])
    assert tolerance_of(tmp_path, {"y": words}, {"y": words}).limits == {}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, -2, 4], None),
        ([1, -1.7, 4], None),
        ([1, -2, 5], "relative error 0.25, at most 0.1 is allowed; most at [0, 2]: 5, FP32 has 4"),
        ([1, np.nan, 9], "relative error inf, at most 0.1 is allowed; most at [0, 1]: nan, FP32 has -2"),
        ([1, np.inf, 9], "relative error inf, at most 0.1 is allowed; most at [0, 1]: inf, FP32 has -2"),
        ([1, -2], "it has shape (1, 2), FP32's has (1, 3)"),
    ],
)
def test_result_that_is_further_from_fp32_than_allowed_is_told_with_the_place(values, reason):
    tolerance = Tolerance({"y": 0.1}, {"y": 4.0})
    fault = disagreement({"y": np.array([values], np.float32)}, {"y": REFERENCE[0]}, tolerance)
    assert fault == (None if reason is None else ("shadow", "y", reason))


def test_infinity_that_both_have_is_no_difference():
    mask, other = (np.array([[-np.inf, 1, last]], np.float32) for last in (2, 9))
    tolerance = Tolerance({"y": 0.1}, {"y": 2.0})
    assert disagreement({"y": mask}, {"y": mask}, tolerance) is None
    assert "most at [0, 2]: 9, FP32 has 2" in disagreement({"y": other}, {"y": mask}, tolerance).reason


def test_small_results_are_held_against_the_golden_outputs_size():
    small = np.array([[0.001, 0.002]], np.float32)
    assert disagreement({"y": 2 * small}, {"y": small}, Tolerance({"y": 0.1}, {"y": 4.0})) is None
    assert disagreement({"y": 2 * small}, {"y": small}, Tolerance({"y": 0.1}, {"y": 0.0})) is not None


@pytest.mark.parametrize("seed", range(3))
def test_right_int8_variant_agrees_on_other_inputs_and_a_broken_one_does_not(tmp_path, seed):
    model = conv_classifier(seed=seed)
    calls = [{"image": row[None]} for row in random_arrays({"image": (4, 3, 8, 8)}, seed=seed)["image"]]
    calibration = random_arrays({"image": (64, 3, 8, 8)}, seed=10 + seed)
    package = package_of(tmp_path / "tiny.sdl", {"fp32": model, "int8": in_int8(model, calibration)}, calls)
    tolerance = Tolerance.of(package, package.variant("int8"))
    others = random_arrays({"image": (300, 3, 8, 8)}, seed=20 + seed)
    exact, rounded = (run_directly(package.file(f"{name}.onnx"), others)["scores"] for name in ("fp32", "int8"))

    def share_of_faults(results: np.ndarray) -> float:
        pairs = zip(results[:, None], exact[:, None], strict=True)
        return float(np.mean([disagreement({"scores": a}, {"scores": b}, tolerance) is not None for a, b in pairs]))

    assert share_of_faults(rounded) == 0
    assert share_of_faults(np.roll(rounded, 1, axis=1)) > 0.9
