from __future__ import annotations

import itertools
import threading
import time

import pytest

from sanderling.run.vision.channels import Channel, ChannelEndError
from sanderling.run.vision.conveyor import Conveyor


def values(conveyor):
    return [item.value for item in conveyor]


def threads():
    """Names of the threads that serve a conveyor; other tests of the same process may have left theirs."""
    stages = {f"sanderling-{name}" for name in ("capture", "same", "again", "fail")}
    return {thread.name for thread in threading.enumerate()} & stages


def test_all_things_pass_all_stages_in_order():
    conveyor = Conveyor(range(200), [("double", lambda x: 2 * x), ("add", lambda x: x + 1)])
    assert values(conveyor) == [2 * each + 1 for each in range(200)]
    assert (conveyor.captured, conveyor.dropped) == (200, 0)
    assert {name: len(each) for name, each in conveyor.durations_s.items()} == dict.fromkeys(
        ("capture", "double", "add", "deliver"), 200
    )


def test_stages_work_at_the_same_time():
    both = threading.Barrier(2, timeout=10)
    # Stage one can pass its barrier only while stage two is at its own with the thing before.
    first = [True]

    def one(value):
        if first[0]:
            first[0] = False
            return value
        both.wait()
        return value

    def two(value):
        if value < 9:
            both.wait()
        return value

    assert values(Conveyor(range(10), [("one", one), ("two", two)])) == list(range(10))


def test_feed_is_never_far_ahead():
    taken = []

    def feed():
        for number in range(100):
            taken.append(number)
            yield number

    conveyor = iter(Conveyor(feed(), [("one", lambda x: x), ("two", lambda x: x)]))
    next(conveyor)
    time.sleep(0.05)
    assert len(taken) <= 12
    conveyor.close()


def test_newest_thing_wins_and_the_others_are_counted():
    gate = threading.Event()

    def feed():
        yield 0
        gate.wait(10)
        yield from range(1, 50)

    def slow(value):
        if value == 0:
            gate.set()
            time.sleep(0.1)
        return value

    conveyor = Conveyor(feed(), [("slow", slow)], drop="newest")
    got = values(conveyor)
    assert got[0] == 0
    assert got[-1] == 49
    assert got == sorted(got)
    assert conveyor.captured == 50
    assert conveyor.dropped == 50 - len(got) > 0


def test_newest_lets_a_thing_in_when_no_stage_is_in_its_way():
    """Let in as soon as the first stage is free, a thing would wait for all that the slowest one takes."""
    slowest_s = 0.05

    def feed():
        for number in range(120):
            time.sleep(slowest_s / 8)
            yield number

    def stage(seconds):
        return lambda value: (time.sleep(seconds), value)[1]

    conveyor = Conveyor(feed(), [("a", stage(0.001)), ("b", stage(slowest_s)), ("c", stage(0.001))], drop="newest")
    waits = sorted(item.started_s[1] - item.started_s[0] for item in conveyor)
    assert len(waits) >= 5
    assert waits[len(waits) // 2] < 0.7 * slowest_s


def taken(conveyor, got):
    for item in conveyor:
        got.append(item.value)


def test_failure_of_a_stage_ends_everything():
    def fail(value):
        if value == 3:
            raise ValueError("three")
        return value

    got = []
    with pytest.raises(ValueError, match="three"):
        taken(Conveyor(itertools.count(), [("same", lambda x: x), ("fail", fail)]), got)
    assert got in ([], [0], [0, 1], [0, 1, 2])
    assert threads() == set()


def test_failure_of_the_feed_comes_after_what_came_before():
    def feed():
        yield from (1, 2, 3)
        raise OSError("unplugged")

    got = []
    with pytest.raises(OSError, match="unplugged"):
        taken(Conveyor(feed(), [("same", lambda x: x)]), got)
    assert got == [1, 2, 3]


@pytest.mark.parametrize("drop", ["newest", "none"])
def test_leaving_early_ends_the_threads(drop):
    endless = iter(int, 1)
    for item in Conveyor(endless, [("same", lambda x: x), ("again", lambda x: x)], drop=drop):
        assert item.value == 0
        break
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == set()


def test_channel_has_a_bound_and_an_end():
    channel = Channel(2)
    channel.put(1)
    channel.put(2)
    waiting = threading.Thread(target=channel.put, args=(3,))
    waiting.start()
    assert channel.get() == 1
    waiting.join(5)
    assert [channel.get(), channel.get()] == [2, 3]
    channel.put(4)
    channel.end()
    assert channel.get() == 4
    with pytest.raises(ChannelEndError):
        channel.get()
    with pytest.raises(ChannelEndError):
        channel.put(5)


def test_what_waits_for_a_late_stage_is_made_anew_of_what_comes():
    """Let in when the slow stage should have been free, a thing would be as old as that is late."""
    late_s, given = 0.3, []

    def feed():
        for number in range(150):
            time.sleep(0.005)
            yield number

    def slow(value):
        time.sleep(late_s if len(given) == 8 else 0.02)
        given.append(value)
        return value

    discarded = []
    conveyor = Conveyor(feed(), [("first", lambda x: x), ("slow", slow)], drop="newest", discard=discarded.append)
    items = list(conveyor)
    waited_s = items[9].started_s[1] - items[9].born_s
    assert waited_s < late_s / 3
    assert discarded
    assert conveyor.captured == len(items) + conveyor.dropped
    assert [item.value for item in items] == sorted(item.value for item in items)


def test_channel_exchanges_only_what_waits():
    channel = Channel(1)
    assert channel.exchange(1) is None
    assert channel.wait_until_taken(0.001)
    channel.put(2)
    assert not channel.wait_until_taken(0.001)
    assert channel.exchange(3) == 2
    assert channel.get() == 3
    channel.end()
    with pytest.raises(ChannelEndError):
        channel.exchange(4)


def test_channel_takes_back_what_was_taken_unless_something_newer_waits():
    channel = Channel(1)
    channel.put(1)
    first = channel.get()
    assert channel.put_back(first)
    assert not channel.put_back(0)
    assert channel.get() == 1
    channel.end()
    assert channel.put_back(1)
    assert channel.get() == 1
