import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.run.dispatcher import Request
from sanderling.twin.contenders import contender
from sanderling.twin.simulate import Contender, Outcome, play
from sanderling.twin.summary import summarize
from sanderling.twin.traces import read_csv, specified
from tests.unit.twin.cases import CONTENDERS, OVERLOAD, table

BASELINES_ON_BOTH = [name for name in CONTENDERS if "device=gpu" not in name]


class Watched:
    """Passes everything on, and holds the twin to its word."""

    def __init__(self, inner):
        self.inner = inner
        self.last_ms = 0.0
        self.started: list[int] = []
        self.ended: list[int] = []

    def at(self, now_ms):
        assert now_ms >= self.last_ms, "time ran back"
        self.last_ms = now_ms

    @property
    def waiting(self):
        return self.inner.waiting

    @property
    def dropped(self):
        return self.inner.dropped

    @property
    def switches(self):
        return self.inner.switches

    def submit(self, request: Request, now_ms):
        self.at(now_ms)
        return self.inner.submit(request, now_ms)

    def next(self, now_ms):
        self.at(now_ms)
        dispatch = self.inner.next(now_ms)
        if dispatch is not None:
            self.started += [request.payload for request in dispatch.requests]
        return dispatch

    def wake_ms(self):
        return self.inner.wake_ms()

    def complete(self, dispatch, now_ms):
        self.at(now_ms)
        self.ended += [request.payload for request in dispatch.requests]
        self.inner.complete(dispatch, now_ms)

    def sense(self, device, temperature_c, now_ms):
        self.at(now_ms)
        self.inner.sense(device, temperature_c, now_ms)


def played(name, *, seed=0, minutes=0.1, text=OVERLOAD, **changes):
    found, trace = table(**changes), specified(text, minutes=minutes, seed=seed)
    return play(contender(name, trace.models, found), trace, found, seed=seed)


@pytest.mark.parametrize("name", BASELINES_ON_BOTH)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_request_ends_exactly_once_and_time_never_runs_back(name, seed):
    found, trace = table(), specified(OVERLOAD, minutes=0.05, seed=seed)
    made = contender(name, trace.models, found)
    watched = Watched(made.scheduler)
    result = play(Contender(made.name, watched, made.lanes), trace, found, seed=seed)
    done = np.flatnonzero(result.outcome == Outcome.DONE)
    assert sorted(watched.started) == sorted(watched.ended) == done.tolist()
    assert set(result.outcome.tolist()) <= set(Outcome)
    assert (result.end_ms >= trace.time_ms).all()
    assert ((result.device >= 0) == (result.outcome == Outcome.DONE)).all()


@pytest.mark.parametrize("name", BASELINES_ON_BOTH)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_seed_plays_the_same_again(name, seed):
    first, second = (played(name, seed=seed, minutes=0.03) for _ in range(2))
    for field in ("outcome", "end_ms", "device", "rows", "temperature_c", "power_w"):
        assert np.array_equal(getattr(first, field), getattr(second, field))
    assert first.switches == second.switches


@pytest.mark.parametrize("name", BASELINES_ON_BOTH)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_energy_lies_between_idle_and_busy_all_the_time(name, seed):
    result = played(name, seed=seed, minutes=0.05)
    found, seconds = table(), result.tick_ms[-1] / 1e3
    energy_j = summarize(result).energy_j
    idle = sum(found.device(device).idle_w for device in result.devices) * seconds
    busy = sum(found.device(device).power_w for device in result.devices) * seconds
    assert idle < energy_j < busy
    assert (result.busy_share <= 1).all()


def test_a_lone_request_takes_exactly_the_tables_latency(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time_ms,model,rows\n5,b,1\n100,b,3\n")
    trace, found = read_csv(path), table()
    result = play(contender("default", trace.models, found), trace, found)
    assert (result.end_ms - trace.time_ms).tolist() == pytest.approx([9, 27])


def test_jitter_keeps_the_mean_and_has_the_tables_spread():
    result = played("baseline:fixed", text="camera:a@20fps", minutes=5, devices={})
    latency_ms = result.end_ms - result.trace.time_ms
    assert latency_ms.mean() == pytest.approx(6, rel=0.01)
    assert latency_ms.std() == pytest.approx(0.6, rel=0.1)


def test_a_device_of_capacity_two_runs_two_calls_at_once():
    models = {"c": {"cpu": {"latency_ms": {"1": 30}}}}
    devices = {"cpu": {"capacity": 2}}
    result = played("baseline:fixed", text="camera:c@30fps×2", minutes=0.2, models=models, devices=devices)
    assert np.percentile(result.end_ms - result.trace.time_ms, 99) == pytest.approx(30)


def test_a_throttled_device_takes_longer():
    devices = {"npu": {"power_w": 4.0, "thermal": {"throttle_c": 26.0, "slowdown": 2.0}}, "cpu": {}}
    result = played("default", text="camera:b@20fps", minutes=0.2, models={"b": table().models["b"]}, devices=devices)
    latency_ms = result.end_ms - result.trace.time_ms
    assert latency_ms[0] == pytest.approx(9)
    assert latency_ms[-1] == pytest.approx(18)


def test_heat_moves_a_model_away_and_back_with_the_temperatures_as_reasons():
    devices = {"npu": {"power_w": 4.0, "thermal": {"tau_s": 4.0, "r_c_per_w": 16.0}}, "cpu": {}}
    result = played("article", text="camera:b@100fps", minutes=1, models={"b": table().models["b"]}, devices=devices)
    away, back = result.switches[:2]
    assert (away.source, away.target) == ("npu", "cpu")
    assert "it is left at 75 °C" in away.reason
    assert (back.source, back.target) == ("cpu", "npu")
    assert "it returns at 65 °C" in back.reason
    assert result.temperature_c[:, 0].max() < 80


def test_the_policys_default_deadline_drops_what_brings_none(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"deadlines": {"default": 20}}')
    found, trace = table(), specified("poisson:b@300/s", minutes=0.1, seed=1)
    result = play(contender(str(path), trace.models, found), trace, found)
    assert (result.outcome == Outcome.DROPPED).any()
    assert (result.end_ms - trace.time_ms)[result.outcome == Outcome.DONE].max() <= 50
