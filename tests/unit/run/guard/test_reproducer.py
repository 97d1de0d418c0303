from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sanderling.core.errors import DataError, OutputError
from sanderling.run.guard import reproducer
from sanderling.run.guard.fault import Fault
from sanderling.run.guard.reproducer import LIMIT, read_reproducer, write_reproducer
from tests.models import conv_classifier, random_arrays
from tests.unit.run.guard.packages import package_of, package_with

FAULT = Fault("not-finite", "y", "1 of 4 values is not finite, the first at [0, 2]: nan")
FEEDS = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
OUTPUTS = {"y": np.array([[1, 2, np.nan, -np.inf]], np.float32)}
GOLDEN = {"fp32": {"y": np.zeros((1, 1, 4), np.float32)}}


@pytest.fixture
def package(tmp_path):
    """A package that is never run."""
    return package_with(tmp_path / "tiny.sdl", GOLDEN)


def write(folder: Path, package, **changed) -> Path | None:
    given = {
        "variant": package.variant(),
        "engine": "onnxruntime",
        "device": "cpu",
        "versions": {"onnxruntime": "1.32.0"},
        "fault": FAULT,
        "feeds": FEEDS,
        "outputs": OUTPUTS,
    }
    return write_reproducer(folder, package=package, **{**given, **changed})


def test_what_was_written_is_read_back(package, tmp_path):
    path = write(tmp_path / "trips" / "here", package)
    assert path == tmp_path / "trips" / "here" / "tiny-0001"
    assert sorted(file.name for file in path.iterdir()) == ["input.npz", "outputs.npz", "trip.json"]
    kept = read_reproducer(path)
    np.testing.assert_array_equal(kept.feeds["x"], FEEDS["x"])
    np.testing.assert_array_equal(kept.outputs["y"], OUTPUTS["y"])
    trip = kept.trip
    assert trip.fault == FAULT
    assert (trip.package, trip.variant, trip.engine, trip.device) == ("tiny", "fp32", "onnxruntime", "cpu")
    assert trip.versions == {"onnxruntime": "1.32.0"}
    assert trip.sha256 == package.manifest.files["fp32.onnx"].sha256
    assert trip.machine.versions["numpy"] == np.__version__
    assert (trip.inputs, trip.outputs) == ({"x": "float32[1, 4]"}, {"y": "float32[1, 4]"})


def test_text_is_kept_without_pickles(package, tmp_path):
    words = np.array([["cat", "dog"]], dtype=object)
    kept = read_reproducer(write(tmp_path, package, feeds={"x": words}))
    np.testing.assert_array_equal(kept.feeds["x"], words.astype(str))


def test_commands_run_it_again(tmp_path):
    images = random_arrays({"image": (1, 3, 8, 8)})
    package = package_of(tmp_path / "my model's.sdl", {"fp32": conv_classifier()}, [images])
    path = write(tmp_path, package, feeds=images)
    commands = read_reproducer(path).trip.commands
    assert commands.keys() == {"again", "in_fp32", "check_package"}
    for name, written in (("again", "again.npz"), ("in_fp32", "fp32.npz")):
        command = commands[name].replace(
            "sanderling", f"{sys.executable} -c 'from sanderling.cli import main; main()'", 1
        )
        subprocess.run(command, shell=True, cwd=path, check=True, capture_output=True, timeout=60)
        with np.load(path / written) as again:
            np.testing.assert_allclose(again["scores"], package.golden().outputs["fp32"]["scores"][0], rtol=1e-5)


def test_trips_are_numbered_and_the_first_ones_stay(package, tmp_path):
    folder = tmp_path / "trips"
    faults = [FAULT._replace(reason=str(number)) for number in range(LIMIT + 3)]
    paths = [write(folder, package, fault=fault) for fault in faults]
    assert [path and path.name for path in paths] == [f"tiny-{number:04}" for number in range(1, LIMIT + 1)] + [
        None
    ] * 3
    assert [read_reproducer(path).trip.reason for path in paths[:LIMIT]] == list(map(str, range(LIMIT)))
    assert len(list(folder.iterdir())) == LIMIT


def test_models_that_share_a_folder_are_numbered_by_themselves(package, tmp_path):
    other = package_with(tmp_path / "other.sdl", GOLDEN, name="tiny/other model")
    names = [write(tmp_path / "trips", each).name for each in (package, other, package, other)]
    assert names == ["tiny-0001", "tiny-other-model-0001", "tiny-0002", "tiny-other-model-0002"]


@pytest.mark.parametrize(
    ("name", "folder"), [("../../evil", "evil-0001"), ("..", "model-0001"), ("模型", "model-0001")]
)
def test_name_of_a_package_cannot_lead_out_of_the_folder(tmp_path, name, folder):
    package = package_with(tmp_path / "odd.sdl", GOLDEN, name=name)
    assert write(tmp_path / "trips", package) == tmp_path / "trips" / folder


def test_number_after_the_highest_is_next_so_that_nothing_is_overwritten(package, tmp_path):
    (tmp_path / "tiny-0007").mkdir()
    (tmp_path / "tiny-0003").write_text("mine")
    assert write(tmp_path, package).name == "tiny-0008"
    assert (tmp_path / "tiny-0003").read_text() == "mine"
    assert list((tmp_path / "tiny-0007").iterdir()) == []


def test_trips_at_the_same_time_are_all_kept_whole(package, tmp_path):
    folder, paths = tmp_path / "trips", []
    threads = [
        threading.Thread(
            target=lambda number=number: paths.append(write(folder, package, fault=FAULT._replace(reason=number)))
        )
        for number in map(str, range(12))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(path.name for path in paths) == [f"tiny-{number:04}" for number in range(1, 13)]
    assert {read_reproducer(path).trip.reason for path in paths} == set(map(str, range(12)))
    assert len(list(folder.iterdir())) == 12


def test_interrupted_write_leaves_nothing(package, tmp_path, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(reproducer, "describe_machine", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "trips", package)
    assert list((tmp_path / "trips").iterdir()) == []


def test_folder_that_cannot_be_written_is_told(package, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write a reproducer into .*file: .*nothing was kept of this trip"):
        write(tmp_path / "file", package)
    assert (tmp_path / "file").read_text() == ""


def test_others_may_read_what_was_written(package, tmp_path):
    path = write(tmp_path / "trips", package)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o777 & ~mask


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: (path / "trip.json").unlink(), "expected a folder with input.npz, outputs.npz and trip.json"),
        (lambda path: (path / "trip.json").write_text("{"), "is no trip"),
        (lambda path: (path / "trip.json").write_text(json.dumps({"schema_version": 2})), "is no trip: "),
        (lambda path: (path / "input.npz").unlink(), "input.npz does not exist"),
        (lambda path: (path / "outputs.npz").write_bytes(b"PK"), "outputs.npz is not a readable file"),
    ],
)
def test_damaged_trip_is_told(package, tmp_path, damage, says):
    path = write(tmp_path, package)
    damage(path)
    with pytest.raises(DataError) as caught:
        read_reproducer(path)
    assert says in str(caught.value)
