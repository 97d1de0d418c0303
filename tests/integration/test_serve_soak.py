"""A minute of the server's soak: crashes of the engine, killed clients, loads and unloads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SECONDS, TIMEOUT_S = 60, 300


@pytest.mark.drill
def test_crashes_and_killed_clients_spoil_and_lose_nothing_of_the_others(tmp_path):
    path = tmp_path / "soak.json"
    command = [sys.executable, "-m", "benchmarks.serve.soak", "--seconds", str(SECONDS), "--json", str(path)]
    subprocess.run(command, timeout=TIMEOUT_S, check=False)  # a minute says nothing of memory's slope
    found = json.loads(path.read_text("utf-8"))
    assert (found["lost"], found["requests"]["wrong"], found["faults"], found["server_exit_code"]) == (0, 0, [], 0)
    assert found["happened"]["crashes"] >= 1
    assert min(found["answered_by_kind"].values()) > 0
