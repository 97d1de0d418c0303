"""What a session's callers get when results fail their checks; the variant ``int8`` is one that goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sanderling.core.arrays import read_npz
from sanderling.core.errors import GuardError, ModelError
from sanderling.model.package import Package, write_manifest
from sanderling.run.guard.reproducer import read_reproducer
from sanderling.run.policy.document import Policy, parse_policy
from sanderling.run.session import Session, load
from tests.models import chain
from tests.unit.run.guard.packages import package_of

GOOD = np.array([[1.0, 4.0, 9.0, 16.0]], np.float32)
BAD = -GOOD  # NaN in the variant int8
ROOTS = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)


@pytest.fixture
def roots(tmp_path: Path) -> Package:
    """``x`` (N, 4) to the root of |x|; its INT8 variant takes the root of x."""
    graphs = {
        "fp32": chain(["Abs", "Sqrt"], shape=["N", 4]),
        "int8": chain(["Identity", "Sqrt"], shape=["N", 4]),
    }
    return package_of(tmp_path / "roots.sdl", graphs, [{"x": GOOD}, {"x": 2 * GOOD}], name="roots")


def opened(package: Package, *, ladder: tuple[str, ...] = ("int8",), others: dict | None = None, **guard) -> Session:
    policy = {"precisionLadder": ladder, "guard": guard, "batchTuning": {"maxBatchSize": 4}, **(others or {})}
    return load(package.path, policy=parse_policy(json.dumps(policy)), threads=1)


def kinds(session: Session) -> list[str]:
    return [event.kind for event in session.events]


def trip(session: Session, times: int = 1) -> list:
    return [session.run(BAD) for _ in range(times)]


def test_good_results_pass_unchanged(roots):
    with opened(roots) as session:
        outputs = session.run(GOOD)
        assert (outputs.variant, outputs.stale, outputs.tripped) == ("int8", False, "")
        np.testing.assert_array_equal(outputs["y"], ROOTS)
        assert session.statistics().guard == {}


def test_nan_is_run_again_in_fp32_and_told(roots):
    with opened(roots) as session:
        outputs = session.run(BAD)
        np.testing.assert_array_equal(outputs["y"], ROOTS)
        assert outputs.variant == "fp32"
        assert "not finite" in outputs.tripped
        assert session.statistics().guard == {"trips": 1, "retries": 1}
        (event,) = (event for event in session.events if event.kind == "guard-tripped")
    assert event.subject == "onnxruntime/cpu/int8"
    assert "retry-fp32" in event.reason


def test_guard_without_a_ladder_still_has_fp32_to_run_again(roots):
    write_manifest(roots.path, roots.manifest.model_copy(update={"chosen": "int8"}))
    with load(roots.path, policy=Policy()) as session:
        assert session.lanes == ("onnxruntime/cpu/int8", "onnxruntime/cpu/fp32")
        np.testing.assert_array_equal(session.run(BAD)["y"], ROOTS)


def test_only_variant_that_was_asked_for_has_nothing_to_run_instead(roots):
    with (
        load(roots.path, policy=Policy(), variant="int8") as session,
        pytest.raises(GuardError, match="FP32 is not among the ways to run: onnxruntime/cpu/int8"),
    ):
        session.run(BAD)


def test_fp32_that_was_switched_to_once_may_run_instead(roots):
    with load(roots.path, policy=Policy(), variant="int8") as session:
        session.switch(precision="fp32")
        session.switch(precision="int8")
        np.testing.assert_array_equal(session.run(BAD)["y"], ROOTS)


def test_trip_raises_where_the_policy_says_so(roots):
    with opened(roots, onTrip="raise") as session:
        with pytest.raises(GuardError, match=r"'roots' failed its check: not-finite: y \(4 of 4 values"):
            session.run(BAD)
        np.testing.assert_array_equal(session.run(GOOD)["y"], ROOTS)


def test_last_good_result_is_a_copy_and_marked_stale(roots):
    with opened(roots, onTrip="last-good") as session:
        first = session.run(GOOD)
        first["y"][:] = 7  # a caller may write to its own result
        stale = session.run(BAD)
        assert stale.stale
        np.testing.assert_array_equal(stale["y"], ROOTS)
        stale["y"][:] = 8
        np.testing.assert_array_equal(session.run(BAD)["y"], ROOTS)
        assert session.statistics().guard == {"trips": 2, "stale": 2}


def test_last_good_result_is_only_given_to_its_own_stream(roots):
    with opened(roots, onTrip="last-good", breakerTrips=9) as session:
        session.submit(GOOD, stream="front camera").result(10)
        other = session.submit(BAD, stream="rear camera").result(10)
        assert (other.variant, other.stale) == ("fp32", False)
        assert session.submit(BAD, stream="front camera").result(10).stale


def test_last_good_result_is_only_given_for_inputs_of_its_shape(roots):
    with opened(roots, onTrip="last-good", breakerTrips=9) as session:
        session.run(GOOD)
        two = session.run(np.repeat(BAD, 2, axis=0))
        assert (two.variant, two.stale, two["y"].shape) == ("fp32", False, (2, 4))
        session.run(np.repeat(GOOD, 2, axis=0))
        assert session.run(np.repeat(BAD, 2, axis=0))["y"].shape == (2, 4)
        assert session.run(BAD)["y"].shape == (1, 4)


def test_nothing_good_yet_is_run_again_in_fp32(roots):
    with opened(roots, onTrip="last-good") as session:
        outputs = session.run(BAD)
        assert (outputs.variant, outputs.stale) == ("fp32", False)


def test_range_and_distribution_are_checked_too(roots):
    far = np.full((1, 4), 1e6, np.float32)
    for guard in ({"ranges": {"y": [0, 5]}}, {"distribution": 4.0}):
        with opened(roots, checkFinite=False, onTrip="raise", **guard) as session:
            session.run(GOOD)
            with pytest.raises(GuardError, match="y"):
                session.run(far)


def test_fp32_that_fails_the_same_check_is_an_error_that_says_both(roots):
    with (
        opened(roots, checkFinite=False, ranges={"y": [0, 5]}) as session,
        pytest.raises(GuardError, match=r"outside 0 to 5.*and FP32's does so, too"),
    ):
        session.run(np.full((1, 4), 100, np.float32))


def test_only_faulty_rows_of_a_batch_trip(roots):
    with opened(roots, onTrip="raise", breakerTrips=99) as session:
        session.run(GOOD)
        for _ in range(20):
            futures = [session.submit(BAD if index % 4 == 2 else (index + 1) * GOOD) for index in range(8)]
            for index, future in enumerate(futures):
                if index % 4 == 2:
                    assert isinstance(future.exception(10), GuardError)
                else:
                    np.testing.assert_allclose(future.result(10)["y"], np.sqrt((index + 1) * GOOD), rtol=1e-6)
        statistics = session.statistics()
    assert statistics.guard["trips"] == 40
    assert statistics.batches < statistics.requests["requests"], "no batch was ever made"


def test_caller_s_own_arrays_get_what_the_guard_decides(roots):
    given = {"y": np.empty((1, 4), np.float32)}
    for guard, expected in (({}, ROOTS), ({"onTrip": "last-good"}, np.sqrt(2 * GOOD))):
        with opened(roots, **guard) as session:
            session.run(2 * GOOD)
            before = session.copied_bytes
            outputs = session.run({"x": BAD}, outputs=given)
            assert outputs["y"] is given["y"]
            np.testing.assert_array_equal(given["y"], expected)
            assert session.copied_bytes - before == given["y"].nbytes


def test_good_result_reaches_the_caller_s_own_array_without_a_copy(roots):
    given = {"y": np.empty((1, 4), np.float32)}
    with opened(roots) as session:
        assert session.run({"x": GOOD}, outputs=given)["y"] is given["y"]
        assert session.copied_bytes == 0


def test_retry_of_a_fixed_batch_is_filled_up(tmp_path):
    graphs = {"fp32": chain(["Abs", "Sqrt"], shape=[4, 4]), "int8": chain(["Identity", "Sqrt"], shape=[4, 4])}
    four = np.repeat(GOOD, 4, axis=0)
    package = package_of(tmp_path / "fixed.sdl", graphs, [{"x": four}])
    with opened(package, others={"batchTuning": {"profiles": [4]}}) as session:
        outputs = session.run(BAD)
        assert outputs.variant == "fp32"
        np.testing.assert_array_equal(outputs["y"], ROOTS)


def test_breaker_moves_to_fp32_until_the_session_is_switched(roots):
    with opened(roots, breakerTrips=3) as session:
        trip(session, 2)
        assert session.variant.id == "int8"
        trip(session)
        assert session.variant.id == "fp32"
        assert session.run(GOOD).variant == "fp32"
        assert session.run(BAD).tripped == ""
        assert kinds(session).count("breaker-opened") == 1
        session.switch()
        assert session.run(GOOD).variant == "int8"
        trip(session, 3)
        assert session.variant.id == "fp32", "a breaker that was reset opens again"
        assert kinds(session).count("breaker-opened") == 2


def test_trips_outside_the_window_do_not_open_the_breaker(roots):
    with opened(roots, breakerTrips=2, breakerWindow=40) as session:
        for _ in range(4):
            trip(session)
            time.sleep(0.06)
        assert session.variant.id == "int8"


def test_shadow_runs_find_a_variant_that_is_wrong_without_a_trace(tmp_path):
    graphs = {"fp32": chain(["Abs"], shape=["N", 4]), "int8": chain(["Relu"], shape=["N", 4])}
    package = package_of(tmp_path / "abs.sdl", graphs, [{"x": GOOD}])
    with opened(package, shadowShare=1.0, breakerTrips=2) as session:
        session.run(GOOD)
        assert not session.run(BAD)["y"].any()  # wrong, and given: a shadow comes later
        session.run(BAD)
        wait_for(lambda: session.variant.id == "fp32")
        wait_for(lambda: session.statistics().guard["shadows"] == 3)
        assert session.statistics().guard["trips"] == 2
        reasons = [event.reason for event in session.events if event.kind == "guard-tripped"]
    assert "relative error" in reasons[0]
    assert not any(thread.name == "sanderling-shadow" for thread in threading.enumerate())


def test_shadow_leaves_the_caller_s_arrays_alone(roots):
    """The feeds may change as soon as the call has returned."""
    with opened(roots, shadowShare=1.0, breakerTrips=1) as session:
        feeds = GOOD.copy()
        for _ in range(10):
            feeds[:] = GOOD
            session.run({"x": feeds})
            feeds[:] = 1e9
        wait_for(lambda: sum(session.statistics().guard.get(kind, 0) for kind in ("shadows", "shadows left out")) == 10)
        assert "trips" not in session.statistics().guard


def test_inner_tensor_out_of_range_trips_where_outputs_look_right(tmp_path):
    graphs = {name: chain(["Exp", "Sigmoid"], shape=["N", 4]) for name in ("fp32", "int8")}
    package = package_of(tmp_path / "inner.sdl", graphs, [{"x": np.zeros((1, 4), np.float32)}])
    with opened(package, innerTensors=["t1"], onTrip="raise") as session:
        outputs = session.run(np.zeros((1, 4), np.float32))
        assert outputs.keys() == {"y"}
        with pytest.raises(GuardError, match=r"inner: t1 \(.* out of range"):
            session.run(np.full((1, 4), 20, np.float32))


def test_only_row_with_the_wrong_inner_tensor_trips(tmp_path):
    graphs = {name: chain(["Exp", "Sigmoid"], shape=["N", 4]) for name in ("fp32", "int8")}
    package = package_of(tmp_path / "inner.sdl", graphs, [{"x": np.zeros((1, 4), np.float32)}])
    with opened(package, innerTensors=["t1"], onTrip="raise", breakerTrips=99) as session:
        session.run(np.zeros((1, 4), np.float32))
        futures = [session.submit(np.full((1, 4), 20.0 * (index == 3), np.float32)) for index in range(8)]
        failed = [index for index, future in enumerate(futures) if future.exception(10) is not None]
    assert failed == [3]


def test_engine_that_does_not_take_the_watched_graph_is_passed_over_with_an_event(tmp_path, monkeypatch):
    from sanderling.run.engines import engine

    graphs = {name: chain(["Exp", "Sigmoid"], shape=["N", 4]) for name in ("fp32", "int8")}
    package = package_of(tmp_path / "inner.sdl", graphs, [{"x": np.zeros((1, 4), np.float32)}])
    onnxruntime = type(engine("onnxruntime"))
    whole = onnxruntime.load

    def refusing(self, model, options):
        made = whole(self, model, options)
        if len(made.outputs) > 1 and not refused:
            refused.append(model)
            raise ModelError("onnxruntime does not take the graph: no kernel for ReduceMin")
        return made

    refused: list = []
    monkeypatch.setattr(onnxruntime, "load", refusing)
    with opened(package, innerTensors=["t1"]) as session:
        assert session.run(np.zeros((1, 4), np.float32)).keys() == {"y"}
        (event,) = (event for event in session.events if event.kind == "load-failed")
    assert event.subject == "onnxruntime/cpu/int8"
    assert "ReduceMin" in event.reason


def test_openvino_watches_inner_tensors_too(tmp_path):
    from sanderling.run.engines import known_engine

    if not known_engine("openvino").availability().installed:
        pytest.skip("openvino is not installed")
    graphs = {name: chain(["Exp", "Sigmoid"], shape=["N", 4]) for name in ("fp32", "int8")}
    package = package_of(
        tmp_path / "inner.sdl", graphs, [{"x": np.zeros((1, 4), np.float32)}], engines=("openvino", "onnxruntime")
    )
    with opened(package, innerTensors=["t1"], onTrip="raise") as session:
        assert session.run(np.zeros((1, 4), np.float32)).lane == "openvino/cpu/int8"
        with pytest.raises(GuardError, match="t1"):
            session.run(np.full((1, 4), 20, np.float32))


def test_commands_of_a_reproducer_reproduce_the_trip(roots, tmp_path):
    with opened(roots, reproducers=str(tmp_path / "trips"), breakerTrips=9) as session:
        session.run(BAD)
        session.run(GOOD)
    (folder,) = (tmp_path / "trips").iterdir()
    kept = read_reproducer(folder)
    assert (kept.trip.kind, kept.trip.variant, kept.trip.engine) == ("not-finite", "int8", "onnxruntime")
    np.testing.assert_array_equal(kept.feeds["x"], BAD)
    command = str(Path(sys.executable).with_name("sanderling"))
    for line in kept.trip.commands.values():
        subprocess.run(line.replace("sanderling", command, 1), shell=True, cwd=folder, timeout=60, check=True)
    np.testing.assert_array_equal(read_npz(folder / "again.npz")["y"], kept.outputs["y"])
    np.testing.assert_array_equal(read_npz(folder / "fp32.npz")["y"], ROOTS)


def test_guard_works_on_engines_in_a_process_of_their_own(roots):
    with opened(roots, others={"isolation": "process"}) as session:
        np.testing.assert_array_equal(session.run(GOOD)["y"], ROOTS)
        outputs = session.run(BAD)
        assert outputs.variant == "fp32"
        np.testing.assert_array_equal(outputs["y"], ROOTS)


def wait_for(holds, timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)
