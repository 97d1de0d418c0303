"""`sanderling learn run` as users start it: what it prints and refuses, what a kill, a full disk or Ctrl-C leaves."""

import random
import resource
import signal
import subprocess
import time

import numpy as np
import pytest

from sanderling.learn import Trainer
from sanderling.learn.checkpoint import read_checkpoint
from sanderling.learn.data import from_arrays
from sanderling.learn.gates import Open
from tests.integration.conftest import COMMAND, TIMEOUT_S, tree
from tests.learning_tasks import dataset, make_task

pytest.importorskip("safetensors")

SETTINGS = {"batch": 6, "seed": 3, "learning_rate": 0.01}
OPTIONS = ("--batch", 6, "--seed", 3, "--lr", 0.01, "--threads", 1, "--features", "off")


@pytest.fixture
def task(work):
    return make_task(work)


@pytest.fixture
def data(work):
    np.savez(work / "data.npz", **dataset(60))
    return work / "data.npz"


def test_training_prints_epochs_and_what_comes_next(sanderling_here, task, data):
    done = sanderling_here(
        *("learn", "run", task, "--data", data, "--epochs", 3, "--holdout", 0.2, "--checkpoint", "ck.safetensors")
    )

    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["epoch", "loss", "evaluation", "accuracy"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == "6 updates on 48 samples"
    assert lines[5].startswith("next: sanderling learn apply ")
    assert lines[5].endswith("ck.best.safetensors -o adapted.sdl")


def test_resumed_training_is_one_json_object_and_the_same_bits(sanderling_here, task, data, work):
    plan = ("--epochs", 4, "--accumulate", 2, "--schedule", "cosine:steps=20")
    whole = ("learn", "run", task, "--data", data, *OPTIONS, *plan, "--checkpoint", "whole.safetensors", "--json")
    first = sanderling_here(*whole).answer
    begun = ("learn", "run", task, "--data", data, *OPTIONS, *plan, "--checkpoint", "parts.safetensors", "--json")
    sanderling_here(*begun[:-1], "--epochs", 2)
    second = sanderling_here(*begun).answer

    assert (first["updates"], second["updates"], second["resumed_from"]) == (20, 20, 10)
    one, other = (Trainer(task, threads=1) for _ in range(2))
    one.load(work / "whole.safetensors")
    other.load(work / "parts.safetensors")
    assert all(array.tobytes() == other.parameters[name].tobytes() for name, array in one.parameters.items())


def test_training_runs_where_the_workshops_libraries_cannot_be_imported(sanderling, task, data):
    missing = ("torch", "onnxscript", "onnx", "onnx_ir", "onnxslim", "jinja2", "PIL")

    done = sanderling("learn", "run", task, "--data", data, "--epochs", 2, "--json", without=missing)

    assert done.code == 0, done.stderr
    assert done.answer["updates"] == 4


def test_policy_that_does_not_allow_it_ends_training_when_asked(refused_here, task, data, work):
    (work / "policy.json").write_text('{"sensorInterval": 5, "training": {"maxTemp": -40, "sensor": "none such"}}')

    refused_here(
        *("learn", "run", task, "--data", data, "--policy", "policy.json", "--give-up", 0.05),
        code=1,
        says=["training was not allowed for", "no sensor shows the temperature that -40 °C are a limit of"],
    )


def test_policy_that_allows_it_lets_it_run(sanderling, task, data, work):
    (work / "policy.json").write_text('{"training": {"charging": false, "freeMemory": 0}}')

    assert sanderling("learn", "run", task, "--data", data, "--policy", "policy.json", "--json").answer["epochs"] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--optimizer", "adam"), "'adam' is unknown: adamw, sgd"),
        (("--optimizer", "sgd:beta1=0.9"), "optimizer sgd has no setting 'beta1': available are momentum"),
        (("--schedule", "linear"), "expected constant, cosine, step"),
        (("--dp", "epsilon=8"), "has no delta"),
        (("--features", "maybe"), "expected auto, on or off"),
        (("--engine", "tensorrt"), "unknown engine 'tensorrt'"),
        (("--federated", "host:1", "--dp", "epsilon=8,delta=1e-5"), "--dp has no meaning with --federated"),
        (("--patience", 2), "give --eval DATA or --holdout 0.1"),
    ],
)
def test_wrong_option_is_refused(refused_here, task, data, options, says):
    refused_here("learn", "run", task, "--data", data, *options, says=says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": np.full(60, 7)}, "label 7 is out of range: the task has 3 classes (0…2)"),
        ({"x": np.full((60, 6), np.nan, np.float32)}, "'x' has NaN or infinite values, first in row 0"),
        ({"x": np.zeros((60, 9), np.float32)}, "axis 1 must be 6"),
    ],
)
def test_data_that_does_not_fit_is_refused(refused_here, task, work, change, says):
    np.savez(work / "bad.npz", **{**dataset(60), **change})

    refused_here("learn", "run", task, "--data", "bad.npz", "--checkpoint", "ck.safetensors", says=says)


def test_other_checkpoints_are_refused(refused_here, task, data, work):
    (work / "ck.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    refused_here("learn", "run", task, "--data", data, "--checkpoint", "ck.safetensors", says="is no checkpoint of a")
    (work / "ck.safetensors").write_bytes(b"x" * 100)
    refused_here("learn", "run", task, "--data", data, "--checkpoint", "ck.safetensors", says="no readable safetensors")


def test_not_finite_loss_is_the_answer_no_and_names_the_samples(sanderling_here, task, work):
    arrays = dataset(60)
    arrays["x"][31] = 3e38
    np.savez(work / "bad.npz", **arrays)

    done = sanderling_here(
        *("learn", "run", task, "--data", "bad.npz", *OPTIONS, "--checkpoint", "ck.safetensors", "--save-every", 1)
    )

    assert done.code == 1
    assert "row 31" in done.error
    assert "the last good checkpoint, of update" in done.error
    assert Trainer(task).load(work / "ck.safetensors").updates > 0


def test_full_disk_keeps_the_older_checkpoint(task, data, work, environment):
    """A limit on the size of a file stands for the disk."""
    path = work / "ck.safetensors"
    command = [str(COMMAND), *map(str, ("learn", "run", task, "--data", data, *OPTIONS, "--checkpoint", path))]
    subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
    before = tree(work)

    done = subprocess.run(
        [*command, "--epochs", "2"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )

    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith("ck.safetensors: File too large; nothing was kept")
    assert tree(work) == before


class Endless:
    """A training that never ends by itself, as a process of its own."""

    def __init__(self, task, data, path, environment, *, save_every):
        options = (*OPTIONS, "--epochs", 10**6, "--save-every", save_every, "--checkpoint", path)
        self.command = [str(COMMAND), *map(str, ("learn", "run", task, "--data", data, *options))]
        self.path, self.environment = path, environment
        self.process = None

    def start(self):
        before = self.path.stat().st_ino if self.path.exists() else None
        self.process = subprocess.Popen(
            self.command, cwd=self.path.parent, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        end = time.monotonic() + TIMEOUT_S
        while not self.path.exists() or self.path.stat().st_ino == before:
            assert self.process.poll() is None, self.process.stderr.read().decode()
            assert time.monotonic() < end, "it never saved"
            time.sleep(0.005)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(TIMEOUT_S)
        self.process.stderr.close()
        return self.process.returncode


class EndsAfter(Open):
    """Ends training after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def take(self, step, before_pause=None):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        super().take(step, before_pause)


def kill_again_and_again(task, data, path, environment, *, times, seed):
    """Kill a training at random moments; what is left must be whole, and no more than a save interval behind."""
    moments, training, before = random.Random(seed), Endless(task, data, path, environment, save_every=3), 0
    for _ in range(times):
        training.start()
        time.sleep(moments.uniform(0, 0.25))
        assert training.end(signal.SIGKILL) == -signal.SIGKILL
        left = read_checkpoint(path, Trainer(task, threads=1).spec).progress
        assert left.updates % 3 == 0
        assert left.updates > before
        before = left.updates
    return before


def same_as_never_killed(task, data, path, updates):
    """Whether the checkpoint has the very bits of a training that was never interrupted."""
    arrays = dict(np.load(data))
    with Trainer(task, threads=1, seed=SETTINGS["seed"], learning_rate=SETTINGS["learning_rate"]) as whole:
        with pytest.raises(KeyboardInterrupt):  # a gradient and an update are two steps
            whole.fit(from_arrays(whole.spec, arrays), epochs=10**6, batch=6, gate=EndsAfter(2 * updates))
        found = read_checkpoint(path, whole.spec)
        states = [found.parameters, *found.states.values()]
        own = [whole.state.parameters, *whole.state.states.values()]
        assert whole.updates == updates
        return all(
            one[name].tobytes() == other[name].tobytes() for one, other in zip(states, own, strict=True) for name in one
        )


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.drill)])
def test_killed_training_loses_nothing_that_was_saved(task, data, work, environment, times):
    path = work / "ck.safetensors"

    updates = kill_again_and_again(task, data, path, environment, times=times, seed=times)

    assert same_as_never_killed(task, data, path, updates)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_interrupted_training_leaves_its_checkpoint_and_nothing_else(task, data, work, environment, number, code):
    training = Endless(task, data, work / "ck.safetensors", environment, save_every=1)
    training.start()

    assert training.end(number) == code
    assert sorted(path.name for path in work.iterdir()) == ["ck.safetensors", "data.npz", "tiny.sdl"]
