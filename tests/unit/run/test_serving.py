from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import EngineError
from sanderling.model.package import Package
from sanderling.run.batches import Rows, TensorPool
from sanderling.run.lanes import Lane
from sanderling.run.serving import ServedPackage
from sanderling.run.tickets import Call
from tests.engines import ALWAYS, Script, scripted_plan
from tests.requests import belongs_to, numbered


def served(package, script, *, profiles=()):
    opened = Package.open(package)
    lane = Lane(opened, scripted_plan(opened, "npu", script, isolated=False))
    rows = Rows(opened.manifest.inputs, opened.manifest.outputs, profiles=profiles)
    return ServedPackage("sums", opened, [lane], rows, TensorPool(2))


def test_requests_of_one_call_each_get_their_own_rows(sums):
    script = Script()
    results = served(sums, script).compute(0, [Call(numbered(n, n), n) for n in (1, 3, 2)], 6)
    assert script.rows == [6]
    assert all(belongs_to(outputs, n, n) for outputs, n in zip(results, (1, 3, 2), strict=True))
    assert {outputs.batch_rows for outputs in results} == {6}


def test_request_that_is_alone_runs_on_its_own_arrays(sums):
    serving = served(sums, Script())
    (outputs,) = serving.compute(0, [Call(numbered(4, 2), 2)], 2)
    assert belongs_to(outputs, 4, 2)
    assert serving.copied_bytes == 0
    assert serving.pool.held_bytes == 0


def test_fixed_calls_are_filled_up_and_the_filling_is_nobodys(fixed_sums):
    script = Script()
    results = served(fixed_sums, script, profiles=(4,)).compute(0, [Call(numbered(7), 1), Call(numbered(8, 2), 2)], 4)
    assert script.rows == [4]
    assert belongs_to(results[0], 7)
    assert belongs_to(results[1], 8, 2)


def test_callers_own_arrays_hold_their_rows(sums):
    given = {"sum": np.zeros((1, 3), np.float32), "difference": np.zeros((1, 3), np.float32)}
    first, second = served(sums, Script()).compute(0, [Call(numbered(1), 1, given), Call(numbered(2), 1)], 2)
    assert first["sum"] is given["sum"]
    assert belongs_to(given, 1)
    assert belongs_to(second, 2)


def test_buffers_are_given_back_when_a_call_fails(sums):
    serving = served(sums, Script(fails=ALWAYS))
    with pytest.raises(EngineError, match="call 1 fails"):
        serving.compute(0, [Call(numbered(1), 1), Call(numbered(2), 1)], 2)
    assert serving.pool.held_bytes == 2 * 2 * 3 * 4


def test_result_of_one_caller_may_be_changed_without_another_ones_seeing_it(sums):
    first, second = served(sums, Script()).compute(0, [Call(numbered(1), 1), Call(numbered(2), 1)], 2)
    first["sum"][:] = -1
    first["difference"][:] = -1
    assert belongs_to(second, 2)
