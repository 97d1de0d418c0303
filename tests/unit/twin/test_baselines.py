import pytest

from sanderling.core.errors import OptionError
from sanderling.run.dispatcher import Request
from sanderling.run.policy import NEVER
from sanderling.run.policy.latency import from_table
from sanderling.twin.baselines import QUEUE_LIMIT, Known, baseline

KNOWN = Known(
    {"npu": 1, "gpu": 1},
    {
        "fast": {"npu": from_table({1: 8, 4: 16}), "gpu": from_table({1: 15})},
        "slow": {"npu": from_table({1: 20}), "gpu": from_table({1: 30})},
    },
)


def started(scheduler, now_ms=0.0):
    """Device and numbers of the requests of every call that begins now."""
    calls = []
    while (dispatch := scheduler.next(now_ms)) is not None:
        calls.append((dispatch.device, [request.payload for request in dispatch.requests]))
    return calls


def submitted(name, requests, now_ms=0.0, **options):
    scheduler = baseline(name, KNOWN, options)
    for number, (model, deadline_ms) in enumerate(requests):
        assert scheduler.submit(Request(model, deadline_ms=deadline_ms, payload=number), now_ms) is None
    return scheduler


def test_a_fixed_device_leaves_the_others_idle():
    scheduler = submitted("fixed", [("fast", NEVER)] * 3)
    assert started(scheduler) == [("npu", [0])]
    assert started(submitted("fixed", [("fast", NEVER)] * 3, device="gpu")) == [("gpu", [0])]


def test_round_robin_gives_each_idle_device_the_oldest_request():
    assert started(submitted("round-robin", [("slow", NEVER), ("fast", NEVER), ("fast", NEVER)])) == [
        ("npu", [0]),
        ("gpu", [1]),
    ]


def test_shortest_expected_latency_counts_what_waits():
    # 8 on the npu, then 15 on the gpu against 16 on the npu, then 24 on the npu against 30 on the gpu
    scheduler = submitted("sel", [("fast", NEVER)] * 3)
    assert started(scheduler) == [("npu", [0]), ("gpu", [1])]
    assert scheduler.waiting == 1


def test_shortest_expected_latency_learns_from_calls():
    scheduler = submitted("sel", [("fast", NEVER)])
    dispatch = scheduler.next(0.0)
    scheduler.complete(dispatch, 100.0)
    scheduler.submit(Request("fast", payload=1), 100.0)
    assert started(scheduler, 100.0) == [("gpu", [1])]


def test_least_slack_runs_the_most_urgent_first_and_gives_up_what_cannot_be_in_time():
    scheduler = submitted("least-slack", [("fast", 90.0), ("fast", 7.0), ("slow", 40.0)])
    assert started(scheduler) == [("npu", [2]), ("gpu", [0])]
    assert [request.payload for request in scheduler.dropped] == [1]


def test_earliest_finish_takes_the_longest_first_and_passes_over_what_waits_for_a_busy_device():
    scheduler = submitted("heft", [("fast", NEVER), ("slow", NEVER)])
    assert started(scheduler) == [("npu", [1]), ("gpu", [0])]
    waiting = submitted("heft", [("slow", NEVER)] * 2)
    assert started(waiting) == [("npu", [0]), ("gpu", [1])]


def test_fixed_delay_waits_for_the_delay_although_the_device_is_idle():
    scheduler = submitted("fixed-delay", [("fast", NEVER)] * 2, delay="5")
    assert started(scheduler) == []
    assert scheduler.wake_ms() == 5
    assert started(scheduler, 5.0) == [("npu", [0, 1])]


def test_fixed_delay_does_not_wait_for_more_than_a_batch():
    scheduler = submitted("fixed-delay", [("fast", NEVER)] * 5, batch="2", device="any")
    assert started(scheduler) == [("npu", [0, 1]), ("gpu", [2, 3])]


def test_a_queue_takes_as_many_as_ours():
    scheduler = submitted("fixed", [("fast", NEVER)] * QUEUE_LIMIT)
    assert scheduler.submit(Request("fast"), 0.0) == "full"
    assert scheduler.submit(Request("slow"), 0.0) is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fifo", {}, "unknown baseline 'fifo': available are fixed, round-robin, sel"),
        ("sel", {"device": "npu"}, "has no option 'device': it has none"),
        ("fixed", {"device": "tpu"}, "does not run on device 'tpu': it runs on npu, gpu"),
        ("fixed-delay", {"delay": "soon"}, "delay 'soon' of a baseline is no number"),
        ("fixed-delay", {"batch": "0"}, "batch '0' of a baseline is no number"),
    ],
)
def test_a_faulty_baseline_is_one_error(name, options, message):
    with pytest.raises(OptionError, match=message):
        baseline(name, KNOWN, options)
