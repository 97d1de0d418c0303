import threading
import time
from datetime import datetime

import numpy as np
import pytest

import sanderling
from sanderling.core.errors import RefusedError
from sanderling.learn.data import from_arrays
from sanderling.learn.idle import IdleGate
from sanderling.run.policy.document import Policy, Training
from sanderling.run.sensors import Reading
from tests.learning_tasks import dataset

NIGHT = datetime(2026, 1, 1, 23, 30)
POLICY = Policy(sensor_interval=5, training=Training(charging=True, free_memory=0.2))


class Device:
    """Sensors that say what a test wants."""

    def __init__(self):
        self.charging, self.used = True, 10

    def read(self):
        return Reading(time.monotonic(), (), self.used, 100, charging=self.charging)


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def gate(device, recorder):
    made = []

    def make(policy=POLICY, **options):
        made.append(IdleGate(policy, sensors=device, progress=recorder, **{"now": lambda: NIGHT, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def kinds(recorder):
    return [event.kind for event in recorder.events if event.kind.startswith("training")]


def in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def until(condition, timeout_s=20.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def test_step_runs_while_the_policy_allows_it(gate, recorder):
    done = []
    gate().take(lambda: done.append(1))

    assert done == [1]
    assert kinds(recorder) == []


def test_training_pauses_within_one_step_and_goes_on(gate, device, recorder):
    opened, steps, saved = gate(), [], []

    def train():
        for number in range(1000):
            opened.take(
                lambda number=number: steps.append(number) or time.sleep(0.002), lambda: saved.append(len(steps))
            )

    thread = in_thread(train)
    until(lambda: len(steps) > 5)
    device.charging = False
    until(lambda: "training-paused" in kinds(recorder))
    at_pause = len(steps)
    time.sleep(0.1)

    assert len(steps) == at_pause == saved[-1]
    device.charging = True
    until(lambda: len(steps) > at_pause)
    assert kinds(recorder) == ["training-paused", "training-resumed"]
    assert opened.pauses == 1
    until(lambda: len(steps) == 1000)
    thread.join()


@pytest.mark.parametrize(
    ("policy", "change", "reason"),
    [
        (POLICY, {"charging": None}, "no sensor tells whether it is charging"),
        (POLICY, {"used": 90}, "10 % of the memory is free"),
        (Policy(sensor_interval=5, training=Training(max_temp=70)), {}, "no sensor shows the temperature"),
        (Policy(sensor_interval=5, training=Training(hours="01:00-05:00")), {}, "it is 23:30"),
    ],
)
def test_long_pause_ends_training_with_its_reason(gate, device, policy, change, reason):
    for name, value in change.items():
        setattr(device, name, value)

    with pytest.raises(RefusedError, match=reason):
        gate(policy, give_up_s=0.05).take(lambda: pytest.fail("it must not run"))


def test_sensors_that_hang_forbid(gate, device, monkeypatch):
    from sanderling.learn import idle

    monkeypatch.setattr(idle, "_LEAST_STALE_S", 0.05)
    opened = gate(give_up_s=0.1)
    opened.take(lambda: None)
    hanging = threading.Event()
    device.read = hanging.wait

    time.sleep(0.2)
    with pytest.raises(RefusedError, match="no sensor tells whether it is charging"):
        opened.take(lambda: pytest.fail("it must not run"))
    hanging.set()


def test_paused_training_is_saved_and_goes_on(gate, device, new_trainer, tmp_path, recorder):
    path = tmp_path / "ck.safetensors"
    data = from_arrays(new_trainer().spec, dataset(50))
    whole, interrupted = new_trainer(accumulate=2), new_trainer(accumulate=2)
    whole.fit(data, epochs=2, batch=10)
    steps = []

    class Unplugs(IdleGate):
        def take(self, step, before_pause=None):
            steps.append(1)
            if len(steps) == 4:
                device.charging = False
                until(lambda: not self._decide().allowed)
            super().take(step, before_pause)

    unplugged = Unplugs(POLICY, sensors=device, progress=recorder, give_up_s=0.05, now=lambda: NIGHT)
    with unplugged, pytest.raises(RefusedError, match="on battery"):
        interrupted.fit(data, epochs=2, batch=10, checkpoint=path, gate=unplugged)
    device.charging = True
    again = new_trainer(accumulate=2)
    result = again.fit(data, epochs=2, batch=10, checkpoint=path, gate=gate())

    assert result.updates == whole.updates
    assert all(np.array_equal(whole.parameters[name], array) for name, array in again.parameters.items())


def test_inference_goes_before_training_and_both_advance(task, gate, new_trainer):
    """Requests of a session on the same runtime wait for one step at most."""
    policy = POLICY.model_copy(update={"scheduling": POLICY.scheduling.model_copy(update={"utilization_cap": 1.0})})
    data = from_arrays(new_trainer().spec, dataset(50))
    waits, steps = [], []
    with sanderling.load(task, policy=policy, sensors=Device(), threads=1) as session:
        opened = gate(policy, runtime=session.runtime)

        class Slow:
            def take(self, step, before_pause=None):
                opened.take(lambda: steps.append(time.monotonic()) or time.sleep(0.02) or step(), before_pause)

        thread = in_thread(lambda: new_trainer().fit(data, epochs=8, batch=10, gate=Slow()))
        until(lambda: steps)
        for _ in range(20):
            before = len(steps)
            session.run({"x": data.samples.inputs["x"][:4]})
            waits.append(len(steps) - before)
        thread.join(60)

    assert not thread.is_alive()
    assert len(steps) == 2 * 8 * 5  # a gradient and an update each
    assert max(waits) <= 2  # the step that ran, and one that had begun


def test_steps_that_others_wait_long_for_are_told_once(gate, recorder):
    opened = gate()
    opened._turns.slice_ms = lambda: 1.0

    for _ in range(12):
        opened.take(lambda: time.sleep(0.002))

    assert kinds(recorder) == ["training-step-long"]
