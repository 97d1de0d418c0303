"""Short calls that run in a thread with other work, as an event loop is."""

from __future__ import annotations

import threading

import pytest

from sanderling.run.pool import Pool
from tests.engines import Script, scripted_session
from tests.requests import belongs_to, numbered

VISITS_S = 10


@pytest.fixture
def session(sums):
    with Pool() as pool:
        session = pool.load(sums, name="sums")
        session.runtime._short.observe(session.name, 0.05, now_ms=0.0)
        yield session


def submitted(session, count, visits):
    return [session.submit(numbered(n), visit=lambda: visits.append(1)) for n in range(count)]


def test_requests_of_a_short_model_run_when_the_thread_gets_to_them_and_no_other_thread_is_woken(session):
    visits = []
    before = threading.active_count()
    futures = submitted(session, 5, visits)
    assert len(visits) == 5
    assert not any(future.done() for future in futures)
    assert session.runtime.run_short() is False
    results = [future.result(0) for future in futures]
    assert all(belongs_to(result, n) for n, result in enumerate(results))
    assert max(result.batch_requests for result in results) > 1
    assert threading.active_count() <= before + 1  # the watch


def test_request_that_was_cancelled_meanwhile_is_none(session):
    first, second = submitted(session, 2, [])
    assert first.cancel()
    session.runtime.run_short()
    assert belongs_to(second.result(0), 1)
    assert session.statistics().requests["cancelled"] == 1


def test_results_of_a_stream_keep_their_order(session):
    order = []
    for n, future in enumerate(submitted(session, 6, [])):
        future.add_done_callback(lambda _, n=n: order.append(n))
    session.runtime.run_short()
    assert order == list(range(6))


def test_model_on_another_device_runs_in_a_thread_of_its_own(sums):
    visits = []
    with scripted_session(sums, {"npu": Script()}) as session:
        futures = submitted(session, 3, visits)
        assert all(belongs_to(future.result(VISITS_S), n) for n, future in enumerate(futures))
    assert visits == []


def test_batch_that_turns_out_long_is_run_by_another_thread(session, monkeypatch):
    futures = submitted(session, 3, [])
    monkeypatch.setattr(session.runtime, "_is_short", lambda *_: False)
    here = threading.get_ident()
    ran = []
    for future in futures:
        future.add_done_callback(lambda _: ran.append(threading.get_ident()))
    session.runtime.run_short()
    assert all(belongs_to(future.result(VISITS_S), n) for n, future in enumerate(futures))
    assert here not in ran


def test_requests_that_no_thread_got_to_are_run_before_the_session_closes(session):
    futures = submitted(session, 3, [])
    session.close()
    assert all(belongs_to(future.result(0), n) for n, future in enumerate(futures))


def test_requests_that_no_thread_gets_to_in_time_are_run_by_a_runner(session):
    futures = submitted(session, 3, [])
    assert all(belongs_to(future.result(VISITS_S), n) for n, future in enumerate(futures))
