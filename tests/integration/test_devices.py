"""`sanderling devices` and the environments that it makes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_engines_are_listed_with_how_to_install_those_that_are_missing(sanderling):
    done = sanderling("devices")

    assert done.code == 0
    assert "onnxruntime" in done.stdout
    assert "rknn is not installed: sanderling devices --install rknn (about 1.6 GB" in done.stdout
    assert "mindspore is not installed: sanderling devices --install mindspore (fetches 169 MB" in done.stdout


def test_devices_are_listed_with_their_arithmetic_and_the_sensors_or_that_there_are_none(sanderling):
    answer = sanderling("devices", "--json").answer
    cpu = next(state for state in answer["engines"] if state["name"] == "onnxruntime")["devices"][0]

    assert (set(cpu["precisions"]), cpu["computes"]) == (
        {"fp32", "int8", "fp16", "int8-weights", "int4-weights"},
        ["exact"],
    )
    assert cpu["optimizations"] == ["none", "basic", "all"]
    temperatures = answer["sensors"]["temperatures"]
    shown = sanderling("devices").stdout
    assert "arithmetic" in shown
    told = [line for line in shown.splitlines() if line.startswith("temperatures: ")]
    assert len(told) == 1
    assert all(entry["sensor"] in told[0] for entry in temperatures)
    assert told[0].endswith("none here") == (not temperatures)


def test_memory_is_told_with_its_limit_and_whether_power_can_be_measured(sanderling):
    sensors = sanderling("devices", "--json").answer["sensors"]
    shown = sanderling("devices").stdout.splitlines()

    memory, power = sensors["memory"], sensors["power"]
    assert 0 < memory["used_bytes"] < memory["limit_bytes"]
    assert next(line for line in shown if line.startswith("memory: ")).endswith(f"GB used ({memory['scope']})")
    assert bool(power["reason"]) != bool(power["sources"])
    assert f"power: {power['reason'] or ', '.join(power['sources'])}" in shown


def test_environment_that_pip_cannot_fill_is_unavailable_and_leaves_nothing(sanderling, environment, work):
    environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    environment.pop("PIP_FIND_LINKS", None)
    done = sanderling("devices", "--install", "rknn", "--json")

    assert done.code == 3
    last = done.stderr.splitlines()[-1].removeprefix("sanderling: error: ")
    assert done.answer["error"] == {"type": "UnavailableError", "message": last}
    assert "environment 'rknn' could not be made: pip could not install rknn-toolkit2==2.5.0" in last
    assert [path.name for path in (work.parent / "cache" / "environments").iterdir()] == ["rknn.lock"]


def test_engine_without_an_environment_is_refused(refused):
    refused("devices", "--install", "onnxruntime", says="engine 'onnxruntime' needs no environment of its own")


@pytest.fixture
def emptied(environment):
    """Afterwards, remove the cache: it is too large to be kept with the folders of the last runs."""
    yield
    shutil.rmtree(environment["SANDERLING_CACHE"], ignore_errors=True)


@pytest.mark.drill
@pytest.mark.usefixtures("emptied")
def test_rknn_environment_is_made_and_its_engine_keeps_the_contract(sanderling, environment, tmp_path):
    """Downloads about 0.4 GB and takes 1.6 GB until the test is over."""
    command = [Path(sys.executable).with_name("sanderling"), "devices", "--install", "rknn", "--json"]
    made = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1800)

    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["environment"]["name"] == "rknn"
    states = {state["name"]: state for state in sanderling("devices", "--json").answer["engines"]}
    assert states["rknn"]["availability"]["installed"]
    suite = [sys.executable, "-m", "pytest", "-q", "-k", "rknn", "tests/contract", "tests/unit/run/test_rknn.py"]
    variables = {**os.environ, "SANDERLING_CACHE": environment["SANDERLING_CACHE"]}
    held = subprocess.run(suite, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert held.returncode == 0, held.stdout
    assert "skipped" not in held.stdout.splitlines()[-1]
