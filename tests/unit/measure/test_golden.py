from __future__ import annotations

import re

import numpy as np
import pytest

from sanderling.measure.golden import safe_level, wrong_outputs
from sanderling.model.package import GoldenVectors
from sanderling.run.engines.base import Optimization

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


class Levelled:
    """An engine whose outputs depend on the level of optimisation; it counts what is open."""

    def __init__(self, **outputs: np.ndarray) -> None:
        self._outputs = outputs
        self.open = 0

    def __call__(self, level: Optimization) -> Levelled:
        self.open += 1
        self._level = level
        return self

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        row = 0 if np.array_equal(feeds["x"], INPUTS["x"][0]) else 1
        return {"y": self._outputs[self._level][row]}

    def close(self) -> None:
        self.open -= 1


ROUNDED = FP32 - np.array([0.1, -0.1, 0.1], np.float32)


@pytest.mark.parametrize(
    ("outputs", "level"),
    [
        ({"none": INT8, "basic": INT8, "all": INT8}, Optimization.ALL),
        ({"none": INT8, "basic": INT8, "all": ROUNDED}, Optimization.ALL),
        ({"none": INT8, "basic": ROUNDED, "all": INT8 + 1}, Optimization.BASIC),
        ({"none": INT8, "basic": INT8 + 1, "all": INT8 + 1}, Optimization.NONE),
        ({"none": INT8, "basic": INT8, "all": INT8 * np.nan}, Optimization.BASIC),
        ({"none": INT8, "basic": INT8, "all": INT8[:, :, :2]}, Optimization.BASIC),
    ],
    ids=["same", "rounded otherwise", "all is wrong", "both are wrong", "not finite", "another shape"],
)
def test_level_is_the_highest_that_changes_nothing_but_rounding(outputs, level):
    engine = Levelled(**outputs)
    found = safe_level(engine, GOLDEN, "int8", 1e-2)
    assert (found.level, engine.open) == (level, 0)
    assert bool(found.reason) == (level is not Optimization.ALL)


def test_lowered_level_is_told_with_both_numbers():
    found = safe_level(Levelled(none=INT8, basic=INT8, all=INT8 + 1), GOLDEN, "int8", 1e-2)
    assert "at all output 'y' differs" in found.reason
    assert re.search(r"SQNR against FP32 1\d\.\d dB, as written 3\d\.\d dB; basic is used$", found.reason)


def test_level_of_fp32_is_judged_by_fp32_as_it_is_written():
    golden_is_wrong_too = GoldenVectors(INPUTS, {"fp32": {"y": FP32 * 2}, "int8": {"y": INT8}})
    engine = Levelled(none=FP32, basic=FP32, all=FP32 * 2)
    assert safe_level(engine, golden_is_wrong_too, "fp32", 1e-4).level is Optimization.BASIC
