from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from tests.versions import built

pytest.importorskip("ray")

_SCRIPT = """
import json, sys, urllib.request
import ray
from ray import serve
from sanderling.serve.ray import application

ray.init(num_cpus=2, include_dashboard=False)
serve.start(http_options={"port": 18732})
serve.run(application({"packages": sys.argv[1]}))
tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
request = json.dumps({"inputs": [tensor]}).encode()
with urllib.request.urlopen("http://127.0.0.1:18732/v2/models/tiny/infer", request, 60) as answer:
    print("answer", json.load(answer)["outputs"][0]["data"])
serve.shutdown()
"""


def test_ray_serve_runs_the_application():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket in it must be short
        variables = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, built(2.0)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert "answer [2.0, 4.0, 6.0]" in done.stdout, done.stderr
