"""Shared memory over HTTP and gRPC, with a server in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory

from sanderling.api import build
from sanderling.run.session import load
from tests.integration.conftest import COMMAND
from tests.models import conv_classifier, random_arrays, save

SHAPE = (2, 3, 8, 8)
INPUT_BYTES, OUTPUT_BYTES = 2 * 3 * 8 * 8 * 4, 2 * 4 * 4
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    build(save(conv_classifier(), folder / "image.onnx"), folder / "image.sdl", precision="fp32", repeats=3)
    return folder / "image.sdl"


@contextlib.contextmanager
def served(package: Path, *options: str) -> Iterator[dict[str, str]]:
    """``sanderling serve``; gives its addresses by name, and ends it by SIGTERM."""
    arguments = [COMMAND, "serve", package, "--http", "0", "--grpc", "0", "--metrics", "0", "--json", *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield {name: f"127.0.0.1:{port}" for name, port in told["ports"].items()}
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def addresses(package: Path) -> Iterator[dict[str, str]]:
    with served(package, "--shared-memory-prefix", "/sanderling-test-") as addresses:
        yield addresses


def images(seed: int = 0) -> np.ndarray:
    return random_arrays({"image": SHAPE}, seed=seed)["image"]


@contextlib.contextmanager
def region(triton, size_bytes: int) -> Iterator[tuple[str, object]]:
    """A registered region and its handle."""
    name = f"sanderling-test-{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", size_bytes)
    try:
        triton.register_system_shared_memory(name, f"/{name}", size_bytes)
        yield name, handle
    finally:
        triton.unregister_system_shared_memory(name)
        shared_memory.destroy_shared_memory_region(handle)


def lent(client: ModuleType, name: str, *, offset: int = INPUT_BYTES, size_bytes: int = OUTPUT_BYTES):
    """A request whose input and output lie in a region."""
    tensor = client.InferInput("image", list(SHAPE), "FP32")
    tensor.set_shared_memory(name, INPUT_BYTES)
    output = client.InferRequestedOutput("scores")
    output.set_shared_memory(name, size_bytes, offset=offset)
    return {"inputs": [tensor], "outputs": [output]}


@pytest.mark.parametrize("infer_by", ["http", "grpc"])
@pytest.mark.parametrize("register_by", ["http", "grpc"])
def test_regions_are_the_same_over_http_and_grpc(addresses, package, register_by, infer_by):
    clients = {"http": tritonclient.http, "grpc": tritonclient.grpc}
    with (
        load(package) as session,
        clients[register_by].InferenceServerClient(addresses[register_by]) as registering,
        clients[infer_by].InferenceServerClient(addresses[infer_by]) as inferring,
        region(registering, INPUT_BYTES + OUTPUT_BYTES) as (name, handle),
    ):
        for seed in range(3):
            shared_memory.set_shared_memory_region(handle, [images(seed)])
            inferring.infer("image", **lent(clients[infer_by], name))
            scores = np.array(shared_memory.get_contents_as_numpy(handle, np.float32, [2, 4], offset=INPUT_BYTES))
            np.testing.assert_allclose(scores, session.run(images(seed))["scores"], rtol=1e-5, atol=1e-6)


def test_region_is_listed_over_http(addresses):
    with (
        tritonclient.http.InferenceServerClient(addresses["http"]) as triton,
        region(triton, 100) as (name, _),
    ):
        (told,) = (each for each in triton.get_system_shared_memory_status() if each["name"] == name)
        assert (told["key"], told["offset"], told["byte_size"]) == (f"/{name}", 0, 100)


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize(
    ("offset", "size_bytes"),
    [(INPUT_BYTES, OUTPUT_BYTES - 1), (INPUT_BYTES + 1, OUTPUT_BYTES), (1 << 62, OUTPUT_BYTES), (0, OUTPUT_BYTES)],
)
def test_output_without_a_place_of_its_own_is_refused(addresses, kind, offset, size_bytes):
    client = {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]
    with (
        client.InferenceServerClient(addresses[kind]) as triton,
        region(triton, INPUT_BYTES + OUTPUT_BYTES) as (name, _),
    ):
        with pytest.raises(InferenceServerException, match=r"bytes|shares memory"):
            triton.infer("image", **lent(client, name, offset=offset, size_bytes=size_bytes))
        assert triton.infer("image", **lent(client, name)) is not None


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("key", ["/other", "/sanderling-test-/../../etc/passwd", "/sanderling-test-none", ""])
def test_only_objects_that_the_server_was_told_are_mapped(addresses, kind, key):
    client = {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]
    with client.InferenceServerClient(addresses[kind]) as triton:
        with pytest.raises(InferenceServerException, match="shared memory"):
            triton.register_system_shared_memory("frames", key, 1)
        assert "frames" not in str(triton.get_system_shared_memory_status())


def test_object_that_its_client_made_smaller_does_not_end_the_server(addresses):
    with (
        tritonclient.grpc.InferenceServerClient(addresses["grpc"]) as triton,
        region(triton, INPUT_BYTES + OUTPUT_BYTES) as (name, _),
    ):
        os.truncate(f"/dev/shm/{name}", 0)
        with pytest.raises(InferenceServerException, match="has become smaller"):
            triton.infer("image", **lent(tritonclient.grpc, name))
        assert triton.is_server_ready()


def test_server_without_a_prefix_maps_nothing_and_needs_tls_where_it_has_a_certificate(package, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    try:
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=TIMEOUT_S)
    except FileNotFoundError:
        pytest.skip("needs the command openssl to make a certificate")
    with served(package, "--certificate", str(certificate), "--private-key", str(key)) as addresses:
        with tritonclient.grpc.InferenceServerClient(
            addresses["grpc"], ssl=True, root_certificates=str(certificate)
        ) as triton:
            assert triton.is_server_ready()
            with pytest.raises(InferenceServerException, match="--shared-memory-prefix"):
                triton.register_system_shared_memory("frames", "/frames", 1)
        with (
            tritonclient.grpc.InferenceServerClient(addresses["grpc"]) as plain,
            pytest.raises(InferenceServerException, match="UNAVAILABLE"),
        ):
            plain.is_server_ready(client_timeout=5)


def test_certificate_without_its_key_is_told(package, tmp_path):
    certificate = tmp_path / "certificate.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n")
    arguments = [
        COMMAND,
        "serve",
        package,
        "--http",
        "-1",
        "--metrics",
        "-1",
        "--grpc",
        "0",
        "--certificate",
        certificate,
    ]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 2
    assert f"certificate {certificate} cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr
