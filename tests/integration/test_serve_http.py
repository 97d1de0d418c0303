"""The server over real sockets: Triton's own client, and clients that do not behave."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import time
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from PIL import Image
from tritonclient.utils import InferenceServerException

from sanderling.model.preprocessing import Preprocessing
from sanderling.serve.settings import Limits, Settings
from tests.engines import ALWAYS, Script, scripted_session, wait_until
from tests.grpc_server import serving as grpc_serving
from tests.models import conv_classifier, random_arrays, run_directly, sum_and_difference
from tests.serving import RawClient, ask, binary_body, get, infer, post, read_binary, running
from tests.square_detector import square_detector_package, squares
from tests.unit.run.guard.packages import package_of
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (2, 3, 8, 8)}, seed=3)["image"]
SCORES = run_directly(conv_classifier(), {"image": IMAGE})["scores"]
LIMITS = Limits(body_bytes=200_000, header_s=0.5, body_s=0.5, idle_s=1.5, connections=300)
TOKEN = "secret"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl")


@pytest.fixture(scope="module")
def server(package):
    settings = Settings((package.path,), http_port=0, grpc_port=None, metrics_port=None, token=TOKEN, limits=LIMITS)
    with running(settings) as server:
        yield server


@pytest.fixture(scope="module")
def port(server):
    return server.ends["http"].port


@pytest.fixture
def client(port):
    with triton.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4) as client:
        yield client


def image_input(binary=True, array=IMAGE):
    tensor = triton.InferInput("image", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def check_alive(port):
    """The server goes on."""
    np.testing.assert_allclose(read_binary(ask(port, infer("tiny", "image", IMAGE)))["scores"], SCORES, atol=1e-4)


def test_tritons_client_finds_what_it_asks_for(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["name"] == "sanderling"
    described = client.get_model_metadata("tiny")
    assert described["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
    assert client.get_model_config("tiny")["input"][0]["dims"] == [3, 8, 8]
    assert client.get_model_repository_index() == [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}]


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False])
def test_tritons_client_gets_the_models_numbers(client, binary_input, binary_output):
    wanted = [triton.InferRequestedOutput("scores", binary_data=binary_output)]
    result = client.infer("tiny", [image_input(binary_input)], outputs=wanted, request_id="7", model_version="1")
    np.testing.assert_allclose(result.as_numpy("scores"), SCORES, atol=1e-4)
    answer = result.get_response()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "tiny", "1")


def test_tritons_client_gets_all_outputs_without_naming_them(client):
    np.testing.assert_allclose(client.infer("tiny", [image_input()]).as_numpy("scores"), SCORES, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_tritons_client_may_pack_its_requests(client, algorithm):
    for binary in (True, False):
        result = client.infer("tiny", [image_input(binary)], request_compression_algorithm=algorithm)
        np.testing.assert_allclose(result.as_numpy("scores"), SCORES, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("rows", [2, 64])
@pytest.mark.parametrize("binary", [True, False])
def test_tritons_client_may_ask_for_packed_answers(roomy_sum, algorithm, rows, binary):
    array = np.tile(
        np.arange(60, dtype=np.float32), (rows * 16, 1)
    )  # of 64 rows the answer is packed in another thread
    inputs = []
    for name in "ab":
        inputs.append(triton.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("sum", "difference")]
    with triton.InferenceServerClient(f"127.0.0.1:{roomy_sum}") as client:
        result = client.infer("sum", inputs, outputs=wanted, response_compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("sum"), 2 * array)
    np.testing.assert_array_equal(result.as_numpy("difference"), 0 * array)


def test_answers_are_packed_only_where_that_is_asked_for_and_pays(port, roomy_sum):
    assert "content-encoding" not in ask(port, get("/openapi.json")).headers
    asked = b"GET %s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
    answer = ask(port, asked % b"/openapi.json")
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert json.loads(gzip.decompress(answer.body))["openapi"] == "3.1.0"
    assert "content-encoding" not in ask(port, asked % b"/v2/health/live").headers
    assert "content-encoding" not in ask(port, asked % b"/dashboard/app.js").headers
    rows = np.zeros((1000, 60), np.float32)
    entries = [{"name": name, "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist()} for name in "ab"]
    asked_infer = post("/v2/models/sum/infer", json.dumps({"inputs": entries}).encode(), Accept_Encoding="deflate")
    answer = ask(roomy_sum, asked_infer)
    assert answer.headers["content-encoding"] == "deflate"
    assert len(answer.body) < 5000 < len(zlib.decompress(answer.body))


def test_tritons_client_gets_classes(client):
    wanted = [triton.InferRequestedOutput("scores", class_count=2)]
    found = client.infer("tiny", [image_input()], outputs=wanted).as_numpy("scores")
    assert found.shape == (2, 2)
    for row, scores in zip(found, SCORES, strict=True):
        best = np.argsort(-scores)[:2]
        for text, index in zip(row, best, strict=True):
            value, place = text.decode().split(":")
            assert (int(place), float(value)) == (index, pytest.approx(scores[index], abs=1e-3))


def test_tritons_client_asks_several_at_once(client):
    pending = [client.async_infer("tiny", [image_input()]) for _ in range(20)]
    for each in pending:
        np.testing.assert_allclose(each.get_result().as_numpy("scores"), SCORES, atol=1e-4)


def test_tritons_asyncio_client_works(port):
    async def run():
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*(client.infer("tiny", [image_input()]) for _ in range(8)))
            return [result.as_numpy("scores") for result in results]

    for scores in asyncio.run(run()):
        np.testing.assert_allclose(scores, SCORES, atol=1e-4)


def test_tritons_client_gets_statistics(client):
    before = client.get_inference_statistics("tiny", "1")["model_stats"][0]
    client.infer("tiny", [image_input()])
    wait_until(
        lambda: client.get_inference_statistics()["model_stats"][0]["inference_count"] == before["inference_count"] + 2
    )


def test_tritons_client_is_told_what_is_wrong(client):
    with pytest.raises(InferenceServerException, match="unknown model 'nope': available are tiny") as caught:
        client.infer("nope", [image_input()])
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="no version '9': available are 1"):
        client.infer("tiny", [image_input()], model_version="9")
    with pytest.raises(InferenceServerException, match="axis 1 must be 3"):
        client.infer("tiny", [image_input(array=IMAGE[:, :1])])
    tensor = triton.InferInput("image", [2, 3, 8, 8], "INT32")
    tensor.set_data_from_numpy(IMAGE.astype(np.int32))
    with pytest.raises(InferenceServerException, match="has dtype int32: expected float32"):
        client.infer("tiny", [tensor])
    with pytest.raises(InferenceServerException, match="no output 'boxes'"):
        client.infer("tiny", [image_input()], outputs=[triton.InferRequestedOutput("boxes")])
    with pytest.raises(InferenceServerException, match="keep no state"):
        client.infer("tiny", [image_input()], sequence_id=3, sequence_start=True)


def test_tritons_client_loads_and_unloads_only_with_the_token(client):
    for call in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="needs a token") as caught:
            call("tiny")
        assert caught.value.status() == "401"
        with pytest.raises(InferenceServerException, match="wrong token"):
            call("tiny", headers={"Authorization": "Bearer guess"})
        with pytest.raises(InferenceServerException, match="--repository"):
            call("tiny", headers={"Authorization": f"Bearer {TOKEN}"})


def test_a_timeout_reaches_the_scheduler(server, client):
    with pytest.raises(InferenceServerException, match="cannot be finished in time") as caught:
        client.infer("tiny", [image_input()], timeout=1)
    assert caught.value.status() == "504"
    body, length = binary_body("image", IMAGE)
    request = post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length, timeout=1)
    assert ask(server.ends["http"].port, request).status == 504


def test_a_request_keeps_its_own_identifier(port):
    body, length = binary_body("image", IMAGE)
    request = post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length, X_Request_Id="abc")
    assert ask(port, request).headers["x-request-id"] == "abc"


TENSOR = {"name": "image", "shape": [2, 3, 8, 8], "datatype": "FP32"}


def json_request(content, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return post("/v2/models/tiny/infer", body, **headers)


def tensors(*changes, tail=b"", length=None):
    """A request whose inputs are the good one with changes."""
    content = {"inputs": [{**TENSOR, "parameters": {"binary_data_size": IMAGE.nbytes}, **change} for change in changes]}
    header = json.dumps(content).encode()
    return json_request(header + tail, Inference_Header_Content_Length=len(header) if length is None else length)


BYTES = IMAGE.tobytes()


BAD = [
    (json_request(b""), 400, "is no JSON"),
    (json_request(b'{"inputs": ['), 400, "is no JSON"),
    (json_request(b"\xff\xfe"), 400, "not UTF-8"),
    (json_request(b"[1]"), 400, "JSON list: expected an object"),
    (json_request(b"[" * 100_000), 400, "nested too deeply"),
    (json_request({}), 400, "needs 'inputs'"),
    (json_request({"inputs": []}), 400, "needs 'inputs'"),
    (json_request({"inputs": [1]}), 400, "an input is a int"),
    (json_request({"inputs": [{"name": "image"}]}), 400, "'name' and 'datatype'"),
    (json_request({"inputs": [TENSOR]}), 400, "has no data"),
    (json_request({"inputs": [{**TENSOR, "data": [1]}]}), 400, "has 1 elements: expected 384"),
    (json_request({"inputs": [{**TENSOR, "data": "x"}]}), 400, "data of str"),
    (json_request({"inputs": [{**TENSOR, "data": [], "parameters": 1}]}), 400, "'parameters' is a int"),
    (json_request({"inputs": [{**TENSOR, "data": []}], "id": 3}), 400, "'id' is a int: expected a string"),
    (tensors({}, tail=BYTES, length=10**6), 400, "Inference-Header-Content-Length is 1000000: the body has only"),
    (tensors({}, tail=BYTES, length="x"), 400, "Inference-Header-Content-Length is 'x': expected a whole number"),
    (tensors({}, tail=BYTES, length=20), 400, "is no JSON"),
    (tensors({}, tail=BYTES[:-1]), 400, "says that it has 1536 bytes: only 1535 are left"),
    (tensors({}, tail=BYTES + b"x"), 400, "1 bytes after its last tensor"),
    (tensors({"parameters": {"binary_data_size": 8}}, tail=BYTES[:8]), 400, "has 8 bytes: expected 1536"),
    (tensors({"parameters": {"binary_data_size": -8}}, tail=BYTES), 400, "'binary_data_size' is -8"),
    (tensors({"parameters": {"binary_data_size": 1e3}}, tail=BYTES), 400, "'binary_data_size' is 1000.0"),
    (tensors({"shape": [-2, 3, 8, 8]}, tail=BYTES), 400, "-2 in its shape"),
    (tensors({"shape": [2**40, 2**40, 8, 8]}, tail=BYTES), 400, "more than memory holds"),
    (tensors({"shape": [2**31, 3, 8, 8]}, tail=BYTES), 400, "expected 1649267441664 for FP32"),
    (tensors({"shape": [0, 3, 8, 8], "parameters": {"binary_data_size": 0}}), 400, "has 0 rows"),
    (tensors({"datatype": "INT32"}, tail=BYTES), 400, "has dtype int32: expected float32"),
    (tensors({"datatype": "FP33"}, tail=BYTES), 400, "datatype 'FP33' is unknown"),
    (tensors({"datatype": "BYTES", "shape": [1]}, tail=b"\xff\xff\xff\x7f" + BYTES[4:]), 400, "2147483647 bytes"),
    (tensors({}, {}, tail=BYTES * 2), 400, "'image' is there twice"),
    (tensors({"name": "other"}, tail=BYTES), 400, "unknown input ['other']: available inputs are image"),
    (tensors({"parameters": {"shared_memory_region": "a", "shared_memory_byte_size": 4}}), 404, "region 'a'"),
    (post("/v2/models/nope/infer", b"{}"), 404, "unknown model 'nope': available are tiny"),
    (post("/v2/models/tiny/versions/7/infer", b"{}"), 404, "no version '7': available are 1"),
    (get("/v2/models/tiny/infer"), 405, "does not know GET: expected POST"),
    (get("/v2/models/tiny/infers"), 404, "there is no /v2/models/tiny/infers here"),
    (post("/v2/health/live"), 405, "does not know POST"),
    (post("/v2/repository/index", b"{"), 400, "is no JSON"),
    (post("/v2/systemsharedmemory/region/a/register", b'{"key": "/a", "byte_size": 4}'), 501, "no shared memory"),
    (post("/v2/models/tiny/infer", b"x" * 200_001), 413, "at most 200000"),
    (json_request(b"x", Content_Encoding="br"), 415, "'br' is not understood"),
    (json_request(b"nonsense", Content_Encoding="gzip"), 400, "no proper gzip"),
    (json_request(gzip.compress(bytes(10**6)), Content_Encoding="gzip"), 413, "at most 200000"),
    (b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "no HTTP request"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "no HTTP request"),
]  # fmt: skip


@pytest.mark.parametrize(("request_bytes", "status", "told"), BAD, ids=[each[2] for each in BAD])
def test_bad_input_is_one_clear_error_and_the_server_goes_on(port, request_bytes, status, told):
    answer = ask(port, request_bytes)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert told in answer.error
    check_alive(port)


def test_nan_in_an_input_is_the_clients_fault(port):
    array = IMAGE.copy()
    array[0, 0, 0, 0] = np.nan
    answer = ask(port, infer("tiny", "image", array))
    assert (answer.status, "input 'image' holds NaN or infinity" in answer.error) == (400, True)
    check_alive(port)


def test_half_a_request_and_silence_is_told_and_closed(port):
    body, length = binary_body("image", IMAGE)
    request = post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length)
    for part in (request[:20], request[:-20]):
        with RawClient(port) as client:
            client.send(part)
            answer = client.read()
            assert (answer.status, "did not come in time" in answer.error) == (408, True)
            assert client.is_closed()
    check_alive(port)


def test_idle_connections_cost_little_and_are_closed(server, port):
    clients = [RawClient(port) for _ in range(250)]
    try:
        check_alive(port)
        wait_until(lambda: server.ends["http"].connections == 0, timeout_s=10)
        assert all(client.is_closed() for client in clients)
    finally:
        for client in clients:
            client.close()


def test_one_connection_too_many_is_told_so(server, port):
    wait_until(lambda: server.ends["http"].connections == 0, timeout_s=10)
    clients = [RawClient(port) for _ in range(LIMITS.connections)]
    try:
        wait_until(lambda: server.ends["http"].connections == LIMITS.connections)
        with RawClient(port) as more:
            answer = more.read()
        assert (answer.status, "as many connections as it takes" in answer.error) == (503, True)
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: server.ends["http"].connections == 0)
    check_alive(port)


def test_a_huge_body_is_refused_before_it_comes(port):
    with RawClient(port) as client:
        answer = client.ask(post("/v2/models/tiny/infer", Content_Length=2 * 2**30))
        assert (answer.status, "at most 200000" in answer.error) == (413, True)
        assert client.is_closed()
    check_alive(port)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_grows_over_the_limit_is_refused_while_it_comes(port, chunked):
    with RawClient(port) as client:
        if chunked:
            client.send(b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(4):
                client.send(b"%x\r\n" % 60_000 + bytes(60_000) + b"\r\n")
        else:
            client.send(json_request(gzip.compress(bytes(10**6)), Content_Encoding="gzip"))
        answer = client.read()
        assert (answer.status, "at most 200000" in answer.error) == (413, True)
    check_alive(port)


@pytest.fixture(scope="module")
def roomy(package):
    """A server that takes requests of many megabytes, three of them at a time."""
    limits = Limits(body_bytes=40_000_000, held_bytes=120_000_000)
    with running(Settings((package.path,), http_port=0, grpc_port=None, metrics_port=None, limits=limits)) as server:
        yield server.ends["http"].port


@pytest.fixture(scope="module")
def roomy_sum(tmp_path_factory):
    """A server whose answers are as long as the requests."""
    calls = [random_arrays({"a": (1, 60), "b": (1, 60)}, seed=1)]
    package = package_of(
        tmp_path_factory.mktemp("sum") / "sum.sdl", {"fp32": sum_and_difference(width=60)}, calls, name="sum"
    )
    policy = package.path.with_name("policy.json")
    policy.write_text(json.dumps({"batchTuning": {"maxBatchSize": 1000}}))
    with running(Settings((package.path,), policy=policy, http_port=0, grpc_port=None, metrics_port=None)) as server:
        yield server.ends["http"].port


def long_request(numbers):
    """JSON of that many numbers, which are no image."""
    text = ",".join(["0.123456789"] * 1000)
    data = ",".join([text] * (numbers // 1000))
    content = f'{{"inputs":[{{"name":"image","datatype":"FP32","shape":[{numbers}],"data":[{data}]}}]}}'
    return post("/v2/models/tiny/infer", content.encode())


def long_strings(count):
    """BYTES of that many empty strings, which are no image either."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": 4 * count}}
    header = json.dumps({"inputs": [tensor]}).encode()
    return post("/v2/models/tiny/infer", header + bytes(4 * count), Inference_Header_Content_Length=len(header))


@pytest.mark.parametrize("made", [long_request, long_strings])
def test_others_are_answered_while_many_megabytes_are_read(roomy, made):
    with RawClient(roomy) as large, RawClient(roomy) as small:
        large.send(made(2_000_000))
        answered = 0
        large.socket.setblocking(False)
        while True:
            try:
                large.socket.recv(1, socket.MSG_PEEK)
                break
            except BlockingIOError:
                assert small.ask(get("/v2/health/live")).status == 200
                answered += 1
        large.socket.settimeout(20)
        assert large.read().status == 400
    assert answered > 5


def test_a_long_list_of_numbers_is_the_tensor_that_it_says(roomy):
    rows = np.random.default_rng(0).standard_normal((64, 3, 8, 8)).astype(np.float32)  # 250 KB of JSON
    tensor = {"name": "image", "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist()}
    answer = ask(roomy, json_request({"inputs": [tensor]}))
    (output,) = answer.json["outputs"]
    scores = run_directly(conv_classifier(), {"image": rows})["scores"]
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), scores, atol=1e-4)


def test_a_long_answer_in_json_is_the_tensor_that_it_says(roomy_sum):
    rows = np.random.default_rng(0).standard_normal((1000, 60)).astype(np.float32)
    entries = [
        {"name": name, "datatype": "FP32", "shape": list(rows.shape), "data": rows.reshape(-1).tolist()}
        for name in "ab"
    ]
    asked = {"inputs": entries, "id": "long", "outputs": [{"name": "sum"}]}
    answer = ask(roomy_sum, post("/v2/models/sum/infer", json.dumps(asked).encode())).json
    assert (answer["model_name"], answer["id"]) == ("sum", "long")
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"]) == ("sum", [1000, 60])
    np.testing.assert_array_equal(np.array(output["data"], np.float32), (rows + rows).reshape(-1))


def test_text_that_would_become_a_million_lists_is_refused(roomy):
    answer = ask(roomy, json_request(b"[" + b"[]," * 2**20 + b"1]"))
    assert (answer.status, "send flat lists" in answer.error) == (400, True)


def test_more_large_requests_than_memory_holds_are_told_to_come_later(roomy):
    head = post("/v2/models/tiny/infer", Content_Length=40_000_000)
    clients = [RawClient(roomy) for _ in range(4)]
    try:
        for client in clients:
            client.send(head)
        answer = clients[3].read()
        assert (answer.status, "bytes of large requests" in answer.error) == (503, True)
        clients[0].close()
        wait_until(lambda: ask(roomy, long_request(1_000_000)).status == 400)
    finally:
        for client in clients:
            client.close()
    check_alive(roomy)


def test_a_client_that_hangs_up_frees_its_place(server, port, package):
    script = Script(hangs=ALWAYS)
    model = server.services.plane.add(scripted_session(package, {"npu": script}), name="stuck")
    try:
        clients = [RawClient(port) for _ in range(3)]
        for client in clients:
            client.send(infer("stuck", "image", IMAGE))
        wait_until(lambda: server.services.plane.pending == 3)
        for client in clients[1:]:
            client.close()
        wait_until(lambda: server.services.plane.pending == 1)
        script.release.set()
        assert clients[0].read().status == 200
        clients[0].close()
        assert model.statistics.cancel.count == 2
    finally:
        script.release.set()
        server.services.plane.remove("stuck")


@contextmanager
def found_just_before_it_leaves(plane, package, monkeypatch):
    """Requests of ``moving`` find its version 1, which is taken away at once; version 2 answers."""
    old = plane.add(scripted_session(package), name="moving")
    plane.add(scripted_session(package), name="moving", version="2")
    plane.remove("moving", "1")
    find, found = plane.model, [old]
    monkeypatch.setattr(plane, "model", lambda name, version="": found.pop() if found else find(name, version))
    yield
    plane.remove("moving")


def test_an_answer_names_the_version_that_has_answered(server, port, package, monkeypatch):
    with found_just_before_it_leaves(server.services.plane, package, monkeypatch):
        answer = ask(port, infer("moving", "image", IMAGE))
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["model_version"] == "2"


def test_an_answer_over_grpc_names_the_version_that_has_answered(server, package, monkeypatch):
    plane = server.services.plane
    with (
        grpc_serving(plane) as address,
        triton_grpc.InferenceServerClient(address) as client,
        found_just_before_it_leaves(plane, package, monkeypatch),
    ):
        tensor = triton_grpc.InferInput("image", list(IMAGE.shape), "FP32")
        tensor.set_data_from_numpy(IMAGE)
        assert client.infer("moving", [tensor]).get_response().model_version == "2"


def test_a_streamed_answer_and_keep_alive_share_a_connection(port):
    with RawClient(port) as client:
        for _ in range(3):
            assert client.ask(get("/v2/health/live")).json == {"live": True}
            assert client.ask(infer("tiny", "image", IMAGE)).status == 200


def test_a_head_request_has_no_body(port):
    with RawClient(port) as client:
        client.send(b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" + get("/v2/health/live"))
        first = client._file.readline()
        while client._file.readline() != b"\r\n":
            pass
        assert first == b"HTTP/1.1 200 OK\r\n"
        assert client.read().json == {"live": True}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A server of a classifier that says how pictures become its input."""
    from sanderling.model.package import rewrite_manifest

    plain = classifier_package(tmp_path_factory.mktemp("pictures") / "plain.sdl", name="photos")
    preprocessing = Preprocessing(width=8, height=8, resize="stretch")
    path = plain.path.with_name("photos.sdl")
    rewrite_manifest(plain, plain.manifest.model_copy(update={"preprocessing": preprocessing}), path, {})
    with running(Settings((path,), http_port=0, grpc_port=None, metrics_port=None)) as server:
        yield server.ends["http"].port


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_a_picture_is_classified_as_it_is(pictures, kind):
    answer = ask(pictures, post("/v1/classify?top=3", picture(kind))).json
    assert answer["model"] == "photos"
    assert [label["label"] for label in answer["labels"]] == [f"class {label['index']}" for label in answer["labels"]]
    probabilities = [label["probability"] for label in answer["labels"]]
    assert len(probabilities) == 3
    assert probabilities == sorted(probabilities, reverse=True)


@pytest.fixture(scope="module")
def squares_port(tmp_path_factory):
    """Of a server of a detector of squares."""
    path = square_detector_package(tmp_path_factory.mktemp("squares")).path
    with running(Settings((path,), http_port=0, grpc_port=None, metrics_port=None)) as server:
        yield server.ends["http"].port


def test_objects_on_a_picture_are_told_in_its_own_pixels(squares_port):
    stream = io.BytesIO()
    Image.fromarray(squares((40, 24, 0), (80, 8, 1), size=(128, 64), scale=2)).save(stream, "png")
    answer = ask(squares_port, post("/v1/detect?score=0.9", stream.getvalue())).json
    assert (answer["model"], answer["boxes_in"]) == ("squares", {"width": 128, "height": 64})
    found = sorted((each["label"], each["box"]) for each in answer["objects"])
    assert found == [("green", [80, 8, 104, 32]), ("red", [40, 24, 64, 48])]
    assert {"index", "label", "score", "box"} == answer["objects"][0].keys()


@pytest.mark.parametrize("query", ["score=2", "overlap=-1", "overlap=x"])
def test_rules_out_of_their_range_are_refused(squares_port, query):
    answer = ask(squares_port, post(f"/v1/detect?{query}", b"x"))
    assert answer.status == 400
    assert "expected a number from 0 to 1" in answer.json["error"]


BAD_PICTURES = [
    (post("/v1/classify", b""), 400, "the body is empty"),
    (post("/v1/classify", b"nonsense"), 400, "the picture is not a readable picture"),
    (post("/v1/classify", picture("png")[:100]), 400, "not a readable picture"),
    (post("/v1/classify?model=nope", b"x"), 404, "available are photos"),
    (post("/v1/classify?top=0", b"x"), 400, "'top' is 0"),
    (post("/v1/detect", picture("png")), 400, "no detector of pictures: its models are photos"),
    (post("/v1/detect?model=photos", picture("png")), 400, "'photos' is no detector: outputs are scores"),
]


@pytest.mark.parametrize(("request_bytes", "status", "told"), BAD_PICTURES, ids=[each[2] for each in BAD_PICTURES])
def test_what_is_no_picture_or_no_model_for_it_is_told(pictures, request_bytes, status, told):
    answer = ask(pictures, request_bytes)
    assert answer.status == status
    assert told in answer.error


def test_shutting_down_lets_requests_end_and_takes_no_more(package):
    settings = Settings((package.path,), http_port=0, grpc_port=None, metrics_port=None)
    script = Script(call_ms=300)
    with running(settings) as server:
        port = server.ends["http"].port
        server.services.plane.add(scripted_session(package, {"npu": script}), name="slow")
        client, idle = RawClient(port), RawClient(port)
        client.send(infer("slow", "image", IMAGE))
        wait_until(lambda: script.rows)
    answer = client.read()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert idle.is_closed()
    client.close()
    idle.close()
    began_s = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        RawClient(port)
    assert time.monotonic() - began_s < 5
