from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from sanderling.run.policy import vectors
from sanderling.run.policy.vectors import FUNCTIONS, Case, generate, read, replay, same, write

CASES = read()


def test_committed_file_is_what_is_generated():
    made = generate()
    assert [case[:2] for case in made] == [case[:2] for case in CASES]
    assert all(same(case.result, known.result) for case, known in zip(made, CASES, strict=True))


def test_replaying_each_case_gives_its_result():
    wrong = [case for case in CASES if not same(replay(case.function, case.arguments), case.result)]
    assert wrong == []


def test_every_function_has_cases_and_every_case_a_function():
    assert Counter(case.function for case in CASES).keys() == FUNCTIONS.keys()


def test_cases_show_both_sides_of_each_decision():
    results = {
        name: {json.dumps(case.result) for case in CASES if case.function == name}
        for name in ("scheduling.is_late", "scheduling.may_leave", "scheduling.spills", "placement.blocked")
    }
    assert all(found == {"true", "false"} for found in results.values())
    pairs = [case.result for case in CASES if isinstance(case.result, list) and case.function.startswith("placement.")]
    reasons = " ".join(pair[1]["reason"] for pair in pairs if pair[1] is not None)
    for words in (
        "in a row",
        "engine failed",
        "is left at",
        "has cooled",
        "is gone",
        "there again",
        "hold-off is over",
    ):
        assert words in reasons
    assert "every other way is blocked" in reasons
    actions = {case.result[1] for case in CASES if case.function == "breaker.after_trip"}
    assert actions == {"retry-fp32", "last-good", "raise"}


def test_file_is_plain_json_without_nan_or_infinity():
    def refuse(constant):
        pytest.fail(f"{constant} is no JSON")

    content = json.loads(vectors.VECTORS.read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["version"] == vectors.VERSION
    assert content["cases"][0].keys() == set(Case._fields)


def test_written_file_is_read_again(tmp_path):
    write(tmp_path / "vectors.json")
    content = json.loads((tmp_path / "vectors.json").read_text(encoding="utf-8"))
    assert len(content["cases"]) == len(CASES)


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-6, False),
        (True, 1, False),
        ("Infinity", math.inf, False),
        ([1, 2], [1, 2], True),
        ([1], [1, 2], False),
        ({"a": None}, {"a": None}, True),
        ({"a": 1}, {"b": 1}, False),
        (None, False, False),
    ],
)
def test_results_are_the_same_to_within_rounding(value, expected, equal):
    assert same(value, expected) is equal
