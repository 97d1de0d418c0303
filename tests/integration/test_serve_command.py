"""The command `sanderling serve`: how it starts, what it says, how it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from starlette.responses import StreamingResponse
from starlette.routing import Route

from sanderling.serve.http import server as http_server
from sanderling.serve.server import raise_file_limit
from sanderling.serve.settings import Settings
from tests.models import random_arrays
from tests.serving import RawClient, ask, get, infer, post, read_binary, running
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (1, 3, 8, 8)}, seed=3)["image"]
TOKEN = "secret"
NO_OTHERS = ("--grpc", "-1", "--metrics", "-1")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl").path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from sanderling.cli import main; main()", "serve", *map(str, arguments)]


@contextmanager
def serving(*arguments: object, **environment: str):
    """The command, once it serves, and what it printed."""
    with subprocess.Popen(
        command(*arguments, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


def test_the_command_serves_until_it_is_terminated(package):
    with serving(package, "--http", 0, *NO_OTHERS, "--log-json") as (process, said):
        assert said["models"] == [{"name": "tiny", "version": "1", "lanes": ["onnxruntime/cpu/fp32"]}]
        assert len(said["token"]) > 20
        port = said["ports"]["http"]
        assert read_binary(ask(port, infer("tiny", "image", IMAGE)))["scores"].shape == (1, 4)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        events = [json.loads(line)["event"] for line in errors.splitlines()]
        assert events[-2:] == ["stopping", "stopped"]


def test_a_token_that_was_given_is_not_printed(package):
    with serving(package, "--http", 0, *NO_OTHERS, SANDERLING_TOKEN="own") as (_, said):
        assert "token" not in said
        request = post("/v2/repository/models/tiny/load", Authorization="Bearer own")
        assert "start the server with --repository" in ask(said["ports"]["http"], request).error


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "nothing to serve"),
        (("nowhere.sdl",), 2, "nowhere.sdl does not exist"),
        (("PACKAGE", "PACKAGE"), 2, "two packages are called 'tiny'"),
        (("PACKAGE", "--http", 70000), 2, "--http 70000 is no port"),
        (("PACKAGE", "--host", "203.0.113.7", "--http", 0, *NO_OTHERS), 2, "HTTP cannot listen at 203.0.113.7:0"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(package, arguments, code, told):
    given = [package if argument == "PACKAGE" else argument for argument in arguments]
    done = subprocess.run(command(*given), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_one_clear_line(package):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(command(package, "--http", port, *NO_OTHERS), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"HTTP cannot listen at 127.0.0.1:{port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_extra_is_named(package):
    code = "import sys; sys.modules['httptools'] = None; from sanderling.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", str(package)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert "pip install 'sanderling[serve]'" in done.stderr


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """Of 127.0.0.1, signed by itself, with its key in the same file."""
    folder = tmp_path_factory.mktemp("certificate")
    key, chain = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", chain],
        check=True, capture_output=True,
    )  # fmt: skip
    chain.write_text(chain.read_text() + key.read_text())
    return chain


def test_requests_come_over_tls_as_well(package, certificate):
    settings = Settings((package,), http_port=0, grpc_port=None, metrics_port=None, certificate=certificate)
    with running(settings) as server:
        client = RawClient(server.ends["http"].port)
        context = ssl.create_default_context(cafile=certificate)
        client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        client._file = client.socket.makefile("rb")
        for array in (IMAGE, np.repeat(IMAGE, 200, axis=0)):
            assert read_binary(client.ask(infer("tiny", "image", array)))["scores"].shape == (len(array), 4)
        client.close()
        with RawClient(server.ends["http"].port) as plain:
            plain.send(get("/v2/health/live"))
            assert plain.is_closed()


def test_an_answer_may_be_a_stream_and_its_reader_may_leave(package, monkeypatch):
    left = []

    async def events(request):
        async def numbers():
            try:
                for number in range(10**6 if "endless" in request.url.query else 3):
                    yield f"data: {number}\n\n"
            finally:
                left.append(request.url.query)

        return StreamingResponse(numbers(), media_type="text/event-stream")

    make = http_server.HttpServer.__init__

    def with_events(self, services, app):
        app.router.routes.append(Route("/events", events))
        make(self, services, app)

    monkeypatch.setattr(http_server.HttpServer, "__init__", with_events)
    settings = Settings((package,), http_port=0, grpc_port=None, metrics_port=None)
    with running(settings) as server:
        port = server.ends["http"].port
        with RawClient(port) as client:
            for _ in range(2):
                answer = client.ask(get("/events"))
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
            client.send(get("/events?endless"))
            assert client.socket.recv(100)
        answer = ask(port, b"GET /events HTTP/1.0\r\n\r\n")
        assert answer.headers["connection"] == "close"
        for _ in range(200):
            if "endless" in left:
                break
            assert ask(port, get("/v2/health/live")).status == 200
        assert "endless" in left


def check_idle_connections(package: Path, count: int) -> None:
    """The server works beside them, and notices that there is one too many."""
    with serving(package, "--http", 0, *NO_OTHERS, "--max-connections", count + 1) as (process, said):
        port = said["ports"]["http"]
        server = psutil.Process(process.pid)
        with RawClient(port) as client:
            assert client.ask(infer("tiny", "image", IMAGE)).status == 200
            before_bytes = server.memory_info().rss
            idle = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(count)]
            try:
                for _ in range(20):
                    assert client.ask(infer("tiny", "image", IMAGE)).status == 200
                assert (server.memory_info().rss - before_bytes) / count < 16_384
                with RawClient(port) as more:
                    assert "as many connections as it takes" in more.read().error
            finally:
                for each in idle:
                    each.close()
            assert client.ask(infer("tiny", "image", IMAGE)).status == 200
        process.terminate()
        assert process.wait(20) == 0
        assert "error" not in process.stderr.read()


def test_a_thousand_idle_connections_cost_little(package):
    raise_file_limit()
    check_idle_connections(package, 1000)


@pytest.mark.drill
def test_ten_thousand_idle_connections_cost_little(package):
    raise_file_limit()
    check_idle_connections(package, 10_000 - 1)


def policy_of(port: int) -> dict:
    request = f"GET /v1/control/policy?model=tiny HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    return json.loads(ask(port, request.encode()).json["policy"])


def test_sighup_swaps_the_policy_and_refuses_a_bad_one(package, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{"batchTuning": {"maxBatchSize": 2}}')
    options = ("--policy", policy, "--http", 0, *NO_OTHERS, "--log-json")
    with serving(package, *options, SANDERLING_TOKEN=TOKEN) as (process, said):
        port = said["ports"]["http"]
        assert policy_of(port)["batchTuning"]["maxBatchSize"] == 2
        with RawClient(port) as client:
            policy.write_text('{"batchTuning": {"maxBatchSize": 7}}')
            process.send_signal(signal.SIGHUP)
            while policy_of(port)["batchTuning"]["maxBatchSize"] != 7:
                assert client.ask(infer("tiny", "image", IMAGE)).status == 200
            policy.write_text('{"batchTuning": {"maxBatchSize": "many"}}')
            process.send_signal(signal.SIGHUP)
            while (event := json.loads(process.stderr.readline()))["event"] != "reload-refused":
                assert client.ask(infer("tiny", "image", IMAGE)).status == 200
            assert "the policy stays as it was" in event["message"]
            assert policy_of(port)["batchTuning"]["maxBatchSize"] == 7
            assert client.ask(infer("tiny", "image", IMAGE)).status == 200
        process.terminate()
        assert process.wait(20) == 0
