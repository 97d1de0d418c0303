from __future__ import annotations

from sanderling.run.short_calls import ShortCalls

SHORT_MS, LONG_MS = 0.1, 1.5


def observed(*cpu_ms: float) -> ShortCalls:
    calls = ShortCalls()
    for each in cpu_ms:
        calls.observe("tiny", each, now_ms=0.0)
    return calls


def test_a_model_that_should_be_quick_is_tried_and_one_that_is_slow_is_not():
    assert ShortCalls().has("tiny", expected_ms=0.3, now_ms=0.0)
    assert not ShortCalls().has("tiny", expected_ms=3.0, now_ms=0.0)
    assert not ShortCalls().has("tiny", expected_ms=float("inf"), now_ms=0.0)


def test_what_its_calls_took_counts_more_than_what_was_expected():
    assert observed(SHORT_MS).has("tiny", expected_ms=30.0, now_ms=1.0)
    assert not observed(LONG_MS).has("tiny", expected_ms=0.1, now_ms=1.0)


def test_one_long_call_among_short_ones_changes_nothing():
    assert observed(*[SHORT_MS] * 20, 500.0).has("tiny", expected_ms=0.1, now_ms=1.0)
    assert not observed(*[SHORT_MS] * 20, *[LONG_MS] * 20).has("tiny", expected_ms=0.1, now_ms=1.0)


def test_a_model_whose_calls_were_long_is_tried_again_after_a_second():
    assert observed(LONG_MS).has("tiny", expected_ms=0.1, now_ms=1000.0)


def test_another_model_of_the_same_name_begins_anew():
    calls = observed(LONG_MS)
    calls.forget("tiny")
    assert calls.has("tiny", expected_ms=0.1, now_ms=1.0)


def test_only_some_calls_of_a_short_model_are_timed_and_all_of_one_that_is_on_trial():
    assert None not in [ShortCalls().begin("tiny") for _ in range(20)]
    calls = observed(SHORT_MS)
    assert sum(calls.begin("tiny") is not None for _ in range(160)) == 10
