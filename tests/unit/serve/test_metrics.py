import numpy as np
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from sanderling.core.errors import TensorError
from sanderling.core.progress import Event
from sanderling.run.policy import placement
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.serve.data_plane import Finished
from sanderling.serve.metrics import Metrics, reason_kind

TINY = {"model": "tiny", "version": "1"}


def samples(metrics):
    """Value by name and labels of everything in the exposition."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def value(metrics, name, **labels):
    return samples(metrics)[name, frozenset(labels.items())]


def test_requests_are_counted_by_outcome(plane, ask):
    metrics = Metrics(plane)
    ask(plane, 3)
    with pytest.raises(TensorError):
        plane.submit(plane.model("tiny"), {"image": np.zeros((1, 3, 9, 9), np.float32)})
    assert value(metrics, "sanderling_requests_total", **TINY, outcome="ok") == 3
    assert value(metrics, "sanderling_requests_total", **TINY, outcome="TensorError") == 1


def test_stages_of_a_request_add_up_within_the_total(plane, ask):
    metrics = Metrics(plane)
    ask(plane, 5)
    sums = {
        dict(labels)["stage"]: seconds
        for (name, labels), seconds in samples(metrics).items()
        if name == "sanderling_latency_seconds_sum"
    }
    assert sums.keys() == {"queue", "compute", "total"}
    assert 0 < sums["queue"] + sums["compute"] <= sums["total"]


def test_histogram_buckets_are_cumulative_and_end_with_the_count(plane):
    metrics = Metrics(plane)
    for total_ms in (0.1, 3.0, 99_000.0):
        metrics.observe(Finished("tiny", "1", ok=True, total_ms=total_ms, batch_rows=3, device="cpu", precision="int8"))
    where = {**TINY, "device": "cpu", "precision": "int8", "stage": "total"}
    for bound, expected in (("0.00025", 1), ("0.0025", 1), ("0.005", 2), ("10.0", 2), ("+Inf", 3)):
        assert value(metrics, "sanderling_latency_seconds_bucket", **where, le=bound) == expected
    assert value(metrics, "sanderling_latency_seconds_count", **where) == 3
    rows = {**TINY, "device": "cpu", "precision": "int8"}
    assert value(metrics, "sanderling_batch_rows_bucket", **rows, le="2.0") == 0
    assert value(metrics, "sanderling_batch_rows_bucket", **rows, le="4.0") == 3


def test_way_of_running_is_told_with_its_device_and_precision(emulated_plane):
    where = {"engine": "emulated", "device": "npu", "precision": "int8"}
    assert value(Metrics(emulated_plane), "sanderling_model_lane", **TINY, **where) == 1


def test_thresholds_of_the_policy_are_told_by_device(emulated_plane):
    metrics = Metrics(emulated_plane)
    name = "sanderling_device_threshold_celsius"
    assert value(metrics, name, device="npu", threshold="leave") == 75
    assert value(metrics, name, device="npu", threshold="return") == 65


def test_switch_that_was_asked_for_is_counted_with_its_reason(emulated_plane):
    metrics = Metrics(emulated_plane)
    emulated_plane.model("tiny").session.switch(device="gpu")
    assert value(metrics, "sanderling_switches_total", model="tiny:1", reason="asked") == 1
    assert value(metrics, "sanderling_events_total", model="tiny:1", kind="switched") == 1


def test_events_from_before_are_counted_too(plane):
    plane.pool.runtime.tell(Event(kind="batch-failed", subject="tiny", reason="it was told to"), model="tiny")
    assert value(Metrics(plane), "sanderling_events_total", model="tiny:1", kind="batch-failed") == 1


def test_guard_trips_and_tokens_are_counted(plane):
    metrics = Metrics(plane)
    metrics.observe(Finished("tiny", "1", ok=True, tripped="scores has NaN"))
    metrics.observe(Finished("tiny", "1", ok=True, tokens=4, first_ms=30.0))
    metrics.observe(Finished("tiny", "1", ok=False, error="CancelledError", tokens=3))
    assert value(metrics, "sanderling_guard_trips_total", **TINY) == 1
    assert value(metrics, "sanderling_tokens_total", **TINY) == 7
    assert value(metrics, "sanderling_first_token_seconds_count", **TINY) == 1


def test_memory_of_a_model_is_that_of_its_loaded_variants(plane):
    metrics = Metrics(plane)
    session = plane.model("tiny").session
    assert value(metrics, "sanderling_model_memory_bytes", **TINY) == session.size_bytes > 0
    session.release()
    assert value(metrics, "sanderling_model_memory_bytes", **TINY) == session.pooled_bytes


def test_nothing_is_registered_globally(plane):
    Metrics(plane).exposition()
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("sanderling")]


def test_two_servers_of_a_process_count_by_themselves(plane, ask):
    first = Metrics(plane)
    ask(plane)
    second = Metrics(plane)
    ask(plane)
    counts = [value(metrics, "sanderling_requests_total", **TINY, outcome="ok") for metrics in (first, second)]
    assert counts == [2, 1]


RULES = (LaneRule("a", "npu", slow_ms=5, leave_c=75, return_c=65), LaneRule("b", "cpu"))
RECOVERY = RecoveryRule(slow_calls=1)


def hot():
    return placement.after_temperature(RULES, placement.start(RULES), device="npu", temperature_c=76, now_ms=0)


def gone():
    return placement.after_presence(RULES, placement.start(RULES), device="npu", present=False, now_ms=0)


def slow():
    return placement.after_call(RULES, RECOVERY, placement.start(RULES), lane=0, latency_ms=9, now_ms=0)


def failed():
    return placement.after_failure(RECOVERY, placement.start(RULES), lane=0, reason="out of memory", now_ms=0)


@pytest.mark.parametrize(
    ("decision", "kind"),
    [
        (hot, "hot"),
        (lambda: placement.after_temperature(RULES, hot()[0], device="npu", temperature_c=60, now_ms=1), "cooled"),
        (gone, "device gone"),
        (lambda: placement.after_presence(RULES, gone()[0], device="npu", present=True, now_ms=1), "device back"),
        (slow, "slow"),
        (lambda: placement.choose(slow()[0], now_ms=1e9), "hold-off over"),
        (failed, "failed"),
    ],
)
def test_reasons_of_the_runtimes_decisions_have_kinds(decision, kind):
    _, switch = decision()
    assert reason_kind(switch.reason) == kind
