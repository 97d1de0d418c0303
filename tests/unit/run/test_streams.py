from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.streams import Streams


@given(st.permutations(range(7)))
def test_results_come_in_the_order_of_their_places_whatever_order_they_are_ready_in(order):
    streams, told = Streams(), []
    links = [streams.join("a") for _ in order]
    for place in order:
        streams.settle(links[place], partial(told.append, place))
    assert told == sorted(order)


def test_streams_do_not_wait_for_each_other():
    streams, told = Streams(), []
    streams.join("slow")
    streams.settle(streams.join("quick"), partial(told.append, "quick"))
    assert told == ["quick"]


def test_stream_that_is_empty_again_keeps_nothing():
    streams = Streams()
    for link in [streams.join("a") for _ in range(3)]:
        streams.settle(link, lambda: None)
    assert not streams._last


def test_delivered_place_does_not_hold_the_results_after_it():
    class Result:
        pass

    streams, result = Streams(), Result()
    first, second = streams.join("a"), streams.join("a")
    streams.settle(first, lambda: None)
    streams.settle(second, partial(id, result))
    known = weakref.ref(result)
    del result, second
    gc.collect()
    assert known() is None
    assert first.after is None


@pytest.mark.parametrize("seed", range(5))
def test_order_holds_when_many_threads_settle_at_once(seed):
    streams, told = Streams(), []
    links = [streams.join("a") for _ in range(400)]
    shuffled = list(range(400))
    Random(seed).shuffle(shuffled)

    def settle(part):
        for place in part:
            streams.settle(links[place], partial(told.append, place))

    threads = [threading.Thread(target=settle, args=(shuffled[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert told == list(range(400))
