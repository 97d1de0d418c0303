"""The fault drill finds what it looks for, and finds nothing in the runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.runtime.ledger import CANCELLED, Ledger
from sanderling.core.errors import DeadlineError, EngineError
from sanderling.run.results import Outputs
from tests.requests import numbered

NOTHING = {"lost": 0, "duplicated": 0, "misrouted": 0, "wrong": 0}


def results_of(number, rows=1):
    given = numbered(number, rows)
    return Outputs({"sum": given["a"] + given["b"], "difference": given["a"] - given["b"]})


@pytest.fixture
def ledger():
    made = Ledger((DeadlineError,), once=True)
    for _ in range(3):
        made.issue(2)
    return made


def test_requests_that_all_met_a_fate_are_no_fault(ledger):
    ledger.told(1, results_of(1, 2))
    ledger.told(2, DeadlineError("late"))
    ledger.told(3, CANCELLED)
    assert ledger.close() == NOTHING
    assert ledger.fates() == {"cancelled": 1, "completed": 1, "refused: DeadlineError": 1}


@pytest.mark.parametrize(
    ("outcomes", "fault"),
    [
        ([results_of(1, 2), results_of(2, 2)], "lost"),
        ([results_of(1, 2), results_of(2, 2), EngineError("no reason for it")], "lost"),
        ([results_of(1, 2), results_of(3, 2), results_of(3, 2)], "misrouted"),
        ([results_of(1, 2), results_of(2, 1), results_of(3, 2)], "wrong"),
        ([results_of(1, 2), results_of(2, 2), Outputs({"sum": np.zeros((2, 3), np.float32)})], "wrong"),
    ],
    ids=["silent", "unexplained", "another's", "too few rows", "no result"],
)
def test_fault_is_found(ledger, outcomes, fault):
    for number, outcome in enumerate(outcomes, start=1):
        ledger.told(number, outcome)
    assert ledger.close() == {**NOTHING, fault: 1}


def test_request_that_is_told_or_runs_twice_is_found(ledger):
    for number in (1, 1, 2, 3):
        ledger.told(number, results_of(number, 2))
    ledger.saw(numbered(3, 2)["a"])
    ledger.saw(numbered(3, 2)["a"])
    assert ledger.close() == {**NOTHING, "duplicated": 2}


def test_results_of_a_stream_out_of_order_are_found(ledger):
    for number in (1, 3, 2):
        ledger.told(number, results_of(number, 2), stream="a")
    assert ledger.close() == {**NOTHING, "wrong": 1}


@pytest.mark.drill
def test_drill_loses_doubles_misroutes_and_spoils_nothing(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.runtime.drill",
        "--seconds",
        "20",
        "--json",
        str(tmp_path / "drill.json"),
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=400)
    assert done.stdout.splitlines()[-1:] == ["lost 0, duplicated 0, misrouted 0, wrong 0"], done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "drill.json").read_text())
    assert all(result["requests"] > 0 for result in results["faults"])
