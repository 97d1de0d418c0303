"""The budget never lies: a small version of ``benchmarks.quantize.budget``."""

from __future__ import annotations

import pytest

from benchmarks.quantize import budget
from benchmarks.quantize.budget import EVALUATION_SAMPLES, MOST_LIES, SHAPES, simulate, tightest_limit
from sanderling.core.statistics import binomial_upper, samples_needed
from sanderling.workshop.proof import SEARCH_CONFIDENCE
from sanderling.workshop.search import CONFIDENCE

REPEATS = 200


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("limit", [2.0, tightest_limit()])
@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_form_exceeds_the_budget_one_time_in_twenty_at_most(shape, limit, correlation):
    assert not simulate(shape, limit, correlation, repeats=REPEATS, seed=0).lies_too_often


def test_forms_just_above_the_budget_are_accepted_one_time_in_twenty_at_most_in_many_repeats():
    outcome = simulate("all just above", tightest_limit(), 0.5, repeats=4000, seed=1)
    assert 0 < outcome.lies <= MOST_LIES


def test_simulation_notices_bounds_that_are_too_hopeful(monkeypatch):
    monkeypatch.setattr(budget, "_upper", lambda changed: 100 * changed / EVALUATION_SAMPLES)
    assert simulate("all just above", 5.0, 0.5, repeats=REPEATS, seed=0).lies_too_often


@pytest.mark.parametrize("shape", ["linear", "cliff in the middle", "steep"])
def test_form_that_keeps_the_budget_is_nearly_always_found(shape):
    assert simulate(shape, 5.0, 0.9, repeats=REPEATS, seed=0).accepted > 0.9


def test_both_decisions_together_leave_one_chance_in_twenty():
    assert SEARCH_CONFIDENCE == CONFIDENCE
    assert 2 * (1 - CONFIDENCE) <= MOST_LIES + 1e-12


@pytest.mark.parametrize("limit", [0.001, 0.008, 0.02, 0.05, 0.5])
def test_samples_needed_are_the_least_with_which_a_bound_can_reach_the_limit(limit):
    needed = samples_needed(limit, confidence=CONFIDENCE)
    assert binomial_upper(0, needed, confidence=CONFIDENCE) <= limit * (1 + 1e-9)
    assert needed == 1 or binomial_upper(0, needed - 1, confidence=CONFIDENCE) > limit
