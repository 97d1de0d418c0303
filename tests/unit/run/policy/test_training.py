import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import OptionError
from sanderling.run.policy.document import parse_policy
from sanderling.run.policy.rules import training_rules
from sanderling.run.policy.training import TrainingConditions, TrainingRules, may_train

RULES = TrainingRules(needs_charging=True, leave_c=60.0, free_share=0.2, begin_minute=22 * 60, end_minute=6 * 60)
GOOD = TrainingConditions(charging=True, temperature_c=40.0, free_share=0.5, minute=23 * 60)


def test_training_runs_where_everything_is_kept():
    assert may_train(RULES, GOOD, training=False) == (True, "")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"charging": False}, "the device is on battery"),
        ({"charging": None}, "no sensor tells whether it is charging"),
        ({"temperature_c": 61.0}, "the processor has 61 °C"),
        ({"temperature_c": None}, "no sensor shows the temperature that 60 °C are a limit of"),
        ({"free_share": 0.1}, "10 % of the memory is free, 20 % must be"),
        ({"free_share": None}, "not known how much memory is free"),
        ({"minute": 12 * 60}, "it is 12:00, and training is allowed from 22:00 to 06:00"),
    ],
)
def test_each_limit_pauses_with_its_reason(change, reason):
    verdict = may_train(RULES, GOOD._replace(**change), training=True)

    assert not verdict.allowed
    assert reason in verdict.reason


def test_pause_ends_a_little_below_the_limit_that_began_it():
    warm, tight = GOOD._replace(temperature_c=57.0), GOOD._replace(free_share=0.21)

    assert [may_train(RULES, seen, training=True).allowed for seen in (warm, tight)] == [True, True]
    assert [may_train(RULES, seen, training=False).allowed for seen in (warm, tight)] == [False, False]


@pytest.mark.parametrize(
    ("begin", "end", "minute", "allowed"),
    [
        (1320, 360, 1320, True),
        (1320, 360, 359, True),
        (1320, 360, 360, False),
        (1320, 360, 1319, False),
        (60, 120, 60, True),
        (60, 120, 120, False),
        (0, 0, 700, True),
        (700, 700, 0, True),
    ],
)
def test_hours_may_pass_midnight(begin, end, minute, allowed):
    rules = TrainingRules(needs_charging=False, begin_minute=begin, end_minute=end)

    assert may_train(rules, GOOD._replace(minute=minute), training=True).allowed is allowed


@given(
    st.builds(
        TrainingConditions,
        charging=st.none() | st.booleans(),
        temperature_c=st.none() | st.floats(-50, 150),
        free_share=st.none() | st.floats(0, 1),
        minute=st.integers(0, 1439),
    ),
    st.booleans(),
)
def test_no_limit_is_ever_passed(seen, training):
    verdict = may_train(RULES, seen, training=training)

    assert verdict.allowed is (verdict.reason == "")
    if verdict.allowed:
        assert seen.charging
        assert seen.temperature_c < 60
        assert seen.free_share >= 0.2
        assert seen.minute >= 1320 or seen.minute < 360


def test_policy_file_says_the_rules():
    text = '{"training": {"maxTemp": 60, "freeMemory": "20%", "hours": "22:00-06:00"}}'

    assert training_rules(parse_policy(text)) == RULES
    assert training_rules(parse_policy('{"training": {"charging": false, "freeMemory": 0}}')) == TrainingRules(False)


@pytest.mark.parametrize(
    "text",
    [
        '{"training": {"hours": "22-6"}}',
        '{"training": {"hours": "24:00-06:00"}}',
        '{"training": {"freeMemory": 101}}',
        '{"training": {"freeMemory": -0.1}}',
        '{"training": {"maxTemp": 300}}',
        '{"training": {"charging": "yes"}}',
        '{"training": {"max_temp": 60}}',
    ],
)
def test_wrong_section_is_refused(text):
    with pytest.raises(OptionError, match="training"):
        parse_policy(text)
