from __future__ import annotations

import numpy as np
import pytest

from sanderling.measure.golden import wrong_outputs
from sanderling.model.package import GoldenVectors

INPUTS = {"x": np.arange(6, dtype=np.float32).reshape(2, 1, 3)}
FP32 = np.array([[[1.0, 2, 3]], [[4, 5, 6]]], np.float32)
INT8 = FP32 + np.array([0.1, -0.1, 0.1], np.float32)
GOLDEN = GoldenVectors(INPUTS, {"fp32": {"y": FP32}, "int8": {"y": INT8}})


class Answering:
    """An engine's graph that answers what it is told, call by call."""

    def __init__(self, outputs: list[dict[str, np.ndarray]]) -> None:
        self._outputs = iter(outputs)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert feeds["x"].shape == (1, 3)
        return next(self._outputs)


def verdict(variant: str, array: np.ndarray, name: str = "y", tolerance: float = 1e-4) -> str | None:
    return wrong_outputs(Answering([{name: row} for row in array]), GOLDEN, variant, tolerance)


def test_golden_outputs_pass():
    assert verdict("fp32", FP32) is None
    assert verdict("int8", INT8) is None


def test_int8_that_is_rounded_another_way_but_as_close_to_fp32_passes():
    assert verdict("int8", FP32 - np.array([0.1, -0.1, 0.1], np.float32)) is None


def test_int8_that_is_further_from_fp32_than_the_variant_was_is_wrong():
    assert "differs from the golden one" in verdict("int8", FP32 + 1)


def test_fp32_that_differs_is_wrong_with_its_error():
    assert "relative error" in verdict("fp32", FP32 * 1.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_output_that_is_not_finite_is_wrong(bad):
    array = FP32.copy()
    array[1, 0, 2] = bad
    assert "NaN or infinite" in verdict("fp32", array)


def test_other_shape_and_missing_output_are_wrong():
    assert "has shape (1, 2): expected (1, 3)" in verdict("fp32", FP32[:, :, :2])
    assert "'y' is missing" in verdict("fp32", FP32, name="z")


def test_mask_of_minus_infinity_must_be_there_again_and_hides_nothing_else():
    masked = FP32.copy()
    masked[:, 0, 0] = -np.inf
    golden = GoldenVectors(INPUTS, {"fp32": {"y": masked}, "int8": {"y": masked + np.float32(0.1)}})

    def judge(array: np.ndarray) -> str | None:
        return wrong_outputs(Answering([{"y": row} for row in array]), golden, "int8", 1e-4)

    assert judge(masked - np.float32(0.1)) is None
    assert "differs from the golden one" in judge(masked + 5)
    assert judge(np.where(np.isinf(masked), np.float32(-100), masked)) is not None
