from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pytest

from sanderling.core.errors import OptionError
from sanderling.serve.ray import Replica, read_options
from tests.versions import X, built


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    one = Replica((str(built(2.0)),), None, 1)
    yield one
    one.close()


async def ask(replica: Replica, path: str, body: bytes | None = None, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(replica.__serve_build_asgi_app__())
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await (client.get(path) if body is None else client.post(path, content=body, headers=named))


def request(**more: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], **more}
    return json.dumps({"inputs": [tensor]}).encode()


def test_options_come_as_text_from_the_command_line():
    options = read_options({"packages": "/a.sdl,/b.sdl", "max_replicas": "8", "requests": "2.5"})
    assert options.packages == (Path("/a.sdl"), Path("/b.sdl"))
    assert (options.min_replicas, options.max_replicas, options.requests) == (1, 8, 2.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "packages: Field required; options are packages, policy"),
        ({"packages": ""}, "packages: "),
        ({"packages": "/a.sdl", "replicas": "2"}, "replicas: Extra inputs"),
        ({"packages": "/a.sdl", "threads": "many"}, "threads: "),
        ({"packages": "/a.sdl", "min_replicas": "5"}, "max_replicas is 4: expected at least min_replicas, 5"),
    ],
)
def test_wrong_option_is_told_with_those_that_there_are(options, message):
    with pytest.raises(OptionError, match=message):
        read_options(options)


@pytest.mark.parametrize("path", ["/v2/models/tiny/infer", "/v2/models/tiny/versions/1/infer"])
def test_replica_answers_json(replica, path):
    response = asyncio.run(ask(replica, path, request(data=X.ravel().tolist())))
    assert response.status_code == 200
    assert response.json()["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [2.0, 4.0, 6.0]}]


def test_replica_answers_tensors_as_bytes(replica):
    text = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": X.nbytes}}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    response = asyncio.run(
        ask(replica, "/v2/models/tiny/infer", text + X.tobytes(), Inference_Header_Content_Length=str(len(text)))
    )
    length = int(response.headers["Inference-Header-Content-Length"])
    np.testing.assert_array_equal(np.frombuffer(response.content[length:], np.float32), [2.0, 4.0, 6.0])


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "message"),
    [
        ("/v2/models/other/infer", request(data=[1, 2, 3]), {}, 404, "unknown model 'other'"),
        ("/v2/models/tiny/versions/9/infer", request(data=[1, 2, 3]), {}, 404, "no version '9'"),
        ("/v2/models/tiny/infer", b"{", {}, 400, "no JSON"),
        ("/v2/models/tiny/infer", request(data=[1, 2]), {}, 400, "2 elements"),
        ("/v2/models/tiny/infer", request(), {"Inference_Header_Content_Length": "-1"}, 400, "whole number"),
        ("/v2/models/tiny/infer", b"x" * (2**26 + 1), {}, 413, "the limit"),
        ("/v2/models/tiny/infer", request(), {"Content_Encoding": "br"}, 415, "br"),
    ],
)
def test_replica_answers_what_is_wrong(replica, path, body, headers, status, message):
    response = asyncio.run(ask(replica, path, body, **headers))
    assert response.status_code == status
    assert message in response.json()["error"]


def test_replica_is_ready_and_healthy(replica):
    assert asyncio.run(ask(replica, "/v2/health/ready")).status_code == 200
    replica.check_health()
