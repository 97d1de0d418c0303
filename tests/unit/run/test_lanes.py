from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from sanderling.core.errors import EngineError, UnavailableError
from sanderling.model.package import Package
from sanderling.run.engines.base import DeviceKind, EngineOptions
from sanderling.run.lanes import Lane, LanePlan, rank_lanes
from sanderling.run.placing import Place
from sanderling.run.policy.document import parse_policy
from tests.engines import ALWAYS, Script, When, scripted_plan, wait_until
from tests.requests import belongs_to, numbered


def lane(package, script):
    opened = Package.open(package)
    return Lane(opened, scripted_plan(opened, "npu", script, isolated=False))


def isolated_lane(package, **settings):
    opened = Package.open(package)
    place = Place("onnxruntime", opened.variant("fp32"), EngineOptions(threads=1))
    return Lane(opened, LanePlan(place, "cpu", DeviceKind.CPU), isolated=True, **settings)


def in_threads(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def test_lane_is_loaded_once_however_many_calls_need_it_first(sums):
    script = Script(load_ms=50)
    used = lane(sums, script)
    results = {}
    threads = in_threads(*(lambda n=n: results.setdefault(n, used.run(numbered(n))) for n in range(8)))
    for thread in threads:
        thread.join(10)
    assert script.loads == 1
    assert all(belongs_to(results[number], number) for number in range(8))
    used.close()
    assert script.closed == 1


def test_load_that_fails_is_tried_again_by_the_next_call(sums):
    used = lane(sums, Script(load_fails=When(numbers=(1,))))
    with pytest.raises(EngineError, match="load 1 fails"):
        used.run(numbered(1))
    assert not used.loaded
    assert belongs_to(used.run(numbered(2)), 2)
    used.close()


def test_released_lane_loads_again_when_it_is_needed(sums):
    script = Script()
    used = lane(sums, script)
    used.run(numbered(1))
    assert used.release()
    assert not used.loaded
    assert not used.release()
    assert belongs_to(used.run(numbered(2)), 2)
    assert (script.loads, script.closed) == (2, 1)
    used.close()


def test_lane_is_not_released_under_a_call(sums):
    script = Script(hangs=ALWAYS)
    used = lane(sums, script)
    (thread,) = in_threads(lambda: used.run(numbered(1)))
    wait_until(lambda: script.rows)
    assert not used.release()
    script.release.set()
    thread.join(10)
    assert used.release()
    used.close()


def test_closing_waits_for_a_call_and_no_longer_than_it_may(sums):
    script = Script(hangs=ALWAYS)
    used = lane(sums, script)
    (thread,) = in_threads(lambda: used.run(numbered(1)))
    wait_until(lambda: script.rows)
    begun_s = time.monotonic()
    used.close(timeout_s=0.1)
    assert time.monotonic() - begun_s < 2
    assert script.closed == 0  # the call keeps its engine
    with pytest.raises(EngineError, match="closed"):
        used.run(numbered(2))
    script.release.set()
    thread.join(10)


def test_closing_does_not_wait_for_a_load_that_hangs(sums):
    script = Script(load_ms=1500)
    used = lane(sums, script)
    told = []

    def call():
        try:
            used.run(numbered(1))
        except EngineError as error:
            told.append(str(error))

    (thread,) = in_threads(call)
    wait_until(lambda: script.loads)
    begun_s = time.monotonic()
    used.close(timeout_s=0.1)
    assert time.monotonic() - begun_s < 1
    thread.join(10)
    assert told == ["the session is closed; load the package again"]
    assert script.closed == 1  # what was loaded too late is given back


def test_crashed_process_is_started_again_by_the_next_call(sums):
    used = isolated_lane(sums)
    assert belongs_to(used.run(numbered(1)), 1)
    first = used._worker.pid
    os.kill(first, signal.SIGSEGV)
    wait_until(lambda: not used.loaded)
    assert belongs_to(used.run(numbered(2)), 2)
    assert used._worker.pid != first
    used.close()
    assert used._worker.pid is None


def test_calls_that_waited_behind_a_crash_are_made_in_the_next_process(sums):
    used = isolated_lane(sums)
    executable = used.load()
    os.kill(used._worker.pid, signal.SIGSTOP)  # the call that is under way gives no answer
    results, failed = [], []

    def call(number):
        try:
            results.append((number, used.run(numbered(number))))
        except EngineError as error:
            failed.append(str(error))

    threads = in_threads(*(lambda n=n: call(n) for n in range(4)))
    wait_until(lambda: used._calls == 4)
    time.sleep(0.1)
    os.kill(used._worker.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert failed == ["the engine's process crashed with SIGKILL"]  # the one that it had begun
    assert len(results) == 3
    assert all(belongs_to(outputs, number) for number, outputs in results)
    assert not executable.alive
    used.close()


def test_process_that_gives_no_answer_is_ended_after_the_time_of_a_hang(sums):
    used = isolated_lane(sums, timeout_s=0.2)
    used.run(numbered(1))
    pid = used._worker.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"no answer for 0\.2 s"):
        used.run(numbered(2))
    assert belongs_to(used.run(numbered(3)), 3)
    used.close()


def test_closing_ends_a_process_that_gives_no_answer(sums):
    used = isolated_lane(sums)
    used.run(numbered(1))
    os.kill(used._worker.pid, signal.SIGSTOP)
    told = []

    def call():
        try:
            used.run(numbered(2))
        except EngineError as error:
            told.append(str(error))

    (thread,) = in_threads(call)
    wait_until(lambda: used._calls)
    begun_s = time.monotonic()
    used.close(timeout_s=0.1)
    assert time.monotonic() - begun_s < 5
    thread.join(10)
    assert len(told) == 1
    assert used._worker.pid is None


def test_closing_while_calls_wait_for_a_load_leaves_no_process(sums):
    used = isolated_lane(sums)
    told = []

    def call():
        try:
            used.run(numbered(1))
        except EngineError as error:
            told.append(str(error))

    threads = in_threads(*[call] * 4)
    wait_until(lambda: used._worker.pid is not None)
    os.kill(used._worker.pid, signal.SIGSTOP)
    used.close(timeout_s=0.1)
    for thread in threads:
        thread.join(10)
    assert len(told) == 4
    assert used._worker.pid is None


def test_results_can_be_written_to_after_the_lane_is_closed(sums):
    used = isolated_lane(sums)
    outputs = used.run(numbered(5))
    used.close()
    assert belongs_to(outputs, 5)
    outputs["sum"][:] = np.nan


def test_policy_that_names_only_devices_that_are_not_here_is_refused_with_those_that_are(sums):
    policy = parse_policy('{"devicePriorities": ["NPU:7", "dsp"]}')
    says = r"none of the policy's devices \(npu:7, dsp\) is here: available are .*cpu"
    with pytest.raises(UnavailableError, match=says):
        rank_lanes(Package.open(sums), policy)


def test_device_that_is_not_here_is_an_event_where_another_one_is(sums):
    lanes, events = rank_lanes(Package.open(sums), parse_policy('{"devicePriorities": ["npu:7", "cpu"]}'))
    assert {lane.device for lane in lanes} == {"cpu"}
    assert [(event.kind, event.subject) for event in events] == [("device-missing", "npu:7")]
