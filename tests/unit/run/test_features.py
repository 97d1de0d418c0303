import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import EngineError
from sanderling.run.features import FeatureCache

ROW = {"features": np.ones((1, 256), np.float32)}  # 1 kB


def fill(cache: FeatureCache, key: str, outputs=None) -> bool:
    """Compute a content where it is not known; returns whether it was computed."""
    _, mine = cache.claim((key, b""))
    if mine:
        cache.settle((key, b""), {name: array.copy() for name, array in (outputs or ROW).items()})
    return mine


def test_what_is_known_is_not_computed_again():
    cache = FeatureCache(1 << 20)
    assert fill(cache, "a")
    assert not fill(cache, "a")
    assert cache.counts == {"hits": 1, "misses": 1, "evicted": 0, "not kept": 0}


def test_the_least_recently_used_goes_first():
    cache = FeatureCache(4_000)  # two rows of 1.5 kB
    fill(cache, "a"), fill(cache, "b"), fill(cache, "a"), fill(cache, "c")
    assert not fill(cache, "a")
    assert fill(cache, "b")


def test_a_row_that_is_too_large_is_given_and_not_kept():
    cache = FeatureCache(100)
    promise, _ = cache.claim(("a", b""))
    cache.settle(("a", b""), dict(ROW))
    assert promise.result()["features"].shape == (1, 256)
    assert cache.size_bytes == 0
    assert cache.counts["not kept"] == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 400)), max_size=60), st.integers(0, 6_000))
def test_no_more_than_the_limit_is_ever_held(asked, limit):
    cache = FeatureCache(limit)
    for name, size in asked:
        fill(cache, str(name), {"features": np.zeros((1, size), np.float32)})
        assert 0 <= cache.size_bytes <= limit
    assert cache.clear() <= limit
    assert cache.size_bytes == 0


def test_who_asks_while_it_is_computed_waits_for_it():
    cache = FeatureCache(1 << 20)
    _, mine = cache.claim(("a", b""))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: cache.claim(("a", b"")))
        promise, theirs = other.result(5)
        assert mine
        assert not theirs
        assert not promise.done()
        cache.settle(("a", b""), dict(ROW))
        assert promise.result(5)["features"] is not None


def test_a_failure_reaches_all_and_the_next_one_tries_again():
    cache = FeatureCache(1 << 20)
    promise, _ = cache.claim(("a", b""))
    cache.fail(("a", b""), EngineError("no"))
    with pytest.raises(EngineError, match="no"):
        promise.result()
    assert fill(cache, "a")


def test_a_row_of_a_batch_does_not_keep_the_batch_alive():
    cache, batch = FeatureCache(1 << 20), np.zeros((100, 256), np.float32)
    cache.claim(("a", b""))
    cache.settle(("a", b""), {"features": batch[3:4]})
    held = cache.claim(("a", b""))[0].result()["features"]
    assert held.base is None
    assert not held.flags.writeable


def test_many_threads_compute_each_content_once():
    cache, computed, lock = FeatureCache(1 << 20), [], threading.Lock()

    def ask(number: int) -> None:
        key = (str(number % 5), b"")
        promise, mine = cache.claim(key)
        if mine:
            with lock:
                computed.append(key)
            cache.settle(key, dict(ROW))
        promise.result(5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(200)))
    assert len(computed) == 5
