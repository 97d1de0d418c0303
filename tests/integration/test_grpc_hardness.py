"""gRPC clients that do not behave: the server tells them, or leaves them, and goes on."""

from __future__ import annotations

import socket
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from sanderling.run.pool import Pool
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.settings import Limits
from tests.grpc_server import serving
from tests.half_grpc import HEADERS, RST_STREAM, HalfClient
from tests.models import random_arrays
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (1, 3, 8, 8)}, seed=3)["image"]
LIMITS = Limits(body_bytes=2**20, body_s=1.0, header_s=1.0)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    package = classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl")
    with Pool() as pool:
        plane = DataPlane(pool)
        plane.add(pool.load(package.path), name="tiny")
        yield plane


@pytest.fixture(scope="module")
def address(plane):
    with serving(plane, limits=LIMITS) as address:
        yield address


@pytest.fixture(scope="module")
def roomy(plane):
    with serving(plane) as address:
        yield address


@pytest.fixture(scope="module")
def port(address):
    return int(address.rpartition(":")[2])


@pytest.fixture
def triton(address):
    with client.InferenceServerClient(address) as triton:
        yield triton


def sent(array: np.ndarray) -> client.InferInput:
    tensor = client.InferInput("image", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def check_alive(triton) -> None:
    assert triton.infer("tiny", [sent(IMAGE)]).as_numpy("scores").shape == (1, 4)


def test_half_a_message_and_silence_ends_the_call(port, triton):
    clients = [HalfClient(port, "ModelInfer", size=1000, sent=10) for _ in range(20)]
    try:
        assert {each.wait_for_end(10.0) for each in clients} <= {HEADERS, RST_STREAM}
    finally:
        for each in clients:
            each.close()
    check_alive(triton)


def test_a_slow_answer_is_no_slow_message(triton):
    for _ in range(3):
        check_alive(triton)
        time.sleep(0.6)


def test_a_message_that_says_it_has_two_gigabytes_is_refused_before_it_comes(port, triton):
    half = HalfClient(port, "ModelInfer", size=2**31, sent=10)
    try:
        assert half.wait_for_end(10.0) in (HEADERS, RST_STREAM)
    finally:
        half.close()
    check_alive(triton)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_an_input_is_the_clients_fault(triton, value):
    array = IMAGE.copy()
    array[0, 0, 0, 0] = value
    with pytest.raises(InferenceServerException, match="input 'image' holds NaN or infinity") as caught:
        triton.infer("tiny", [sent(array)])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    check_alive(triton)


def test_an_input_that_is_there_twice_is_refused(triton):
    with pytest.raises(InferenceServerException, match="sent twice"):
        triton.infer("tiny", [sent(IMAGE), sent(IMAGE)])
    check_alive(triton)


def numbers(count: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="tiny")
    tensor = request.inputs.add(name="image", datatype="FP32", shape=[count])
    tensor.contents.fp32_contents.extend([0.5] * count)
    return request


def strings(count: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="image", datatype="BYTES", shape=[count])
    request.raw_input_contents.append(bytes(4 * count))
    return request


@pytest.mark.parametrize("made", [numbers, strings])
def test_others_are_answered_while_many_megabytes_are_read(roomy, made):
    request, answered = made(2_000_000), 0
    with grpc.insecure_channel(roomy) as channel, client.InferenceServerClient(roomy) as triton:
        pending = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(request)
        while not pending.done():
            answered += triton.is_server_live()
        assert pending.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert answered > 5


def test_more_strings_than_are_parsed_at_once_are_refused(roomy, triton):
    request = service_pb2.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="image", datatype="BYTES", shape=[2**21]).contents.bytes_contents.extend([b""] * 2**21)
    with grpc.insecure_channel(roomy) as channel, pytest.raises(grpc.RpcError, match="send them in raw") as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    check_alive(triton)


def many_parameters(tensor) -> None:
    for number in range(10_000):
        tensor.parameters[f"p{number}"].int64_param = number


def many_axes(tensor) -> None:
    tensor.shape.extend([1] * 100_000)


@pytest.mark.parametrize("spoil", [many_parameters, many_axes])
def test_an_input_that_is_large_by_anything_but_its_contents_is_refused(roomy, triton, spoil):
    request = service_pb2.ModelInferRequest(model_name="tiny")
    spoil(request.inputs.add(name="image", datatype="FP32"))
    with grpc.insecure_channel(roomy) as channel, pytest.raises(grpc.RpcError, match="beside its contents") as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    check_alive(triton)


def test_a_call_without_tensors_is_no_large_message(roomy, triton):
    request = service_pb2.RepositoryIndexRequest(repository_name="x" * 2**20)
    with grpc.insecure_channel(roomy) as channel, pytest.raises(grpc.RpcError, match="at most 1048576") as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryIndex(request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    check_alive(triton)


def test_who_does_not_speak_http_2_is_left(port, triton):
    with socket.create_connection(("127.0.0.1", port), 20) as silent:
        while silent.recv(4096):  # the server's own greeting
            pass
    check_alive(triton)
