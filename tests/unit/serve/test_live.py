import asyncio
import json
import threading
import time

import pytest

from sanderling.core.errors import QueueFullError
from sanderling.core.progress import Event
from sanderling.serve.data_plane import Finished
from sanderling.serve.live import HISTORY_S, Live
from sanderling.serve.snapshot import columns, lane_parts

NEVER_S = 3600.0


@pytest.fixture
def live(plane):
    """It ticks when the test says so."""
    with Live(plane, interval_s=NEVER_S) as live:
        yield live


def parsed(message):
    kind, data = message.decode().rstrip("\n").split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_second_holds_the_requests_that_ended_in_it(plane, live, ask):
    ask(plane, 4)
    live.observe(Finished("tiny", "1", ok=False, error="DeadlineError"))
    time.sleep(0.2)
    live.tick()
    live.tick()
    first, second = live.samples
    assert first.models["tiny:1"].batches == {1: 4}
    assert first.total.failed * 5 == pytest.approx(first.total.requests, rel=0.1)
    assert first.total.p50_ms <= first.total.p99_ms
    assert second.total.requests == 0
    assert second.total.p50_ms is None


def test_ten_minutes_are_kept_and_no_more(live):
    for _ in range(HISTORY_S + 5):
        live.tick()
    assert len(live.samples) == HISTORY_S
    assert live.samples[0].at_s <= live.samples[-1].at_s


def test_snapshot_names_lanes_thresholds_and_memory(emulated_plane):
    with Live(emulated_plane, interval_s=NEVER_S) as live:
        snapshot = live.snapshot()
    (model,) = snapshot.setup.models
    assert model.lanes[:2] == ("emulated/npu/int8", "emulated/gpu/int8")
    limits = {device.name: (device.leave_c, device.return_c) for device in snapshot.setup.devices}
    assert limits["npu"] == (75, 65)
    assert snapshot.sample.models["tiny:1"].lane == "emulated/npu/int8"
    assert snapshot.sample.models["tiny:1"].bytes > 0


def test_temperatures_of_devices_arrive(emulated_plane):
    with Live(emulated_plane, interval_s=NEVER_S) as live:
        end_s = time.monotonic() + 5
        while live.snapshot().sample.devices["npu"].temperature_c is None and time.monotonic() < end_s:
            time.sleep(0.02)
        assert live.snapshot().sample.devices["npu"].temperature_c == pytest.approx(25, abs=5)


def test_viewer_gets_the_history_then_each_second_and_every_event(plane, live):
    live.tick()

    async def watch():
        messages = live.watch()
        found = [parsed(await anext(messages))]
        await asyncio.to_thread(live.tick)
        found.append(parsed(await anext(messages)))
        event = Event(kind="batch-failed", subject="tiny on cpu", reason="it was told to")
        await asyncio.to_thread(plane.pool.runtime.tell, event, model="tiny")
        found.append(parsed(await anext(messages)))
        await messages.aclose()
        return found

    (first, history), (second, snapshot), (third, event) = asyncio.run(watch())
    assert (first, second, third) == ("history", "snapshot", "happened")
    assert len(history["samples"]["at_s"]) == 1
    assert snapshot["sample"]["at_s"] >= history["samples"]["at_s"][0]
    assert (event["kind"], event["model"]) == ("batch-failed", "tiny:1")
    assert live.viewers == 0


def test_snapshot_is_made_once_for_all_viewers(live, monkeypatch):
    made = []
    real = live._sample
    monkeypatch.setattr(live, "_sample", lambda *arguments: made.append(1) or real(*arguments))

    async def watch():
        viewers = [live.watch() for _ in range(5)]
        for viewer in viewers:
            await anext(viewer)
        await asyncio.to_thread(live.tick)
        received = [await anext(viewer) for viewer in viewers]
        for viewer in viewers:
            await viewer.aclose()
        return received

    received = asyncio.run(watch())
    assert len(set(received)) == 1
    assert len(made) == 1


def test_viewer_that_takes_nothing_is_dropped_and_holds_nobody_up(live):
    async def watch():
        slow, quick = live.watch(), live.watch()
        await anext(slow)
        await anext(quick)
        received = 0
        for _ in range(40):
            await asyncio.to_thread(live.tick)
            await anext(quick)
            received += 1
        left = live.viewers
        rest = [message async for message in slow]
        await quick.aclose()
        return received, left, rest

    received, left, rest = asyncio.run(watch())
    assert (received, left) == (40, 1)
    assert rest == []


def test_closing_lets_every_viewer_go(plane):
    async def watch():
        live = Live(plane, interval_s=NEVER_S)
        messages = live.watch()
        await anext(messages)
        await asyncio.to_thread(live.close)
        return [message async for message in messages]

    assert asyncio.run(asyncio.wait_for(watch(), 5)) == []
    assert "sanderling-live" not in {thread.name for thread in threading.enumerate()}


def test_model_that_is_added_later_is_shown_with_its_events(plane, live, tiny_package):
    plane.add(plane.pool.load(tiny_package, name="second"), name="other", version="7")
    live.tick()
    plane.pool.runtime.tell(Event(kind="switched", subject="second: a → b", reason="asked for"), model="second")
    assert [model.key for model in live.snapshot().setup.models] == ["tiny:1", "other:7"]
    assert live.events[-1].model == "other:7"


def test_arrivals_keep_rows_deadline_and_order(plane, live, ask):
    ask(plane, 1, rows=2, deadline_ms=500.0, priority=3)
    ask(plane, 1)
    live.tick()
    first, second = live.arrivals
    assert (first.model, first.rows, first.deadline_ms, first.priority) == ("tiny:1", 2, 500.0, 3)
    assert second.deadline_ms is None
    assert first.at_s < second.at_s


def test_columns_fill_what_a_row_lacks():
    rows = [{"at": 1, "models": {"a": {"x": 1}}}, {"at": 2, "models": {"a": {"x": 2}, "b": {"x": 3}}}]
    assert columns(rows) == {"at": [1, 2], "models": {"a": {"x": [1, 2]}, "b": {"x": [None, 3]}}}


@pytest.mark.parametrize(
    ("name", "parts"),
    [("openvino/gpu:1/int8", ("openvino", "gpu:1", "int8")), ("a/b/c/d", ("a", "b/c", "d")), ("", ("", "", ""))],
)
def test_lane_names_are_taken_apart(name, parts):
    assert lane_parts(name) == parts


def test_thirty_third_viewer_is_told_that_it_is_one_too_many(live):
    async def watch():
        viewers = [live.watch() for _ in range(32)]
        for viewer in viewers[:31]:
            await anext(viewer)
        live.check_room()
        await anext(viewers[31])
        with pytest.raises(QueueFullError, match="32 pages watch"):
            live.check_room()
        for viewer in viewers:
            await viewer.aclose()
        live.check_room()

    asyncio.run(watch())
