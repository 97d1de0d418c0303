from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sanderling.run.dispatcher import Dispatcher, Request
from sanderling.run.policy import NEVER
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.latency import LatencyModel, from_table, predict_ms
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules

RECOVERY = RecoveryRule(slow_calls=3, hold_off_ms=100, longest_hold_off_ms=1000)
NPU = LaneRule("npu", "npu", slow_ms=15, leave_c=75, return_c=65)
GPU = LaneRule("gpu", "gpu", slow_ms=40, leave_c=85, return_c=75)
CPU = LaneRule("cpu", "cpu")
TEN_MS = from_table({1: 10.0, 8: 20.0})


def dispatcher(**rules):
    return Dispatcher(SchedulingRules(**rules))


def add(made, name="a", lanes=(NPU, CPU), latencies=None, batching=BatchRules(), **more):  # noqa: B008 - a value
    latencies = latencies or [TEN_MS] * len(lanes)
    made.add_model(name, lanes, latencies, batching=batching, recovery=RECOVERY, **more)
    return made


def submit(made, *requests, now_ms=0.0):
    assert [made.submit(request, now_ms) for request in requests] == [None] * len(requests)
    return requests


def requests(count, model="a", **fields):
    return [Request(model, **fields) for _ in range(count)]


def test_request_that_is_alone_runs_at_once():
    made = add(dispatcher())
    (only,) = submit(made, Request("a", rows=3))
    batch = made.next(0.0)
    assert (batch.requests, batch.rows, batch.call_rows, batch.device) == ((only,), 3, 3, "npu")
    assert made.next(0.0) is None


@pytest.mark.parametrize(
    ("costs", "fit"), [((1, 1), True), ((2, 2), True), ((3, 1), True), ((3, 2), False), ((4, 1), False)]
)
def test_models_have_room_beside_each_other_while_their_costs_fit(costs, fit):
    made = dispatcher()
    for name, cost in zip("ab", costs, strict=True):
        add(made, name, lanes=(CPU,), costs=[cost], capacities={"cpu": 4})
    add(made, "c", lanes=(NPU,))
    assert made.has_room_for(["a", "b", "c"]) is fit


def test_rows_of_several_callers_run_together_while_the_device_was_busy():
    made = add(dispatcher(), latencies=[from_table({1: 10.0, 8: 12.0})] * 2)
    submit(made, Request("a"))
    first = made.next(0.0)
    waiting = submit(made, *requests(3, rows=2))
    assert made.next(1.0) is None
    made.complete(first, 10.0)
    batch = made.next(10.0)
    assert batch.requests == tuple(waiting)
    assert batch.rows == 6


def test_request_larger_than_the_largest_batch_runs_by_itself():
    made = add(dispatcher())
    submit(made, Request("a", rows=20), Request("a"))
    assert made.next(0.0).rows == 20


def test_most_urgent_request_of_all_models_is_next():
    one_row = BatchRules(max_rows=1)
    made = add(add(dispatcher(), batching=one_row), "b", batching=one_row)
    last, urgent, high = submit(made, Request("a"), Request("b", deadline_ms=50.0), Request("a", priority=1))
    order = []
    for now_ms in (0.0, 10.0, 20.0):
        batch = made.next(now_ms)
        order.append(batch.requests[0])
        made.complete(batch, now_ms + 10.0)
    assert order == [high, urgent, last]


def test_request_that_cannot_be_in_time_is_refused_or_dropped_exactly_then():
    made = add(dispatcher(), lanes=(NPU,))
    assert made.submit(Request("a", deadline_ms=9.9), 0.0) == "late"
    submit(made, Request("a", deadline_ms=10.0))
    batch = made.next(0.0)
    late, in_time = submit(made, Request("a", deadline_ms=19.9), Request("a", deadline_ms=20.0), now_ms=1.0)
    made.complete(batch, 10.0)
    assert made.next(10.0).requests == (in_time,)
    assert made.dropped == [late]


def test_request_that_becomes_late_behind_a_hung_call_is_dropped_when_the_host_is_woken():
    made = add(dispatcher(), lanes=(NPU,))
    submit(made, Request("a"))
    made.next(0.0)
    (late,) = submit(made, Request("a", deadline_ms=30.0))
    assert made.next(1.0) is None
    assert made.dropped == []
    assert made.wake_ms() == pytest.approx(20.0, abs=0.01)
    assert made.next(made.wake_ms()) is None
    assert (made.dropped, made.wake_ms()) == ([late], NEVER)


def test_late_request_runs_where_the_policy_does_not_drop():
    made = add(dispatcher(drop_late=False))
    submit(made, Request("a", deadline_ms=1.0))
    assert made.next(5.0).requests


def test_full_queue_refuses():
    made = add(dispatcher(queue_limit=2))
    submit(made, *requests(2))
    assert made.submit(Request("a"), 0.0) == "full"


def test_cancelled_request_never_runs_and_one_that_runs_is_not_cancelled():
    made = add(dispatcher())
    first, second = submit(made, *requests(2))
    assert made.cancel(first)
    assert not made.cancel(first)
    assert made.next(0.0).requests == (second,)
    assert not made.cancel(second)


def test_cancelled_requests_do_not_pile_up_behind_urgent_work():
    made = add(dispatcher())
    submit(made, Request("a", priority=1))
    for _ in range(5000):
        (request,) = submit(made, Request("a"))
        made.cancel(request)
    assert len(made._models["a"].queue) < 200
    assert len(made.next(0.0).requests) == 1


def test_removed_model_gives_back_what_waited_in_order():
    made = add(add(dispatcher()), "b")
    waiting = submit(made, *requests(3))
    submit(made, Request("b"))
    assert made.remove_model("a") == list(waiting)
    assert (made.waiting, made.next(0.0).model) == (1, "b")


def test_batch_of_a_model_that_is_gone_teaches_its_successor_nothing():
    made = add(dispatcher(), lanes=(NPU, GPU, CPU))
    submit(made, Request("a"))
    batch = made.next(0.0)
    made.remove_model("a")
    add(made, lanes=(CPU,), latencies=[LatencyModel()])
    made.complete(batch, 500.0)
    assert made.latency("a", 0) == LatencyModel()
    submit(made, Request("a"), now_ms=500.0)
    assert made.next(500.0).device == "cpu"


def test_failed_batch_is_tried_again_request_by_request_on_the_next_lane():
    made = add(dispatcher(), latencies=[from_table({1: 10.0, 8: 12.0})] * 2)
    waiting = submit(made, *requests(3))
    assert made.fail(made.next(0.0), "it broke", 5.0) == []
    (event,) = made.switches
    assert (event.switch.target, event.switch.reason) == (1, "it broke")
    for at, request in enumerate(waiting):
        batch = made.next(10.0 * at + 5.0)
        assert (batch.requests, batch.device) == ((request,), "cpu")
        made.complete(batch, 10.0 * at + 15.0)


@pytest.mark.parametrize("lanes", [(CPU,), (NPU, CPU), (NPU, GPU, CPU)])
def test_request_that_fails_everywhere_spoils_no_other_of_its_batch(lanes):
    made = add(dispatcher(), lanes=lanes, latencies=[from_table({1: 10.0, 8: 12.0})] * len(lanes))
    waiting = submit(made, *requests(6))
    poison, lost, done, now_ms = waiting[2], [], [], 0.0
    while (batch := made.next(now_ms)) is not None:
        now_ms += 1.0
        if poison in batch.requests:
            lost += made.fail(batch, "bad input", now_ms)
        else:
            made.complete(batch, now_ms)
            done += batch.requests
    assert lost == [poison]
    assert sorted(done, key=id) == sorted((item for item in waiting if item is not poison), key=id)
    assert made.placement("a").active == 0
    assert [lane.strikes for lane in made.placement("a").lanes] == [0] * len(lanes)


def test_request_that_shared_a_failing_batch_may_use_that_lane_alone():
    made = add(dispatcher(), latencies=[from_table({1: 10.0, 8: 12.0})] * 2)
    poison, good = submit(made, *requests(2))
    made.fail(made.next(0.0), "bad input", 1.0)
    lost, tried = [], []
    while (batch := made.next(1.0)) is not None:
        tried.append((batch.device, batch.requests))
        if batch.device == "cpu" or batch.requests == (poison,):
            lost += made.fail(batch, "it broke", 1.0)
        else:
            made.complete(batch, 1.0)
    assert tried == [("cpu", (poison,)), ("npu", (poison,)), ("cpu", (good,)), ("npu", (good,))]
    assert lost == [poison]


def test_slow_lane_is_left_and_tried_again_after_its_hold_off():
    made = add(dispatcher())
    for now_ms in (0.0, 50.0, 100.0):
        submit(made, Request("a"), now_ms=now_ms)
        made.complete(made.next(now_ms), now_ms + 40.0)
    assert made.placement("a").active == 1
    submit(made, Request("a"), now_ms=141.0)
    assert made.wake_ms() == 240.0
    assert made.next(141.0).device == "cpu"
    submit(made, Request("a"), now_ms=240.0)
    assert made.next(240.0).device == "npu"


def test_first_call_that_includes_loading_teaches_nothing():
    made = add(dispatcher())
    for now_ms in (0.0, 500.0, 1000.0):
        submit(made, Request("a"), now_ms=now_ms)
        made.complete(made.next(now_ms), now_ms + 400.0, learn=False)
    assert (made.placement("a").active, made.latency("a", 0)) == (0, TEN_MS)


def test_model_that_was_once_too_slow_for_its_deadlines_is_measured_again():
    made = add(dispatcher(), lanes=(CPU,), latencies=[LatencyModel()])
    submit(made, Request("a"))
    made.complete(made.next(0.0), 500.0)
    now_ms, refused = 500.0, 0
    while now_ms < 120_000.0:
        now_ms += 50.0
        if made.submit(Request("a", deadline_ms=now_ms + 30.0), now_ms) is None:
            made.complete(made.next(now_ms), now_ms + 8.0)
        else:
            refused += 1
    assert predict_ms(made.latency("a", 0), 1) == pytest.approx(8.0, rel=0.01)
    assert refused < 60_000.0 / 50.0


def test_probe_is_one_request_and_not_one_whose_deadline_has_passed():
    made = add(dispatcher(), lanes=(CPU,), latencies=[from_table({1: 100.0})])
    assert made.submit(Request("a", deadline_ms=30.0), 0.0) == "late"
    assert made.submit(Request("a", deadline_ms=9_000.0), 10_000.0) == "late"
    submit(made, Request("a", deadline_ms=10_030.0), now_ms=10_000.0)
    assert made.submit(Request("a", deadline_ms=10_030.0), 10_000.0) == "late"
    assert made.next(10_000.0) is not None


def test_single_rows_are_not_ruled_out_by_large_batches():
    made = add(dispatcher(), lanes=(CPU,), latencies=[from_table({8: 80.0})])
    submit(made, Request("a", deadline_ms=30.0))
    assert made.next(0.0).rows == 1


def test_request_spills_to_another_device_only_when_it_would_be_late():
    made = add(dispatcher(), latencies=[from_table({1: 10.0}), from_table({1: 30.0})])
    submit(made, Request("a", deadline_ms=100.0))
    assert made.next(0.0).device == "npu"
    submit(made, Request("a", deadline_ms=60.0))
    assert made.next(0.0) is None
    submit(made, *requests(6, deadline_ms=60.0))
    spilled = made.next(0.0)
    assert spilled.device == "cpu"


def test_request_spills_early_from_a_device_that_is_busier_than_the_cap():
    made = add(dispatcher(), latencies=[from_table({1: 10.0}), from_table({1: 12.0})], batching=BatchRules(1, 1, 10.0))
    for now_ms in range(0, 3000, 10):
        submit(made, Request("a"), now_ms=now_ms)
        made.complete(made.next(now_ms), now_ms + 10.0)
    submit(made, *requests(2), now_ms=3000.0)
    assert [made.next(3000.0).device for _ in range(2)] == ["npu", "cpu"]


def test_a_batch_is_not_so_large_that_it_counts_as_slow():
    rule = LaneRule("npu", "npu", slow_ms=15.0)
    made = add(dispatcher(), lanes=(rule,), latencies=[from_table({1: 8.0})], batching=BatchRules(1, 8, 16.67))
    submit(made, *requests(4))
    assert made.next(0.0).rows == 1


def test_background_work_leaves_room_and_the_host_is_told_when_to_ask_again():
    made = add(dispatcher(), lanes=(CPU,))
    now_ms = 0.0
    for _ in range(300):
        submit(made, Request("a", priority=-1), now_ms=now_ms)
        batch = made.next(now_ms)
        if batch is None:
            break
        now_ms += 10.0
        made.complete(batch, now_ms)
    wake_ms = made.wake_ms()
    assert now_ms < wake_ms < now_ms + 20.0
    submit(made, Request("a"), now_ms=now_ms)
    assert made.next(now_ms).requests[0].priority == 0


def test_background_work_runs_when_the_host_asks_again():
    made = add(dispatcher(), lanes=(CPU,))
    submit(made, *requests(300, priority=-1))
    now_ms = asked = 0.0
    while made.waiting and asked < 2000:
        asked += 1
        batch = made.next(now_ms)
        if batch is not None:
            now_ms += 10.0
            made.complete(batch, now_ms)
        else:
            assert made.wake_ms() > now_ms
            now_ms = made.wake_ms()
    assert made.waiting == 0


def test_lanes_share_a_device_up_to_its_capacity():
    made = add(dispatcher(), lanes=(CPU,), costs=(2,), capacities={"cpu": 4})
    add(made, "b", lanes=(CPU,), costs=(1,))
    add(made, "c", lanes=(CPU,), costs=(9,))
    submit(made, Request("a"), Request("a"), Request("b"), Request("c"))
    batches = [made.next(0.0) for _ in range(3)]
    assert [batch.model for batch in batches if batch] == ["a", "b"]
    for batch in batches[:2]:
        made.complete(batch, 10.0)
    assert made.next(10.0).model == "c"
    assert made.next(10.0) is None


DEVICES = ("npu", "gpu", "cpu")
CAPACITIES = {"npu": 1, "gpu": 2, "cpu": 4}
MODELS = {
    "a": {"lanes": (NPU, GPU, CPU), "costs": (1, 1, 2), "batching": BatchRules(1, 4, 25.0)},
    "b": {"lanes": (GPU, CPU), "costs": (2, 4), "batching": BatchRules(2, 8, 50.0, (1, 2, 4, 8))},
    "c": {"lanes": (CPU,), "costs": (1,), "batching": BatchRules(1, 3, 5.0)},
}


class EveryRequestEndsOnce(RuleBasedStateMachine):
    """Requests come, run, fail, are cancelled and dropped, while devices heat, vanish and models go."""

    running = Bundle("running")

    def __init__(self):
        super().__init__()
        self.now_ms = 0.0
        self.made = Dispatcher(SchedulingRules(queue_limit=12, time_slice_ms=30.0, spill="earliest"))
        self.waiting, self.ended, self.batches = set(), {}, []
        for name in MODELS:
            self.add(name)

    def add(self, name):
        fields = MODELS[name]
        latencies = [from_table({1: 5.0 * (at + 1), 8: 12.0 * (at + 1)}) for at in range(len(fields["lanes"]))]
        add(self.made, name, latencies=latencies, capacities=CAPACITIES, **fields)

    def end(self, request, how):
        assert request not in self.ended, f"{how} after {self.ended.get(request)}"
        self.ended[request] = how

    def take_dropped(self):
        for request in self.made.dropped:
            assert request in self.waiting
            assert request.deadline_ms < self.now_ms + 1000.0
            self.waiting.remove(request)
            self.end(request, "dropped")
        self.made.dropped.clear()

    @rule(ms=st.floats(0, 60))
    def wait(self, ms):
        self.now_ms += ms

    @rule(
        model=st.sampled_from([*MODELS]),
        rows=st.integers(1, 6),
        priority=st.integers(-1, 1),
        due_ms=st.sampled_from([NEVER, NEVER, 3.0, 20.0, 100.0]),
    )
    def submit(self, model, rows, priority, due_ms):
        request = Request(model, rows=rows, priority=priority, deadline_ms=self.now_ms + due_ms)
        refusal = self.made.submit(request, self.now_ms)
        if refusal is None:
            self.waiting.add(request)
        else:
            assert not request.waiting
        assert refusal != "late" or due_ms < NEVER

    @rule(target=running)
    def next(self):
        batch = self.made.next(self.now_ms)
        self.take_dropped()
        if batch is None:
            return None
        assert set(batch.requests) <= self.waiting
        assert batch.rows == sum(request.rows for request in batch.requests) <= batch.call_rows
        assert len({request.model for request in batch.requests}) == 1
        assert [request.key for request in batch.requests] == sorted(request.key for request in batch.requests)
        fields = MODELS[batch.model]
        assert len(batch.requests) == 1 or batch.rows <= fields["batching"].max_rows
        assert fields["lanes"][batch.lane].device == batch.device
        assert len(batch.requests) == 1 or not any(request.failures for request in batch.requests)
        self.waiting -= set(batch.requests)
        self.batches.append(batch)
        return batch

    @rule(batch=consumes(running), ms=st.floats(0, 60), learn=st.booleans())
    def complete(self, batch, ms, learn):
        if batch is None:
            return
        self.batches.remove(batch)
        self.now_ms += ms
        self.made.complete(batch, self.now_ms, learn=learn)
        for request in batch.requests:
            self.end(request, "ran")

    @rule(batch=consumes(running))
    def fail(self, batch):
        if batch is None:
            return
        self.batches.remove(batch)
        lost = self.made.fail(batch, "it broke", self.now_ms)
        for request in batch.requests:
            if request in lost:
                self.end(request, "lost")
            else:
                assert request.waiting
                self.waiting.add(request)

    @rule(data=st.data())
    def cancel(self, data):
        if self.waiting:
            request = data.draw(st.sampled_from(sorted(self.waiting, key=lambda request: request.number)))
            assert self.made.cancel(request)
            self.waiting.remove(request)
            self.end(request, "cancelled")

    @rule(device=st.sampled_from(DEVICES), temperature_c=st.floats(40, 100))
    def sense(self, device, temperature_c):
        self.made.sense(device, temperature_c, self.now_ms)

    @rule(device=st.sampled_from(DEVICES), present=st.booleans())
    def presence(self, device, present):
        self.made.presence(device, present=present, now_ms=self.now_ms)

    @rule(model=st.sampled_from([*MODELS]), lane=st.integers(-1, 2))
    def switch(self, model, lane):
        self.made.switch(model, min(lane, len(MODELS[model]["lanes"]) - 1), self.now_ms, "asked")

    @rule(model=st.sampled_from([*MODELS]))
    def replace(self, model):
        for request in self.made.remove_model(model):
            self.waiting.remove(request)
            self.end(request, "returned")
        self.add(model)

    @invariant()
    def every_request_is_counted(self):
        assert self.made.waiting == len(self.waiting) == sum(self.made.queued(name) for name in MODELS)
        assert all(request.waiting for request in self.waiting)
        assert not any(request.waiting for request in self.ended)

    @invariant()
    def capacity_is_kept(self):
        for device in DEVICES:
            costs = [batch.cost for batch in self.batches if batch.device == device]
            assert len(costs) < 2 or sum(costs) <= CAPACITIES[device]

    def teardown(self):
        """Nothing is stuck: with all devices back, whatever waits is run or dropped."""
        for device in DEVICES:
            self.presence(device, True)
        for batch in list(self.batches):
            self.complete(batch, 1.0, False)
        for _ in range(1000):
            batch = self.next()
            if batch is not None:
                self.complete(batch, 1.0, True)
            elif self.waiting:
                assert self.now_ms < self.made.wake_ms() < NEVER
                self.now_ms = self.made.wake_ms()
        assert self.waiting == set()
        assert self.batches == []


TestEveryRequestEndsOnce = EveryRequestEndsOnce.TestCase
TestEveryRequestEndsOnce.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
