"""A build that is interrupted, or that runs out of disk, leaves what was there before and nothing else."""

import json
import os
import resource
import signal
import subprocess
import time

import numpy as np
import pytest

from sanderling.api import build, verify
from sanderling.core.errors import OutputError
from tests.integration.conftest import COMMAND, TIMEOUT_S, Finished, tree
from tests.models import conv_classifier, save

SIZE = 48
INTERRUPTIONS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture
def slow_build(work, out):
    """Arguments of a build that spends at least a second in each of the stages that the tests wait for."""
    save(conv_classifier(size=SIZE, features=16), work / "net.onnx")
    generator = np.random.default_rng(0)
    np.savez(work / "data.npz", image=generator.standard_normal((400, 3, SIZE, SIZE)).astype(np.float32))
    data = ("--calibration", "data.npz")
    return ("build", "net.onnx", "-o", str(out / "model.sdl"), *data, "--repeats", "1000000", "--json")


@pytest.fixture
def interrupt(work, environment):
    """Start a command, send it a signal when it reaches a stage, and wait for its end."""
    started = []

    def run(arguments, stage, number):
        process = subprocess.Popen(
            [str(COMMAND), *arguments],
            cwd=work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.rstrip("\n") == stage:
                break
        else:
            pytest.fail(f"the stage '{stage}' was never reached:\n{''.join(lines)}")
        time.sleep(0.1)
        assert process.poll() is None, f"the build ended before it could be interrupted:\n{''.join(lines)}"
        os.kill(process.pid, number)
        stdout, rest = process.communicate(timeout=TIMEOUT_S)
        assert_nobody_left(process.pid)
        return Finished(process.returncode, stdout, "".join(lines) + rest)

    yield run
    for process in started:
        process.kill()
        process.communicate()


def assert_nobody_left(session):
    """The measuring process that a build starts must end with it."""
    for _ in range(50):
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a child of the interrupted build is still running")


@pytest.mark.parametrize(("number", "code"), INTERRUPTIONS, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("stage", ["calibrate: ranges", "quantise to INT8", "measure latency"])
def test_interrupted_build_leaves_nothing(interrupt, slow_build, work, out, stage, number, code):
    before = tree(work.parent)

    done = interrupt(slow_build, stage, number)

    assert done.code == code, done.stderr
    assert "Traceback" not in done.stderr
    assert tree(work.parent) == before
    assert list(out.iterdir()) == []


def test_interruption_is_one_line_and_one_json_object(interrupt, slow_build):
    done = interrupt(slow_build, "calibrate: ranges", signal.SIGINT)

    assert done.error == "interrupted: nothing half-written was kept"
    assert done.answer == {"error": {"type": "Interrupted", "message": done.error}}


@pytest.mark.parametrize(("number", "code"), INTERRUPTIONS, ids=["SIGINT", "SIGTERM"])
def test_older_package_still_verifies_after_an_interrupted_build(
    interrupt, sanderling, slow_build, package, out, number, code
):
    package.rename(out / "model.sdl")
    before = tree(out)

    done = interrupt(slow_build, "calibrate: ranges", number)

    assert done.code == code, done.stderr
    assert tree(out) == before
    assert sanderling("verify", out / "model.sdl").code == 0


@pytest.fixture
def disk(work):
    """Mounts a file system of so many bytes at ``work/../disk``; skips where that is not allowed."""
    folder = work.parent / "disk"
    folder.mkdir()

    def mount(size_bytes):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)


@pytest.fixture
def quick_build(classifier, calibration):
    """Builds the small classifier; the package takes about 60 kB."""
    return lambda target: build(classifier, target, calibration=calibration, repeats=2)


@pytest.mark.parametrize(
    ("pages", "name"),
    [*((pages, "model.sdl") for pages in (1, 3, 5, 7, 9)), (1, "model.sdl.zip"), (13, "model.sdl.zip")],
)
def test_full_disk_is_an_error_and_leaves_nothing(disk, quick_build, pages, name):
    """Each size fails at another of the package's files; the zip needs room for both."""
    folder = disk(4096 * pages)

    with pytest.raises(OutputError, match=r"cannot write .*No space left on device; nothing was kept"):
        quick_build(folder / name)

    assert list(folder.iterdir()) == []


def test_older_package_still_verifies_after_the_disk_was_full(disk, sanderling, classifier, calibration, built):
    needed = sum(-(-path.stat().st_size // 4096) * 4096 for path in built.path.iterdir())
    folder = disk(needed + 4096 * 6)
    target = folder / "model.sdl"
    subprocess.run(["cp", "-r", str(built.path), str(target)], check=True)
    before = tree(folder)

    done = sanderling("build", classifier, "-o", target, "--calibration", calibration, "--repeats", "2", "--json")

    assert done.code == 2
    assert "No space left on device" in done.error
    assert done.answer["error"]["type"] == "OutputError"
    assert tree(folder) == before
    assert verify(target).passed


@pytest.mark.parametrize("limit_bytes", [1000, 5000])
def test_file_size_limit_is_an_error_and_leaves_nothing(work, out, environment, classifier, calibration, limit_bytes):
    """The same without the right to mount: a limit on the size of a file."""
    options = ("--calibration", str(calibration), "--repeats", "2", "--json")
    done = subprocess.run(
        [str(COMMAND), "build", str(classifier), "-o", str(out / "model.sdl"), *options],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )

    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith("model.sdl: File too large; nothing was kept")
    assert json.loads(done.stdout)["error"]["type"] == "OutputError"
    assert list(out.iterdir()) == []


def test_outputs_on_a_full_disk_are_an_error_and_leave_nothing(disk, sanderling, package, work):
    np.save(work / "many.npy", np.random.default_rng(0).standard_normal((2000, 3, 8, 8)).astype(np.float32))
    folder = disk(4096 * 2)

    done = sanderling("run", package, "many.npy", "--out", folder / "outputs.npz")

    assert done.code == 2
    assert "No space left on device; nothing was kept" in done.error
    assert list(folder.iterdir()) == []


def test_zip_that_the_cache_has_no_room_for_is_an_error_and_leaves_nothing(disk, sanderling, work, built):
    archive = work / "model.sdl.zip"
    build(built.path.parent / "classifier.onnx", archive, repeats=2)
    np.save(work / "one.npy", np.zeros((1, 3, 8, 8), np.float32))
    folder = disk(4096 * 4)
    (work.parent / "cache").symlink_to(folder)

    done = sanderling("run", archive, "one.npy")

    assert done.code == 2
    assert "No space left on device" in done.error
    assert [path for path in folder.rglob("*") if path.name != "packages"] == []
