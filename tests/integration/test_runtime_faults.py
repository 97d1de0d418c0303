"""Sessions as programs use them: real engines, processes, asyncio, forks and many threads, while things go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sanderling.api import build
from sanderling.core.errors import DeadlineError, EngineError, GuardError, QueueFullError
from sanderling.run.policy.document import parse_policy
from sanderling.run.session import load
from tests.engines import ALWAYS, Script, When, scripted_session, wait_until
from tests.models import save, sum_and_difference
from tests.requests import belongs_to, numbered


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    build(save(sum_and_difference(), folder / "sums.onnx"), folder / "sums.sdl", precision="fp32", repeats=1)
    return folder / "sums.sdl"


def policy(**document):
    return parse_policy(json.dumps(document))


def fates(session):
    counts, _ = session._runtime.tallies()
    names = ("completed", "failed", "late", "rejected", "cancelled")
    assert counts["requests"] == sum(counts[name] for name in names), counts
    return {name: counts[name] for name in names if counts[name]}


def in_child(function):
    """Run in a forked child, which has seconds for it; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.alarm(20)
            code = function()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_crash_of_a_real_engines_process_costs_no_request(sums):
    with load(sums, policy=policy(devicePriorities=["cpu"], isolation="process"), threads=1) as session:
        results, stop = {}, threading.Event()

        def call(caller):
            number = caller
            while not stop.is_set():
                try:
                    results[number] = session.run(numbered(number))
                except EngineError as error:
                    results[number] = error
                number += 4

        threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
        for thread in threads:
            thread.start()
        worker = session._served.lanes[0]._worker
        for _ in range(3):
            done = len(results)
            wait_until(lambda done=done: len(results) > done + 50)
            os.kill(worker.pid, signal.SIGSEGV)
        done = len(results)
        wait_until(lambda: len(results) > done + 50)
        stop.set()
        for thread in threads:
            thread.join(20)
        failed = [outcome for outcome in results.values() if isinstance(outcome, EngineError)]
        assert len(failed) <= 2 * 3  # the calls that were under way; the only lane failed them twice at most
        assert all("SIGSEGV" in str(error) for error in failed)
        assert all(belongs_to(out, n) for n, out in results.items() if not isinstance(out, EngineError))
        fates(session)


def test_request_that_crashes_its_process_fails_alone(sums):
    with scripted_session(sums, {"npu": Script(crashes=When(values=(5.0,)))}, isolated=True) as session:
        futures = [session.submit(numbered(n)) for n in range(10)]
        for number, future in enumerate(futures):
            if number == 5:
                with pytest.raises(EngineError, match="crashed with SIGSEGV"):
                    future.result(20)
            else:
                assert belongs_to(future.result(20), number)
        assert fates(session) == {"completed": 9, "failed": 1}


def test_crash_is_taken_over_by_another_device(sums):
    scripts = {"npu": Script(crashes=ALWAYS), "gpu": Script()}
    with scripted_session(sums, scripts, isolated=True) as session:
        assert all(belongs_to(session.run(numbered(n)), n) for n in range(5))
        assert session.device == "gpu"


def test_hung_process_is_ended_and_its_request_runs_in_the_next_one(sums):
    rules = policy(devicePriorities=["cpu"], isolation="process", recovery={"hangTimeout": 300})
    with load(sums, policy=rules) as session:
        assert belongs_to(session.run(numbered(1)), 1)
        os.kill(session._served.lanes[0]._worker.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"no answer for (0\.3 s|300 ms)"):
            session.run(numbered(2))
        assert belongs_to(session.run(numbered(3)), 3)


def test_child_of_a_fork_gets_a_clear_error_and_the_parent_goes_on(sums):
    script = Script(hangs=When(first=1))
    with scripted_session(sums, {"npu": script}) as session:
        first = session.submit(numbered(0))
        wait_until(lambda: script.rows)
        waiting = [session.submit(numbered(n)) for n in range(1, 4)]
        stop = threading.Event()

        def hold():  # somebody holds the runtime's lock nearly always
            while not stop.is_set():
                session._runtime.queued("sums")

        holder = threading.Thread(target=hold)
        holder.start()

        def child():
            for call in (session.run, session.submit):
                try:
                    call(numbered(9))
                except EngineError as error:
                    if "before this process was forked; load the package in this process" not in str(error):
                        return 2
                else:
                    return 3
            session.close()
            return 0

        codes = [in_child(child) for _ in range(10)]
        stop.set()
        holder.join(5)
        assert codes == [0] * 10
        script.release.set()
        assert all(belongs_to(future.result(10), n) for n, future in enumerate([first, *waiting]))


def test_child_of_a_fork_can_load_the_package_itself(sums):
    with scripted_session(sums) as session:
        assert belongs_to(session.run(numbered(1)), 1)

        def child():
            with scripted_session(sums) as own:
                return 0 if belongs_to(own.submit(numbered(7)).result(5), 7) else 4

        assert in_child(child) == 0
        assert belongs_to(session.run(numbered(2)), 2)


def test_threads_and_coroutines_share_a_session(sums):
    scripts = {"npu": Script(call_ms=0.5, fails=When(values=(13.0,))), "gpu": Script(call_ms=0.5)}
    wrong = []

    def check(outputs, number):
        if not belongs_to(outputs, number):
            wrong.append(number)

    async def many(session, begin):
        async def one(number):
            check(await session.run_async(numbered(number), priority=number % 3), number)

        await asyncio.gather(*(one(begin + step) for step in range(60)))

    with scripted_session(sums, scripts, recovery={"holdOff": 5}) as session:

        def call(begin):
            for step in range(60):
                check(session.run(numbered(begin + step)), begin + step)

        threads = [threading.Thread(target=call, args=(1000 * n,)) for n in range(1, 4)]
        threads += [threading.Thread(target=lambda n=n: asyncio.run(many(session, 1000 * n))) for n in range(4, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert fates(session) == {"completed": 360}


def test_coroutine_that_is_cancelled_leaves_the_queue_and_the_loop_goes_on(sums):
    script = Script(hangs=When(first=1))

    async def main(session):
        first = asyncio.create_task(session.run_async(numbered(0)))
        while not script.rows:
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(session.run_async(numbered(n))) for n in range(1, 6)]
        await asyncio.sleep(0.01)
        tasks[2].cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.run_async(numbered(9)), 0.02)
        script.release.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert isinstance(results.pop(3), asyncio.CancelledError)
        assert all(belongs_to(out, n) for out, n in zip(results, (0, 1, 2, 4, 5), strict=True))

    with scripted_session(sums, {"npu": script}) as session:
        asyncio.run(main(session))
        assert fates(session) == {"completed": 5, "cancelled": 2}


def test_full_queue_does_not_block_the_event_loop(sums):
    script = Script(hangs=When(first=1))

    async def main(session):
        tasks = [asyncio.create_task(session.run_async(numbered(n))) for n in range(40)]
        longest_s, last_s = 0.0, time.monotonic()
        for _ in range(40):
            await asyncio.sleep(0.005)
            longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
        with pytest.raises(DeadlineError):
            await session.run_async(numbered(99), deadline_ms=30)
        script.release.set()
        results = await asyncio.gather(*tasks)
        assert all(belongs_to(out, n) for n, out in enumerate(results))
        return longest_s

    with scripted_session(sums, {"npu": script}, scheduling={"queueLimit": 2, "whenFull": "wait"}) as session:
        assert asyncio.run(main(session)) < 0.5
        assert fates(session) == {"completed": 40, "late": 1}


def test_full_queue_is_told_to_a_coroutine_where_the_policy_rejects(sums):
    script = Script(hangs=When(first=1))

    async def main(session):
        tasks = [asyncio.create_task(session.run_async(numbered(n))) for n in range(6)]
        await asyncio.sleep(0.05)
        script.release.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with scripted_session(sums, {"npu": script}, scheduling={"queueLimit": 3}) as session:
        results = asyncio.run(main(session))
        refused = [result for result in results if isinstance(result, QueueFullError)]
        assert fates(session) == {"completed": 6 - len(refused), "rejected": len(refused)}
        assert refused


def test_switching_under_load_loses_and_doubles_nothing(sums):
    scripts = {"npu": Script(call_ms=1), "gpu": Script(call_ms=1), "gpu:1": Script(call_ms=1)}
    with scripted_session(sums, scripts, batchTuning={"maxBatchSize": 4}) as session:
        stop, told, wrong = threading.Event(), [], []

        def call(caller):
            number = caller
            while not stop.is_set():
                outputs = session.run(numbered(number))
                (told if belongs_to(outputs, number) else wrong).append(number)
                number += 8

        threads = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
        for thread in threads:
            thread.start()
        for step in range(150):
            session.switch(device=("npu", "gpu", "gpu:1")[step % 3])
            time.sleep(0.004)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert wrong == []
        assert len(told) == len(set(told))
        assert fates(session) == {"completed": len(told)}
        assert sum(sum(script.rows) for script in scripts.values()) == len(told)


def test_device_that_vanishes_and_comes_back_costs_no_request(sums):
    scripts = {"npu": Script(), "gpu": Script()}
    with scripted_session(sums, scripts, recovery={"holdOff": 20}) as session:
        lanes = []
        for number in range(300):
            scripts["npu"].gone = 100 <= number < 200
            outputs = session.run(numbered(number))
            assert belongs_to(outputs, number)
            lanes.append(outputs.lane)
            time.sleep(0.0005)
        wait_until(lambda: session.run(numbered(1)).lane == "scripted/npu/fp32")
        assert set(lanes[100:200]) == {"scripted/gpu/fp32"}


def test_result_that_is_not_a_number_is_told_to_its_own_caller_only(sums):
    script = Script(spoils=When(values=(5.0,)))
    with scripted_session(sums, {"npu": script}, guard={"checkFinite": True, "onTrip": "raise"}) as session:
        futures = [session.submit(numbered(n)) for n in range(8)]
        for number, future in enumerate(futures):
            if number == 5:
                with pytest.raises(GuardError, match="not finite"):
                    future.result(10)
            else:
                assert belongs_to(future.result(10), number)
        assert fates(session) == {"completed": 7, "failed": 1}


def test_hundred_sessions_leave_no_threads_processes_or_descriptors(sums):
    import psutil

    process = psutil.Process()
    with scripted_session(sums) as session:
        session.submit(numbered(1)).result(10)
    threads, descriptors, others = threading.active_count(), process.num_fds(), set(process.children())
    for number in range(100):
        with scripted_session(sums, {"npu": Script(), "gpu": Script()}) as session:
            futures = [session.submit(numbered(n)) for n in range(4)]
            assert belongs_to(session.run(numbered(number)), number)
            assert all(belongs_to(future.result(10), n) for n, future in enumerate(futures))
    assert threading.active_count() == threads
    assert process.num_fds() <= descriptors
    assert set(process.children()) <= others


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm")
def test_sessions_in_processes_leave_nothing_behind(sums):
    import psutil

    process = psutil.Process()
    rules = policy(devicePriorities=["cpu"], isolation="process")
    with load(sums, policy=rules) as session:
        session.run(numbered(1))
    descriptors, shared, others = process.num_fds(), set(Path("/dev/shm").iterdir()), set(process.children())
    for number in range(4):
        with load(sums, policy=rules) as session:
            assert belongs_to(session.run(numbered(number)), number)
            if number % 2:
                os.kill(session._served.lanes[0]._worker.pid, signal.SIGKILL)
    assert process.num_fds() <= descriptors
    assert set(process.children()) <= others
    assert set(Path("/dev/shm").iterdir()) <= shared


def test_array_of_a_result_stays_what_it_was_while_others_run(sums):
    with scripted_session(sums, {"npu": Script()}, batchTuning={"maxBatchSize": 8}) as session:
        kept = [(n, session.submit(numbered(n, 2))) for n in range(64)]
        outputs = [(n, future.result(10)) for n, future in kept]
        for number in range(200):
            session.run(numbered(number))
        assert all(belongs_to(out, n, 2) for n, out in outputs)
        assert np.isfinite(outputs[0][1]["sum"]).all()
