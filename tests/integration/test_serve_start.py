"""A server that starts: its ports are open, and it says that it is not ready."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import tritonclient.grpc as client

from sanderling.core.errors import PackageError
from sanderling.serve import server as server_module
from sanderling.serve.settings import Settings
from tests.engines import wait_until
from tests.models import random_arrays
from tests.serving import ask, get, infer, running
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (1, 3, 8, 8)}, seed=3)["image"]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl").path


@pytest.fixture
def held_back(monkeypatch):
    """Packages are not loaded until this is set."""
    release, warm = threading.Event(), server_module.warm

    def wait(session, name):
        assert release.wait(10)
        warm(session, name)

    monkeypatch.setattr(server_module, "warm", wait)
    yield release
    release.set()


def test_ports_are_open_at_once_and_nothing_is_ready_until_packages_are_loaded(package, held_back):
    settings = Settings((package,), http_port=0, grpc_port=0, metrics_port=0)
    with running(settings, wait=False) as server:
        wait_until(lambda: len(server.ends) == 3)
        port = server.ends["http"].port
        with client.InferenceServerClient(f"127.0.0.1:{server.ends['grpc'].port}") as triton:
            assert ask(port, get("/v2/health/live")).json == {"live": True}
            assert triton.is_server_live()
            for path in ("/v2/health/ready", "/v2/models/tiny/ready"):
                answer = ask(port, get(path))
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert not triton.is_server_ready()
            assert not triton.is_model_ready("tiny")
            answer = ask(port, infer("tiny", "image", IMAGE))
            assert (answer.status, "the server starts" in answer.error) == (503, True)
            assert ask(port, get("/v1/live/now")).json["setup"]["is_ready"] is False
            held_back.set()
            wait_until(triton.is_server_ready)
            assert ask(port, get("/v2/health/ready")).json == {"ready": True}
            assert triton.is_model_ready("tiny")
            assert ask(port, infer("tiny", "image", IMAGE)).status == 200
        assert ask(port, infer("nope", "image", IMAGE)).status == 404


def test_a_package_that_cannot_be_loaded_closes_the_ports_again(package, tmp_path):
    broken = Path(shutil.copytree(package, tmp_path / "broken.sdl"))
    next(broken.glob("**/*.onnx")).write_bytes(b"nothing")
    settings = Settings((broken,), http_port=0, grpc_port=0, metrics_port=None)
    with pytest.raises(PackageError, match=r"hash|bytes|altered"), running(settings):
        raise AssertionError("it has started")
