import pytest

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.run.policy import NEVER
from sanderling.run.policy.document import parse_policy
from sanderling.run.policy.rules import (
    batch_rules,
    breaker_rules,
    deadline_at,
    device_order,
    lane_rule,
    memory_rules,
    recovery_rule,
    scheduling_rules,
)

ARTICLE = parse_policy(
    """{"devicePriorities": ["NPU", "GPU", "CPU"],
        "fallbackThresholds": {"NPU": {"latency": 50, "temp": 75}, "GPU": {"latency": 100, "temp": 80}},
        "batchTuning": {"minBatchSize": 1, "maxBatchSize": 8, "latencyTarget": 16.67}}""",
    "policy",
)
DEFAULT = parse_policy("{}", "policy")


def test_the_articles_policy_leaves_the_npu_at_75_degrees_and_returns_at_65():
    rule = lane_rule(ARTICLE, "npu/int8", "npu:0", "npu")
    assert (rule.slow_ms, rule.leave_c, rule.return_c) == (50, 75, 65)


def test_a_threshold_is_found_by_name_before_kind():
    policy = parse_policy('{"fallbackThresholds": {"gpu:1": {"temp": 60}, "gpu": {"temp": 80}}}', "policy")
    assert lane_rule(policy, "a", "GPU:1", "gpu").leave_c == 60
    assert lane_rule(policy, "b", "gpu:0", "gpu").leave_c == 80
    assert lane_rule(policy, "c", "adreno", "gpu").leave_c == 80


def test_a_device_without_a_threshold_is_never_left_for_heat_or_latency():
    rule = lane_rule(ARTICLE, "cpu", "cpu", "cpu")
    assert (rule.slow_ms, rule.leave_c) == (NEVER, NEVER)


def test_profiles_of_the_model_bound_the_batch():
    rules = batch_rules(ARTICLE, (4, 1))
    assert (rules.profiles, rules.max_rows) == ((1, 4), 4)


def test_profiles_of_policy_and_model_must_have_one_in_common():
    policy = parse_policy('{"batchTuning": {"profiles": [2, 4]}}', "policy")
    assert batch_rules(policy, (1, 4, 8)).profiles == (4,)
    with pytest.raises(OptionError, match=r"batchTuning\.profiles are 2, 4, the model runs batches of 1, 8"):
        batch_rules(policy, (1, 8))


def test_devices_come_in_the_order_of_the_priorities_and_absent_ones_are_named():
    order = device_order(ARTICLE, {"cpu": "cpu", "gpu:0": "gpu", "gpu:1": "gpu"})
    assert order.devices == ("gpu:0", "gpu:1", "cpu")
    assert order.absent == ("npu",)


def test_without_priorities_all_devices_are_used_as_they_come():
    assert device_order(DEFAULT, {"b": "npu", "a": "cpu"}).devices == ("b", "a")


def test_a_policy_whose_devices_are_all_absent_says_what_is_here():
    policy = parse_policy('{"devicePriorities": ["npu"]}', "policy")
    with pytest.raises(UnavailableError, match=r"names npu: here are only cpu \(cpu\)"):
        device_order(policy, {"cpu": "cpu"})


def test_a_deadline_counts_from_arrival_and_the_default_only_where_none_was_given():
    policy = parse_policy('{"deadlines": {"default": 40}}', "policy")
    assert deadline_at(policy, arrival_ms=100, deadline_ms=None) == 140
    assert deadline_at(policy, arrival_ms=100, deadline_ms=5) == 105
    assert deadline_at(DEFAULT, arrival_ms=100, deadline_ms=None) == NEVER


def test_every_other_section_reaches_its_rules():
    policy = parse_policy(
        """{"recovery": {"slowBatches": 5, "holdOff": 7}, "scheduling": {"utilizationCap": 0.5, "spill": "never"},
            "deadlines": {"dropLate": false, "patience": 9}, "guard": {"onTrip": "raise", "breakerTrips": 2},
            "maxModelCache": 4, "emergencyRelease": {"threshold": "80%"}}""",
        "policy",
    )
    assert (recovery_rule(policy).slow_calls, recovery_rule(policy).hold_off_ms) == (5, 7)
    scheduling = scheduling_rules(policy)
    assert (scheduling.utilization_cap, scheduling.spill, scheduling.drop_late, scheduling.patience_ms) == (
        0.5,
        "never",
        False,
        9,
    )
    assert (breaker_rules(policy).on_trip, breaker_rules(policy).trips) == ("raise", 2)
    assert (memory_rules(policy).max_models, memory_rules(policy).threshold, memory_rules(policy).max_bytes) == (
        4,
        0.8,
        NEVER,
    )
