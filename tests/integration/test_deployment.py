"""What lies in ``deploy/`` fits the command that it starts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from sanderling.cli.app import app

DEPLOY = Path(__file__).parents[2] / "deploy"


def options() -> set[str]:
    command = typer.main.get_command(app).commands["serve"]
    return {name for parameter in command.params for name in parameter.opts}


def given(text: str) -> set[str]:
    """Options on lines that are no comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return set(re.findall(r"--[a-z][a-z-]*", "\n".join(lines)))


def test_image_starts_the_server_with_options_that_there_are():
    text = (DEPLOY / "Dockerfile").read_text()
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.M)[1]) == ["sanderling", "serve"]
    arguments = json.loads(re.search(r"^CMD (.*)$", text, re.M)[1])
    assert {argument for argument in arguments if argument.startswith("--")} <= options()
    assert re.search(r"^USER (\S+)$", text, re.M)[1] == "10001:10001"


def test_image_gets_what_it_copies():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in " ".join(copied).split():
        assert (DEPLOY.parent / name).exists()
        assert f"!{name}" in ignored


def test_kserve_starts_the_server_with_options_that_there_are():
    text = (DEPLOY / "kserve.yaml").read_text()
    assert given(text) <= options()
    assert int(re.search(r"terminationGracePeriodSeconds: (\d+)", text)[1]) > int(re.search(r"--drain=(\d+)", text)[1])


def test_unit_starts_the_server_with_options_that_there_are_and_waits_for_its_drain():
    text = (DEPLOY / "sanderling.service").read_text()
    assert given(text) <= options()
    assert int(re.search(r"TimeoutStopSec=(\d+)", text)[1]) > int(re.search(r"--drain (\d+)", text)[1])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_unit_has_nothing_that_systemd_does_not_know():
    done = subprocess.run(
        ["systemd-analyze", "verify", DEPLOY / "sanderling.service"], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if "sanderling.service" in line and "not executable" not in line]
    assert told == []
