from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sanderling.core.errors import DeadlineError, EngineError, OptionError, QueueFullError, TensorError
from sanderling.core.progress import Event
from tests.engines import ALWAYS, Script, When, scripted_session, wait_until
from tests.requests import belongs_to, numbered


def counts(session):
    """Requests by what became of them; every request must have met exactly one fate."""
    found, _ = session._runtime.tallies()
    fates = ("completed", "failed", "late", "rejected", "cancelled")
    assert found["requests"] == sum(found[fate] for fate in fates), found
    return {fate: found[fate] for fate in fates if found[fate]}


def told_closed(session):
    with pytest.raises(EngineError, match="closed before this request ran"):
        session.run(numbered(7))


def occupied(session, script):
    """Occupy the only device until ``script.release`` is set; returns the future of the request that does."""
    future = session.submit(numbered(-1))
    wait_until(lambda: script.rows)
    return future


def test_requests_that_wait_together_run_together_and_get_their_own_rows(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}, batchTuning={"maxBatchSize": 16, "latencyTarget": 1000}) as session:
        first = occupied(session, script)
        futures = [session.submit(numbered(n, 1 + n % 3)) for n in range(30)]
        script.release.set()
        assert all(belongs_to(future.result(10), n, 1 + n % 3) for n, future in enumerate(futures))
        assert belongs_to(first.result(10), -1)
        assert len(script.rows) < 30
        assert counts(session) == {"completed": 31}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 1), st.booleans()), min_size=1, max_size=25))
@pytest.mark.parametrize("model", ["sums", "fixed_sums"])
def test_each_of_many_callers_gets_exactly_its_own_rows(request, model, data):
    tuning = {"maxBatchSize": 4, "latencyTarget": 1000, **({"profiles": [4]} if model == "fixed_sums" else {})}
    wrong = []
    with scripted_session(request.getfixturevalue(model), {"npu": Script()}, batchTuning=tuning) as session:

        def call(number):
            rows, priority, waits = data[number]
            feeds = numbered(number, rows)
            outputs = (
                session.run(feeds, priority=priority) if waits else session.submit(feeds, priority=priority).result(10)
            )
            if not belongs_to(outputs, number, rows):
                wrong.append(number)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(len(data))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert counts(session) == {"completed": len(data)}
    assert wrong == []


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"a": np.zeros((1, 3), np.float32)}, r"missing input \['b'\]"),
        (numbered(1) | {"c": np.zeros(1)}, r"unknown input \['c'\]"),
        (numbered(1) | {"b": np.zeros((1, 3))}, "'b' has dtype float64: expected float32"),
        (numbered(1) | {"b": np.zeros((1, 4), np.float32)}, "axis 1 must be 3"),
        (numbered(1) | {"b": np.zeros((2, 3), np.float32)}, "'b' has 2 along 'N', but input 'a' has 1"),
        (numbered(1) | {"b": [[0.0, 0.0, 0.0]]}, "'b' is a list: expected a NumPy array"),
        (numbered(1) | {"b": np.zeros((1, 3), ">f4")}, "foreign byte order"),
        (numbered(1, 0), r"'a' has 0 rows: expected at least 1"),
    ],
    ids=["missing", "unknown", "dtype", "shape", "rows", "list", "byte order", "no rows"],
)
def test_wrong_request_is_refused_at_once_and_is_none(sums, feeds, message):
    with scripted_session(sums) as session:
        for call in (session.run, session.submit):
            with pytest.raises(TensorError, match=message):
                call(feeds)
        assert belongs_to(session.run(numbered(3)), 3)
        assert counts(session) == {"completed": 1}


def test_more_rows_than_fixed_calls_have_are_refused(fixed_sums):
    with scripted_session(fixed_sums, batchTuning={"profiles": [4]}) as session:
        with pytest.raises(TensorError, match="has 5 rows: expected at least 1 and at most 4"):
            session.run(numbered(1, 5))
        assert belongs_to(session.run(numbered(1, 3)), 1, 3)


@pytest.mark.parametrize("alone", [True, False])
def test_arrays_that_are_strided_or_read_only_give_the_same_numbers(sums, alone):
    script = Script(hangs=When(first=0 if alone else 1))
    strided = {name: np.repeat(array, 2, axis=1)[:, ::2] for name, array in numbered(5, 2).items()}
    turned = {name: np.asfortranarray(array) for name, array in numbered(6, 2).items()}
    fixed = numbered(7, 2)
    for array in fixed.values():
        array.flags.writeable = False
    with scripted_session(sums, {"npu": script}) as session:
        if not alone:
            occupied(session, script)
        futures = [session.submit(feeds) for feeds in (strided, turned, fixed)]
        script.release.set()
        assert [belongs_to(future.result(10), n, 2) for n, future in zip((5, 6, 7), futures, strict=True)] == [True] * 3


def test_deadline_that_has_passed_is_told_at_once_and_nothing_runs(sums):
    script = Script()
    with scripted_session(sums, {"npu": script}) as session:
        for call in (session.run, session.submit):
            with pytest.raises(DeadlineError, match=r"it was due 5\.0 ms ago"):
                call(numbered(1), deadline_ms=-5)
        assert script.rows == []
        assert counts(session) == {"late": 2}


def test_deadline_that_is_no_number_is_refused(sums):
    with scripted_session(sums) as session, pytest.raises(OptionError, match="deadline_ms is not a number"):
        session.run(numbered(1), deadline_ms=float("nan"))


def test_deadline_that_passes_while_the_device_is_busy_is_told_before_it_is_free(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}) as session:
        first = occupied(session, script)
        late = session.submit(numbered(1), deadline_ms=20, stream="another")
        with pytest.raises(DeadlineError):
            session.run(numbered(2), deadline_ms=20)
        with pytest.raises(DeadlineError):
            late.result(5)
        assert not first.done()
        script.release.set()
        assert belongs_to(first.result(10), -1)
        assert counts(session) == {"completed": 1, "late": 2}


def test_policy_that_drops_nothing_finishes_late_requests(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}, deadlines={"dropLate": False}) as session:
        occupied(session, script)
        submitted = session.submit(numbered(1), deadline_ms=10)
        threading.Timer(0.1, script.release.set).start()
        assert belongs_to(session.run(numbered(2), deadline_ms=10), 2)
        assert belongs_to(submitted.result(10), 1)
        assert counts(session) == {"completed": 3}


def test_full_queue_refuses_the_next_request(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}, scheduling={"queueLimit": 2}) as session:
        occupied(session, script)
        waiting = [session.submit(numbered(n)) for n in range(2)]
        with pytest.raises(QueueFullError, match="2 requests of 'sums' wait already: send fewer at a time, or raise"):
            session.submit(numbered(9))
        with pytest.raises(QueueFullError):
            session.run(numbered(9))
        script.release.set()
        assert all(belongs_to(future.result(10), n) for n, future in enumerate(waiting))
        assert counts(session) == {"completed": 3, "rejected": 2}


def test_full_queue_lets_callers_wait_where_the_policy_says_so(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}, scheduling={"queueLimit": 2, "whenFull": "wait"}) as session:
        occupied(session, script)
        results = {}
        threads = [
            threading.Thread(target=lambda n=n: results.setdefault(n, session.run(numbered(n)))) for n in range(12)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        assert results == {}
        script.release.set()
        for thread in threads:
            thread.join(10)
        assert all(belongs_to(results[n], n) for n in range(12))
        assert counts(session) == {"completed": 13}


def test_wait_for_room_ends_at_the_deadline(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}, scheduling={"queueLimit": 1, "whenFull": "wait"}) as session:
        occupied(session, script)
        waiting = session.submit(numbered(1))
        begun_s = time.monotonic()
        with pytest.raises(DeadlineError):
            session.submit(numbered(2), deadline_ms=50)
        assert time.monotonic() - begun_s < 0.9
        script.release.set()
        assert belongs_to(waiting.result(10), 1)


def test_cancelled_request_makes_room_for_one_that_waits(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}, scheduling={"queueLimit": 1, "whenFull": "wait"}) as session:
        occupied(session, script)
        waiting = session.submit(numbered(1))
        threading.Timer(0.05, waiting.cancel).start()
        begun_s = time.monotonic()
        taken = session.submit(numbered(2))
        assert time.monotonic() - begun_s < 0.9
        script.release.set()
        assert belongs_to(taken.result(10), 2)
        assert counts(session) == {"completed": 2, "cancelled": 1}


def test_cancelled_request_never_runs_and_holds_nobody_up(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}) as session:
        first = occupied(session, script)
        before, cancelled, after = (session.submit(numbered(n)) for n in range(3))
        assert cancelled.cancel()
        assert not first.cancel()  # it runs
        script.release.set()
        assert belongs_to(after.result(10), 2)
        assert belongs_to(before.result(10), 0)
        with pytest.raises(CancelledError):
            cancelled.result(0)
        assert sum(script.rows) == 3
        assert counts(session) == {"completed": 3, "cancelled": 1}


@pytest.mark.parametrize("fails", [0, 40])
def test_cancelling_while_batches_start_and_fail_loses_and_doubles_nothing(sums, fails):
    scripts = {"npu": Script(fails=When(numbers=tuple(range(1, 2 * fails, 2)))), "gpu": Script()}
    with scripted_session(sums, scripts, recovery={"holdOff": 1}) as session:
        told = []
        for number in range(400):
            future = session.submit(numbered(number))
            future.add_done_callback(lambda future, number=number: told.append((number, future)))
            if number % 3:
                future.cancel()
        wait_until(lambda: len(told) == 400)
        assert [number for number, _ in told if number % 3 == 0] == list(range(0, 400, 3))
        assert all(future.cancelled() or belongs_to(future.result(), number) for number, future in told)
        found = counts(session)
        assert found["cancelled"] == sum(future.cancelled() for _, future in told)
        assert belongs_to(session.run(numbered(1)), 1)


def test_cancelling_a_request_that_was_dropped_counts_once(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}) as session:
        occupied(session, script)
        futures = [session.submit(numbered(n), deadline_ms=1) for n in range(50)]
        time.sleep(0.002)
        for future in futures:
            future.cancel()
        script.release.set()
        assert belongs_to(session.submit(numbered(3)).result(10), 3)
        wait_until(lambda: all(future.done() for future in futures))
        assert sum(counts(session).values()) == 52


def test_one_bad_request_does_not_spoil_its_batch(sums):
    script = Script(hangs=When(first=1), fails=When(values=(5.0,)))
    with scripted_session(sums, {"npu": script}) as session:
        occupied(session, script)
        futures = [session.submit(numbered(n)) for n in range(8)]
        script.release.set()
        for number, future in enumerate(futures):
            if number == 5:
                with pytest.raises(EngineError, match=r"scripted: call \d+ fails"):
                    future.result(10)
            else:
                assert belongs_to(future.result(10), number)
        assert counts(session) == {"completed": 8, "failed": 1}


def test_engine_that_fails_is_left_for_the_next_one_and_no_request_notices(sums):
    scripts = {"npu": Script(fails=ALWAYS), "gpu": Script()}
    with scripted_session(sums, scripts) as session:
        assert all(belongs_to(session.run(numbered(n)), n) for n in range(5))
        assert session.device == "gpu"
        assert [event.kind for event in session.events] == ["batch-failed", "switched"]
        assert len(scripts["npu"].rows) == 1


def test_request_that_every_lane_fails_names_each(sums):
    with scripted_session(sums, {"npu": Script(fails=ALWAYS), "gpu": Script(fails=ALWAYS)}) as session:
        says = "every way of running 'sums' failed for this request: scripted/npu/fp32: .*; scripted/gpu/fp32: "
        with pytest.raises(EngineError, match=says):
            session.run(numbered(1))
        assert counts(session) == {"failed": 1}


def test_callers_of_one_failed_batch_get_errors_of_their_own(sums):
    script = Script(hangs=When(first=1), fails=ALWAYS)
    with scripted_session(sums, {"npu": script}) as session:
        futures = [occupied(session, script), *(session.submit(numbered(n)) for n in range(4))]
        script.release.set()
        errors = [future.exception(10) for future in futures]
        assert len({id(error) for error in errors}) == 5
        assert all(isinstance(error, EngineError) for error in errors)


@pytest.mark.parametrize("kind", ["run", "submit"])
def test_hang_is_rescued_by_another_lane_and_its_late_result_is_thrown_away(sums, kind):
    scripts = {"npu": Script(hangs=When(numbers=(2,))), "gpu": Script()}
    with scripted_session(sums, scripts, recovery={"hangTimeout": 100}) as session:
        call = session.run if kind == "run" else lambda feeds: session.submit(feeds).result(10)
        assert call(numbered(1)).lane == "scripted/npu/fp32"
        rescued = call(numbered(2))
        assert belongs_to(rescued, 2)
        assert rescued.lane == "scripted/gpu/fp32"
        scripts["npu"].release.set()
        assert belongs_to(call(numbered(3)), 3)
        assert counts(session) == {"completed": 3}
        assert any("counts as hung" in event.reason for event in session.events)


def test_hang_without_another_lane_is_told_and_others_go_on(sums):
    script = Script(hangs=When(numbers=(1,)))
    with scripted_session(sums, {"npu": script}, recovery={"hangTimeout": 100}) as session:
        session._served.lanes[0].load()
        with pytest.raises(EngineError, match="gave no answer for 100 ms and counts as hung"):
            session.submit(numbered(1)).result(10)
        assert belongs_to(session.submit(numbered(2)).result(10), 2)
        script.release.set()
        assert counts(session) == {"completed": 1, "failed": 1}


def test_hung_call_that_may_still_write_to_its_callers_arrays_is_not_made_again(sums):
    scripts = {"npu": Script(hangs=When(first=1)), "gpu": Script()}
    given_arrays = {name: np.zeros((1, 3), np.float32) for name in ("sum", "difference")}
    with scripted_session(sums, scripts, recovery={"hangTimeout": 100}) as session:
        with pytest.raises(EngineError, match="may still write to the outputs that were given"):
            session.run(numbered(1), given_arrays)
        assert scripts["gpu"].rows == []
        scripts["npu"].release.set()


def test_as_many_hangs_as_there_are_runners_leave_some(sums):
    scripts = {"npu": Script(hangs=When(first=3)), "gpu": Script()}
    with scripted_session(sums, scripts, recovery={"hangTimeout": 50, "holdOff": 1}) as session:
        assert all(belongs_to(session.submit(numbered(n)).result(10), n) for n in range(8))
        scripts["npu"].release.set()
        assert counts(session) == {"completed": 8}


def test_order_of_a_stream_holds_across_switches_and_failures(sums):
    scripts = {"npu": Script(call_ms=1, fails=When(numbers=tuple(range(3, 200, 7)))), "gpu": Script()}
    told = {stream: [] for stream in range(3)}
    with scripted_session(sums, scripts, recovery={"holdOff": 2}) as session:
        futures = []
        for number in range(240):
            stream = number % 3
            futures.append(session.submit(numbered(number), stream=stream))
            futures[-1].add_done_callback(lambda future, s=stream, n=number: told[s].append((n, future.result())))
            if number % 40 == 20:
                session.switch(device="gpu")
            if number % 40 == 39:
                session.switch(device="npu")
        wait_until(lambda: all(future.done() for future in futures))
        found = counts(session)
    assert found == {"completed": 240}
    for stream, results in told.items():
        assert [number for number, _ in results] == list(range(stream, 240, 3))
        assert all(belongs_to(outputs, number) for number, outputs in results)


def test_callback_may_wait_for_other_results_of_the_same_session(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}) as session:
        answers = []
        first = occupied(session, script)
        first.add_done_callback(lambda _: answers.append(session.run(numbered(8))))
        session.submit(numbered(1), stream="other").add_done_callback(
            lambda _: answers.append(session.submit(numbered(9), stream="third").result(10))
        )
        script.release.set()
        wait_until(lambda: len(answers) == 2)
        assert {float(outputs["sum"][0, 0]) for outputs in answers} == {8.25, 9.25}


def test_callback_may_close_the_session(sums):
    session = scripted_session(sums)
    closed = threading.Event()
    session.submit(numbered(1)).add_done_callback(lambda _: (session.close(), closed.set()))
    assert closed.wait(5)
    with pytest.raises(EngineError, match="closed"):
        session.run(numbered(2))


def test_listener_that_raises_loses_no_result(sums, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    with scripted_session(sums, {"npu": Script(fails=ALWAYS)}) as session:
        session._runtime.listen(lambda _: 1 / 0)
        with pytest.raises(EngineError, match="call 1 fails"):
            session.run(numbered(1))
        session._runtime.tell(Event(kind="test", subject="s", reason="r"))
    assert {told.exc_type for told in shown} == {ZeroDivisionError}


def test_interrupt_of_a_call_frees_the_device(sums, monkeypatch):
    with scripted_session(sums) as session:
        compute = session._served.compute
        monkeypatch.setattr(session._served, "compute", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.run(numbered(1))
        monkeypatch.setattr(session._served, "compute", compute)
        assert belongs_to(session.run(numbered(2)), 2)
        assert counts(session) == {"completed": 1, "cancelled": 1}


def test_closing_lets_work_end_and_then_refuses(sums):
    script = Script(call_ms=5)
    session = scripted_session(sums, {"npu": script}, batchTuning={"maxBatchSize": 1})
    futures = [session.submit(numbered(n)) for n in range(20)]
    session.close()
    assert all(belongs_to(future.result(0), n) for n, future in enumerate(futures))
    with pytest.raises(EngineError, match="closed"):
        session.submit(numbered(1))
    assert counts(session) == {"completed": 20}


def test_closing_takes_no_more_requests_while_the_last_ones_end(sums):
    script = Script(hangs=When(first=1))
    session = scripted_session(sums, {"npu": script})
    first = occupied(session, script)
    closing = threading.Thread(target=session.close)
    closing.start()
    wait_until(lambda: session._runtime._leaving)
    with pytest.raises(EngineError, match="closed"):
        session.run(numbered(1))
    script.release.set()
    closing.join(10)
    assert belongs_to(first.result(0), -1)


def test_closing_tells_what_does_not_end_in_time_and_does_not_hang(sums):
    script = Script(hangs=ALWAYS)
    session = scripted_session(sums, {"npu": script})
    futures = [occupied(session, script), *(session.submit(numbered(n)) for n in range(5))]
    running = threading.Thread(target=told_closed, args=(session,))
    running.start()
    wait_until(lambda: session._runtime.queued("sums") == 6)
    begun_s = time.monotonic()
    session.close(drain_s=0.1)
    assert time.monotonic() - begun_s < 4
    for future in futures:
        with pytest.raises(EngineError, match="closed before this request ran"):
            future.result(0)
    running.join(5)
    assert not running.is_alive()
    script.release.set()
    assert counts(session) == {"failed": 7}


def test_two_threads_may_close_at_once(sums):
    script = Script(hangs=When(first=1))
    session = scripted_session(sums, {"npu": script})
    future = occupied(session, script)
    failed = []

    def close():
        try:
            session.close()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    script.release.set()
    for thread in threads:
        thread.join(10)
    assert failed == []
    assert belongs_to(future.result(0), -1)


def test_inline_request_that_is_cut_off_by_closing_is_told(sums):
    script = Script(hangs=ALWAYS)
    session = scripted_session(sums, {"npu": script})
    told = []

    def call():
        with pytest.raises(EngineError) as raised:
            session.run(numbered(1))
        told.append(str(raised.value))

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: script.rows)
    session.close(drain_s=0.05)
    script.release.set()
    thread.join(10)
    assert told == ["the session was closed before this request ran"]


def test_closed_session_leaves_no_thread_and_can_be_collected(sums):
    before = set(threading.enumerate())
    session = scripted_session(sums, {"npu": Script(), "gpu": Script()})
    futures = [session.submit(numbered(n)) for n in range(50)]
    assert all(belongs_to(future.result(10), n) for n, future in enumerate(futures))
    session.close()
    assert set(threading.enumerate()) <= before
    known = weakref.ref(session._runtime), weakref.ref(session._served), weakref.ref(session)
    del session, futures
    gc.collect()
    assert [reference() for reference in known] == [None] * 3


@pytest.mark.parametrize("kind", ["run", "submit"])
def test_finished_request_keeps_nothing_of_its_callers_arrays(sums, kind):
    gc.collect()
    gc.disable()  # what is freed is freed at once, not one day
    try:
        with scripted_session(sums) as session:
            held = []
            for number in range(5):
                feeds = numbered(number)
                known = [weakref.ref(array) for array in feeds.values()]
                if kind == "run":
                    session.run(feeds)
                else:
                    held.append(session.submit(feeds))  # a caller may keep its futures
                    held[-1].result(10)
                del feeds
                wait_until(lambda known=known: all(reference() is None for reference in known), timeout_s=2)
    finally:
        gc.enable()


def test_kept_future_does_not_hold_the_results_that_came_after_it(sums):
    with scripted_session(sums) as session:
        first = session.submit(numbered(0))
        second = session.submit(numbered(1))
        known = weakref.ref(second.result(10)["sum"])
        first.result(10)
        del second
        gc.collect()
        wait_until(lambda: known() is None, timeout_s=2)
