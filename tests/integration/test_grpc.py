from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException, shared_memory

from sanderling.api import build
from sanderling.core.errors import OptionError, SanderlingError
from sanderling.run.pool import Pool
from sanderling.run.session import Session
from sanderling.serve.aside import Aside
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.errors import NotFoundError, code_of
from sanderling.serve.grpc_ import inference_pb2
from sanderling.serve.grpc_.inference import Inference
from sanderling.serve.settings import Limits
from sanderling.serve.shared_memory import ANY_KEY, SharedMemoryRegistry
from tests.engines import Script, When, scripted_session, wait_until
from tests.grpc_server import serving
from tests.models import conv_classifier, random_arrays, save, sum_and_difference

TOKEN = "secret"


class RecordedRepository:
    """Remembers what it was asked for, and knows one model."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, object]]] = []

    def index(self, *, ready_only: bool) -> list[dict[str, str]]:
        entries = [
            {"name": "image", "version": "1", "state": "READY", "reason": ""},
            {"name": "new", "version": "", "state": "UNAVAILABLE", "reason": "not loaded"},
        ]
        return [entry for entry in entries if not ready_only or entry["state"] == "READY"]

    def load(self, name: str, parameters: dict[str, object]) -> None:
        self.asked.append(("load", name, parameters))
        if name != "image":
            raise NotFoundError(f"the repository has no model '{name}'")

    def unload(self, name: str, parameters: dict[str, object]) -> None:
        self.asked.append(("unload", name, parameters))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packages")
    for name, model in (("image", conv_classifier()), ("sum", sum_and_difference())):
        build(save(model, folder / f"{name}.onnx"), folder / f"{name}.sdl", precision="fp32", repeats=3)
    return {name: folder / f"{name}.sdl" for name in ("image", "sum")}


@pytest.fixture(scope="module")
def plane(packages: dict[str, Path]) -> Iterator[DataPlane]:
    with Pool() as pool:
        plane = DataPlane(pool)
        plane.add(pool.load(packages["image"]), name="image")
        plane.add(pool.load(packages["image"], name="image-2"), name="image", version="2")
        plane.add(pool.load(packages["sum"]), name="sum")
        yield plane


@pytest.fixture(scope="module")
def registry() -> SharedMemoryRegistry:
    return SharedMemoryRegistry(ANY_KEY)


@pytest.fixture(scope="module")
def repository() -> RecordedRepository:
    return RecordedRepository()


@pytest.fixture(scope="module")
def address(plane: DataPlane, registry: SharedMemoryRegistry, repository: RecordedRepository) -> Iterator[str]:
    with serving(plane, registry, repository=repository, token=TOKEN) as address:
        yield address


@pytest.fixture
def triton(address: str) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(address) as triton:
        yield triton


@contextlib.contextmanager
def slow(package: Path, **script: object) -> Iterator[tuple[client.InferenceServerClient, DataPlane, Script]]:
    """A server of one model whose engine does what the script says."""
    told = Script(**script)
    with Pool() as pool, scripted_session(package, {"npu": told}, batchTuning={"maxBatchSize": 1}) as session:
        plane = DataPlane(pool)
        plane.add(session, name="image")
        try:
            with serving(plane) as address, client.InferenceServerClient(address) as triton:
                yield triton, plane, told
        finally:
            told.release.set()


def images(rows: int = 1, seed: int = 0) -> np.ndarray:
    return random_arrays({"image": (rows, 3, 8, 8)}, seed=seed)["image"]


def expected(plane: DataPlane, image: np.ndarray) -> np.ndarray:
    session: Session = plane.model("image").session
    return session.run(image)["scores"]


def sent(array: np.ndarray, name: str = "image", datatype: str = "FP32") -> client.InferInput:
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def fails(call, status: str, told: str) -> None:
    with pytest.raises(InferenceServerException, match=told) as caught:
        call()
    assert caught.value.status() == f"StatusCode.{status}"


def test_state_of_server_and_models(triton):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("image")
    assert triton.is_model_ready("image", "2")
    assert not triton.is_model_ready("image", "3")
    assert not triton.is_model_ready("other")


def test_metadata_says_what_there_is(triton):
    server = triton.get_server_metadata(as_json=True)
    assert server["name"] == "sanderling"
    assert {"statistics", "system_shared_memory", "model_repository"} <= set(server["extensions"])
    model = triton.get_model_metadata("image", as_json=True)
    assert (model["name"], model["versions"]) == ("image", ["1", "2"])
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": ["-1", "3", "8", "8"]}]
    assert model["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": ["-1", "4"]}]


def test_configuration_leaves_the_rows_out_of_shapes(triton):
    config = triton.get_model_config("image", as_json=True)["config"]
    assert (config["name"], config["max_batch_size"]) == ("image", 8)
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": ["3", "8", "8"]}]
    assert config["output"] == [{"name": "scores", "data_type": "TYPE_FP32", "dims": ["4"]}]
    assert config["dynamic_batching"] == {}


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_infer_gives_the_sessions_numbers(triton, plane, rows):
    image = images(rows)
    result = triton.infer("image", [sent(image)], request_id="7")
    np.testing.assert_allclose(result.as_numpy("scores"), expected(plane, image), rtol=1e-5)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("7", "image", "1")


def test_version_outputs_priority_timeout_and_own_parameters_are_taken(triton):
    names = [each["name"] for each in triton.get_model_metadata("sum", as_json=True)["outputs"]]
    inputs = [each["name"] for each in triton.get_model_metadata("sum", as_json=True)["inputs"]]
    tensors = [sent(np.full((2, 3), 1 + index, np.float32), name) for index, name in enumerate(inputs)]
    result = triton.infer(
        "sum",
        tensors,
        model_version="1",
        outputs=[client.InferRequestedOutput(names[0])],
        priority=1,
        timeout=5_000_000,
        parameters={"camera": "left"},
    )
    assert result.as_numpy(names[0]).shape == (2, 3)
    assert [output.name for output in result.get_response().outputs] == names[:1]
    everything = triton.infer("sum", tensors)
    assert [output.name for output in everything.get_response().outputs] == names


def test_classes_are_told_instead_of_scores(triton, plane):
    result = triton.infer("image", [sent(images(2))], outputs=[client.InferRequestedOutput("scores", class_count=2)])
    scores = expected(plane, images(2))
    told = [[int(text.decode().split(":")[1]) for text in row] for row in result.as_numpy("scores")]
    assert told == np.argsort(-scores, axis=1)[:, :2].tolist()


def test_compressed_request_is_read(triton, plane):
    result = triton.infer("image", [sent(images())], compression_algorithm="gzip")
    np.testing.assert_allclose(result.as_numpy("scores"), expected(plane, images()), rtol=1e-5)


def test_async_infer_answers_each_its_own(triton, plane):
    answers: queue.Queue = queue.Queue()
    for seed in range(20):
        triton.async_infer(
            "image",
            [sent(images(seed=seed))],
            request_id=str(seed),
            callback=lambda result, error: answers.put((result, error)),
        )
    for _ in range(20):
        result, error = answers.get(timeout=20)
        assert error is None
        image = images(seed=int(result.get_response().id))
        np.testing.assert_allclose(result.as_numpy("scores"), expected(plane, image), rtol=1e-5, atol=1e-6)


def test_stream_answers_in_order_and_goes_on_after_an_error(triton, plane):
    answers: queue.Queue = queue.Queue()
    triton.start_stream(callback=lambda result, error: answers.put((result, error)))
    for seed in range(100):
        name = "other" if seed == 5 else "image"
        triton.async_stream_infer(name, [sent(images(seed=seed))], request_id=str(seed))
    for seed in range(100):
        result, error = answers.get(timeout=20)
        if seed == 5:
            assert "unknown model 'other': available are image, sum" in str(error)
            continue
        assert error is None
        assert result.get_response().id == str(seed)
        assert result.get_response().parameters["triton_final_response"].bool_param
        np.testing.assert_allclose(result.as_numpy("scores"), expected(plane, images(seed=seed)), rtol=1e-5, atol=1e-6)
    triton.stop_stream()


def test_asyncio_client(address, plane):
    async def calls() -> list[np.ndarray]:
        async with aio_client.InferenceServerClient(address) as triton:
            assert await triton.is_server_ready()
            results = await asyncio.gather(*(triton.infer("image", [sent(images(seed=seed))]) for seed in range(8)))

            async def requests():
                for seed in range(8):
                    yield {"model_name": "image", "inputs": [sent(images(seed=seed))], "request_id": str(seed)}

            streamed = [answer async for answer in triton.stream_infer(requests())]
            assert [result.get_response().id for result, _ in streamed] == list(map(str, range(8)))
            return [result.as_numpy("scores") for result in (*results, *(result for result, _ in streamed))]

    for index, scores in enumerate(asyncio.run(calls())):
        np.testing.assert_allclose(scores, expected(plane, images(seed=index % 8)), rtol=1e-5, atol=1e-6)


def test_asyncio_client_makes_every_other_call(address, registry):
    async def calls() -> None:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aio_client.InferenceServerClient(address) as triton:
            assert await triton.is_server_live()
            assert await triton.is_model_ready("image")
            assert (await triton.get_server_metadata()).name == "sanderling"
            assert (await triton.get_model_metadata("image")).inputs[0].name == "image"
            assert (await triton.get_model_config("image")).config.max_batch_size == 8
            assert len((await triton.get_inference_statistics("image", "2")).model_stats) == 1
            assert len((await triton.get_model_repository_index()).models) == 2
            await triton.load_model("image", headers=headers)
            await triton.unload_model("image", headers=headers)
            assert "trace_level" in (await triton.get_trace_settings()).settings
            assert "log_error" in (await triton.get_log_settings()).settings
            await triton.unregister_cuda_shared_memory()
            key = f"/sanderling-test-{uuid.uuid4().hex}"
            handle = shared_memory.create_shared_memory_region("aio", key, 1600)
            try:
                await triton.register_system_shared_memory("aio", key, 1600)
                assert "aio" in (await triton.get_system_shared_memory_status("aio")).regions
                shared_memory.set_shared_memory_region(handle, [images(2)])
                result = await triton.infer("image", [lent_input("image", "aio", 1536)])
                assert result.as_numpy("scores").shape == (2, 4)
                await triton.unregister_system_shared_memory("aio")
            finally:
                shared_memory.destroy_shared_memory_region(handle)

    asyncio.run(calls())
    assert "aio" not in [region.name for region in registry.regions()]


def test_statistics_count_requests_and_rows(triton):
    before = triton.get_inference_statistics("image", "1").model_stats[0]
    triton.infer("image", [sent(images(3))])
    fails(lambda: triton.infer("image", [sent(images()[:, :2])]), "INVALID_ARGUMENT", "axis 1 must be 3")
    after = triton.get_inference_statistics("image", "1").model_stats[0]
    assert after.inference_count - before.inference_count == 3
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.fail.count - before.inference_stats.fail.count == 1
    every = triton.get_inference_statistics(as_json=True)["model_stats"]
    assert [(entry["name"], entry["version"]) for entry in every] == [("image", "1"), ("image", "2"), ("sum", "1")]
    assert len(triton.get_inference_statistics("image").model_stats) == 2


def test_repository_lists_loads_and_unloads(triton, repository):
    index = triton.get_model_repository_index(as_json=True)["models"]
    assert [(entry["name"], entry["state"]) for entry in index] == [("image", "READY"), ("new", "UNAVAILABLE")]
    headers = {"authorization": f"Bearer {TOKEN}"}
    triton.load_model("image", headers=headers, config="{}")
    triton.unload_model("image", headers=headers)
    assert repository.asked[-2:] == [
        ("load", "image", {"config": "{}"}),
        ("unload", "image", {"unload_dependents": False}),
    ]
    fails(lambda: triton.load_model("other", headers=headers), "NOT_FOUND", "has no model 'other'")


@pytest.mark.parametrize("headers", [None, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}])
def test_repository_is_changed_only_with_the_token(triton, repository, headers):
    asked = len(repository.asked)
    fails(lambda: triton.load_model("image", headers=headers), "UNAUTHENTICATED", "token")
    fails(lambda: triton.unload_model("image", headers=headers), "UNAUTHENTICATED", "token")
    assert len(repository.asked) == asked


def test_server_without_a_repository_lists_its_models_and_loads_none(plane):
    with serving(plane, token=TOKEN) as address, client.InferenceServerClient(address) as triton:
        index = triton.get_model_repository_index(as_json=True)["models"]
        assert [(entry["name"], entry["version"], entry["state"]) for entry in index] == [
            ("image", "1", "READY"),
            ("image", "2", "READY"),
            ("sum", "1", "READY"),
        ]
        headers = {"authorization": f"Bearer {TOKEN}"}
        fails(lambda: triton.load_model("image", headers=headers), "INVALID_ARGUMENT", "--repository")


def test_settings_of_traces_and_logs_are_told_and_cannot_be_changed(triton):
    assert triton.get_trace_settings(as_json=True)["settings"] == {"trace_level": {"value": ["OFF"]}}
    assert triton.get_log_settings(as_json=True)["settings"]["log_error"] == {"bool_param": True}
    fails(
        lambda: triton.update_trace_settings(settings={"trace_level": "TIMESTAMPS"}), "UNIMPLEMENTED", "when the server"
    )
    fails(lambda: triton.update_log_settings({"log_verbose_level": 1}), "UNIMPLEMENTED", "when the server is started")


def test_cuda_shared_memory_is_refused_and_may_be_cleaned_up(triton):
    triton.unregister_cuda_shared_memory()
    assert len(triton.get_cuda_shared_memory_status().regions) == 0
    fails(
        lambda: triton.register_cuda_shared_memory("frames", b"aGFuZGxl", 0, 64),
        "UNIMPLEMENTED",
        "system shared memory",
    )


@contextlib.contextmanager
def region(triton: client.InferenceServerClient, size_bytes: int, *, offset: int = 0) -> Iterator[tuple[str, object]]:
    """A registered region and its handle."""
    key = f"/sanderling-test-{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region(key[1:], key, offset + size_bytes)
    try:
        triton.register_system_shared_memory(key[1:], key, size_bytes, offset=offset)
        yield key[1:], handle
    finally:
        triton.unregister_system_shared_memory(key[1:])
        shared_memory.destroy_shared_memory_region(handle)


def lent_input(name: str, region_name: str, size_bytes: int, *, shape=(2, 3, 8, 8), offset=0) -> client.InferInput:
    tensor = client.InferInput(name, list(shape), "FP32")
    tensor.set_shared_memory(region_name, size_bytes, offset=offset)
    return tensor


def lent_output(name: str, region_name: str, size_bytes: int, *, offset=0) -> client.InferRequestedOutput:
    output = client.InferRequestedOutput(name)
    output.set_shared_memory(region_name, size_bytes, offset=offset)
    return output


@pytest.mark.parametrize("output_offset", [2 * 3 * 8 * 8 * 4, 2 * 3 * 8 * 8 * 4 + 1], ids=["aligned", "misaligned"])
def test_tensors_are_read_from_and_written_to_shared_memory(triton, plane, output_offset):
    image = images(2)
    with region(triton, image.nbytes + 64) as (name, handle):
        shared_memory.set_shared_memory_region(handle, [image])
        result = triton.infer(
            "image",
            [lent_input("image", name, image.nbytes)],
            outputs=[lent_output("scores", name, 32, offset=output_offset)],
        )
        told = result.get_output("scores")
        assert told.parameters["shared_memory_region"].string_param == name
        assert told.parameters["shared_memory_byte_size"].int64_param == 32
        scores = shared_memory.get_contents_as_numpy(handle, np.float32, [2, 4], offset=output_offset)
        np.testing.assert_allclose(scores, expected(plane, image), rtol=1e-5)
        del scores


def test_region_may_begin_anywhere_in_its_object(triton, plane):
    image = images(2)
    with region(triton, image.nbytes, offset=5000) as (name, handle):
        shared_memory.set_shared_memory_region(handle, [image], offset=5000)
        result = triton.infer("image", [lent_input("image", name, image.nbytes)])
        np.testing.assert_allclose(result.as_numpy("scores"), expected(plane, image), rtol=1e-5)


def test_one_output_in_shared_memory_and_one_in_the_answer(triton):
    metadata = triton.get_model_metadata("sum", as_json=True)
    tensors = [sent(np.full((2, 3), 1 + i, np.float32), each["name"]) for i, each in enumerate(metadata["inputs"])]
    first, second = (each["name"] for each in metadata["outputs"])
    plain = triton.infer("sum", tensors)
    with region(triton, 64) as (name, handle):
        result = triton.infer(
            "sum", tensors, outputs=[lent_output(first, name, 64), client.InferRequestedOutput(second)]
        )
        written = np.array(shared_memory.get_contents_as_numpy(handle, np.float32, [2, 3]))
        np.testing.assert_array_equal(written, plain.as_numpy(first))
        np.testing.assert_array_equal(result.as_numpy(second), plain.as_numpy(second))


def test_regions_are_listed_and_unregistered(triton):
    with region(triton, 100, offset=8) as (name, _):
        told = triton.get_system_shared_memory_status(as_json=True)["regions"][name]
        assert told == {"name": name, "key": f"/{name}", "offset": "8", "byte_size": "100"}
        assert list(triton.get_system_shared_memory_status(name).regions) == [name]
        fails(
            lambda: triton.register_system_shared_memory(name, f"/{name}", 100), "ALREADY_EXISTS", "registered already"
        )
        triton.unregister_system_shared_memory()
        assert len(triton.get_system_shared_memory_status().regions) == 0
        fails(lambda: triton.get_system_shared_memory_status(name), "NOT_FOUND", "no shared memory region")
        fails(lambda: triton.infer("image", [lent_input("image", name, 100)]), "NOT_FOUND", "registered are none")


@pytest.mark.parametrize(
    ("offset", "size_bytes", "told"),
    [
        (0, 1535, "has 1535 bytes: expected 1536"),
        (65, 1536, "1536 bytes at 65 do not lie in"),
        (1 << 62, 1536, "do not lie in"),
        (-8, 1536, "do not lie in"),
        (0, -1, "do not lie in"),
    ],
)
def test_input_that_does_not_lie_in_its_region_is_refused(triton, offset, size_bytes, told):
    with region(triton, 1600) as (name, _):
        tensor = lent_input("image", name, size_bytes, offset=offset)
        fails(lambda: triton.infer("image", [tensor]), "INVALID_ARGUMENT", told)


def test_output_larger_than_its_place_is_refused(triton):
    with region(triton, 64) as (name, _):
        outputs = [lent_output("scores", name, 31)]
        fails(lambda: triton.infer("image", [sent(images(2))], outputs=outputs), "INVALID_ARGUMENT", "takes 32 bytes")
        outputs = [lent_output("scores", name, 64, offset=1)]
        fails(lambda: triton.infer("image", [sent(images(2))], outputs=outputs), "INVALID_ARGUMENT", "do not lie in")


def test_output_over_its_input_is_refused(triton):
    with region(triton, 1536) as (name, _):
        inputs, outputs = [lent_input("image", name, 1536)], [lent_output("scores", name, 32)]
        fails(lambda: triton.infer("image", inputs, outputs=outputs), "INVALID_ARGUMENT", "shares memory with")


def test_request_keeps_the_region_that_is_unregistered_while_it_runs(packages):
    with slow(packages["image"], hangs=When(every=True)) as (_, plane, script):
        registry = SharedMemoryRegistry(ANY_KEY)
        with serving(plane, registry) as address, client.InferenceServerClient(address) as triton:
            answers: queue.Queue = queue.Queue()
            with region(triton, 1600) as (name, handle):
                shared_memory.set_shared_memory_region(handle, [images(2)])
                triton.async_infer(
                    "image",
                    [lent_input("image", name, 1536)],
                    outputs=[lent_output("scores", name, 32, offset=1536)],
                    callback=lambda result, error: answers.put((result, error)),
                )
                wait_until(lambda: script.rows)
                triton.unregister_system_shared_memory(name)
                script.release.set()
                result, error = answers.get(timeout=20)
                assert error is None
                assert result is not None
                scores = np.array(shared_memory.get_contents_as_numpy(handle, np.float32, [2, 4], offset=1536))
                assert np.any(scores)


def test_server_that_allows_no_shared_memory_says_so(plane):
    with serving(plane) as address, client.InferenceServerClient(address) as triton:
        fails(
            lambda: triton.register_system_shared_memory("frames", "/frames", 8),
            "UNIMPLEMENTED",
            "shared-memory-prefix",
        )


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (lambda t: t.infer("other", [sent(images())]), "NOT_FOUND", "available are image, sum"),
        (lambda t: t.infer("image", [sent(images())], model_version="9"), "NOT_FOUND", "available are 1, 2"),
        (lambda t: t.get_model_metadata("other"), "NOT_FOUND", "available are image, sum"),
        (lambda t: t.get_model_config("image", "9"), "NOT_FOUND", "available are 1, 2"),
        (lambda t: t.get_inference_statistics("other"), "NOT_FOUND", "available are image, sum"),
        (lambda t: t.infer("image", [sent(images(), "picture")]), "INVALID_ARGUMENT", "unknown input .'picture'"),
        (lambda t: t.infer("image", []), "INVALID_ARGUMENT", "missing input .'image'"),
        (lambda t: t.infer("image", [sent(images()), sent(images())]), "INVALID_ARGUMENT", "was sent twice"),
        (lambda t: t.infer("image", [sent(images()[0])]), "INVALID_ARGUMENT", "expected 4 axes"),
        (lambda t: t.infer("image", [sent(images(0))]), "INVALID_ARGUMENT", "0 rows: expected at least 1"),
        (
            lambda t: t.infer("image", [sent(images().astype(np.float64), datatype="FP64")]),
            "INVALID_ARGUMENT",
            "dtype float64: expected float32",
        ),
        (
            lambda t: t.infer("image", [sent(images())], outputs=[client.InferRequestedOutput("other")]),
            "INVALID_ARGUMENT",
            "no output 'other': available are scores",
        ),
        (lambda t: t.infer("image", [sent(images())], sequence_id=5), "INVALID_ARGUMENT", "sequence_id"),
        (lambda t: t.infer("image", [sent(images())], timeout=-1), "INVALID_ARGUMENT", "timeout is -1"),
        (
            lambda t: t.infer("image", [sent(images())], outputs=[client.InferRequestedOutput("scores")] * 2),
            "INVALID_ARGUMENT",
            "asked for twice",
        ),
    ],
)
def test_wrong_call_is_told_what_there_is(triton, call, status, told):
    fails(lambda: call(triton), status, told)
    assert triton.is_server_ready()


def infer_raw(address: str, change, *, timeout: float = 20) -> client.service_pb2.ModelInferResponse:
    """Send one request as ``change`` makes it, around the client's own checks."""
    request = client.service_pb2.ModelInferRequest(model_name="image")
    request.inputs.add(name="image", datatype="FP32", shape=[1, 3, 8, 8])
    change(request)
    with grpc.insecure_channel(address) as channel:
        return client.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=timeout)


def typed(request: client.service_pb2.ModelInferRequest) -> None:
    request.inputs[0].contents.fp32_contents.extend(images().ravel().tolist())


def test_numbers_of_the_message_are_read(address, plane):
    response = infer_raw(address, typed)
    np.testing.assert_allclose(
        np.frombuffer(response.raw_output_contents[0], np.float32), expected(plane, images())[0], rtol=1e-5
    )


def with_raw(*contents: bytes):
    return lambda request: request.raw_input_contents.extend(contents)


def with_shape(*shape: int):
    def change(request):
        request.inputs[0].shape[:] = shape
        request.raw_input_contents.append(images().tobytes())

    return change


def with_datatype(datatype: str):
    def change(request):
        request.inputs[0].datatype = datatype
        request.raw_input_contents.append(images().tobytes())

    return change


def both_ways(request):
    typed(request)
    request.raw_input_contents.append(images().tobytes())


def wrong_contents(request):
    request.inputs[0].contents.int_contents.append(1)


def few_contents(request):
    request.inputs[0].contents.fp32_contents.append(1)


def half_of_contents(request):
    request.inputs[0].datatype = "FP16"
    typed(request)


def half_a_place(request):
    request.inputs[0].parameters["shared_memory_region"].string_param = "frames"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_raw(), "has no data: expected raw_input_contents"),
        (with_raw(b""), "has 0 bytes: expected 768"),
        (with_raw(bytes(767)), "has 767 bytes: expected 768"),
        (with_raw(bytes(768), b"more"), "1 of 2 raw_input_contents belong to no input"),
        (with_shape(-1, 3, 8, 8), "-1 in its shape"),
        (with_shape(1 << 40, 1 << 40, 3), "more than memory holds"),
        (with_shape(0, 1 << 62, 1 << 62), "more than memory holds"),
        (with_shape(0, 3, 8, 8), "expected 0 for FP32"),
        (with_shape(), "has 768 bytes: expected 4"),
        (with_datatype("FP33"), "datatype 'FP33' is unknown"),
        (with_datatype(""), "datatype '' is unknown"),
        (with_datatype("BYTES"), "says that element 0 has"),
        (both_ways, "contents beside raw_input_contents"),
        (wrong_contents, "has int_contents: expected fp32_contents"),
        (few_contents, "has 1 elements: expected 192"),
        (half_of_contents, "of FP16 cannot be sent as contents"),
        (half_a_place, "missing or of a wrong type"),
    ],
)
def test_request_that_lies_about_its_tensors_is_refused(address, change, told):
    with pytest.raises(grpc.RpcError) as caught:
        infer_raw(address, change)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert told in caught.value.details()


@pytest.mark.parametrize("call", ["ModelInfer", "ModelMetadata", "RepositoryIndex"])
def test_bytes_that_are_no_message_are_refused(address, call):
    with grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/inference.GRPCInferenceService/{call}")(b"\xff\xff\xff\xff", timeout=20)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "the request is no" in caught.value.details()


def test_message_over_the_limit_is_refused_also_when_it_is_compressed(plane):
    with serving(plane, limits=Limits(body_bytes=100_000)) as address, client.InferenceServerClient(address) as triton:
        large = [sent(np.zeros((200, 3, 8, 8), np.float32))]
        fails(lambda: triton.infer("image", large), "RESOURCE_EXHAUSTED", "larger than max")
        fails(
            lambda: triton.infer("image", large, compression_algorithm="gzip"), "RESOURCE_EXHAUSTED", "larger than max"
        )
        assert triton.infer("image", [sent(images())]).as_numpy("scores").shape == (1, 4)


def test_port_that_is_taken_is_told(plane, address):
    with (
        pytest.raises(OptionError, match="gRPC cannot listen at"),
        serving(plane, grpc_port=int(address.rpartition(":")[2])),
    ):
        pass


def test_deadline_of_the_call_reaches_the_scheduler(packages):
    with slow(packages["image"], hangs=When(numbers=(1,))) as (triton, plane, script):
        first = triton.async_infer("image", [sent(images())], callback=lambda **_: None)
        wait_until(lambda: script.rows)
        fails(
            lambda: triton.infer("image", [sent(images())], client_timeout=0.2),
            "DEADLINE_EXCEEDED",
            "Deadline Exceeded|cannot be finished in time",
        )
        fails(
            lambda: triton.infer("image", [sent(images())], timeout=100_000),
            "DEADLINE_EXCEEDED",
            "cannot be finished in time",
        )
        wait_until(lambda: plane.pending == 1)
        script.release.set()
        assert first is not None
    assert len(script.rows) == 1


def test_client_that_cancels_frees_its_place(packages):
    with slow(packages["image"], hangs=When(numbers=(1,))) as (triton, plane, script):
        answers: queue.Queue = queue.Queue()
        call = partial(
            triton.async_infer,
            "image",
            [sent(images())],
            callback=lambda result, error: answers.put((result, error)),
        )
        call()
        wait_until(lambda: script.rows)
        contexts = [call(), call()]
        wait_until(lambda: plane.pending == 3)
        for context in contexts:
            context.cancel()
        wait_until(lambda: plane.pending == 1)
        script.release.set()
        outcomes = [answers.get(timeout=20) for _ in range(3)]
        assert sum(error is None for _, error in outcomes) == 1
        wait_until(lambda: plane.pending == 0)
        assert plane.model("image").statistics.cancel.count == 2
    assert len(script.rows) == 1


def test_stream_that_is_cut_off_frees_its_places(packages):
    with slow(packages["image"], hangs=When(numbers=(1,))) as (triton, plane, script):
        triton.start_stream(callback=lambda **_: None)
        triton.async_stream_infer("image", [sent(images())])
        wait_until(lambda: script.rows)
        for _ in range(4):
            triton.async_stream_infer("image", [sent(images())])
        wait_until(lambda: plane.pending == 5)
        triton.stop_stream(cancel_requests=True)
        wait_until(lambda: plane.pending == 1)
        script.release.set()
        wait_until(lambda: plane.pending == 0)
        assert triton.infer("image", [sent(images())]).as_numpy("scores").shape == (1, 4)


def test_engine_that_fails_is_an_internal_error(packages):
    with slow(packages["image"], fails=When(every=True)) as (triton, _, _):
        fails(lambda: triton.infer("image", [sent(images())]), "INTERNAL", "fails")


def test_server_that_shuts_down_takes_no_more(packages):
    with slow(packages["image"]) as (triton, plane, _):
        plane.is_accepting = False
        assert not triton.is_server_ready()
        fails(lambda: triton.infer("image", [sent(images())]), "UNAVAILABLE", "shuts down")


def test_requests_that_run_end_before_the_server_stops(packages):
    script, answers = Script(hangs=When(every=True)), queue.Queue()
    with Pool() as pool, scripted_session(packages["image"], {"npu": script}) as session:
        plane = DataPlane(pool)
        plane.add(session, name="image")
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(serving(plane))
            triton = client.InferenceServerClient(address)
            triton.async_infer("image", [sent(images())], callback=lambda result, error: answers.put((result, error)))
            wait_until(lambda: script.rows)
            threading.Timer(0.2, script.release.set).start()
        result, error = answers.get(timeout=20)
        assert error is None
        assert result.as_numpy("scores").shape == (1, 4)
        fails(lambda: triton.is_server_live(client_timeout=5), "UNAVAILABLE", "failed to connect")
        triton.close()


DATATYPES = st.sampled_from(["FP32", "FP16", "BF16", "INT8", "UINT64", "BOOL", "BYTES", "", "FP33"])
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, -1, 1 << 31, 1 << 62])
WHOLE = st.sampled_from([0, 1, 4, 768, -1, 1 << 62])
NAMES = st.sampled_from(["image", "scores", "", "other", "region"])


@st.composite
def parameters(draw, keys):
    made = {}
    for key in draw(st.lists(st.sampled_from(keys), max_size=3)):
        made[key] = inference_pb2.InferParameter()
        kind = draw(st.sampled_from(["int64_param", "string_param", "bool_param", "double_param", ""]))
        if kind == "int64_param":
            made[key].int64_param = draw(WHOLE)
        elif kind == "string_param":
            made[key].string_param = draw(NAMES)
        elif kind == "bool_param":
            made[key].bool_param = draw(st.booleans())
        elif kind:
            made[key].double_param = draw(st.floats())
    return made


PLACES = ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification", "own"]


def mostly(right, other):
    """What is right in four of five draws, so that a request is wrong in one or two things."""
    return st.integers(0, 4).flatmap(lambda number: other if number == 4 else st.just(right))


@st.composite
def requests(draw):
    version = draw(mostly("", st.sampled_from(["2", "x"])))
    request = inference_pb2.ModelInferRequest(model_name="image", model_version=version)
    for key, value in draw(mostly({}, parameters(["timeout", "priority", "sequence_id", "own"]))).items():
        request.parameters[key].CopyFrom(value)
    for _ in range(draw(mostly(1, st.integers(0, 2)))):
        shape = draw(mostly([1, 3, 8, 8], st.lists(SIZES, max_size=5)))
        name, datatype = draw(mostly("image", NAMES)), draw(mostly("FP32", DATATYPES))
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        for key, value in draw(mostly({}, parameters(PLACES))).items():
            tensor.parameters[key].CopyFrom(value)
        for field, value in (("fp32_contents", 0.5), ("bytes_contents", b"\xff")):
            count = draw(mostly(0, st.sampled_from([1, 192])))
            if count:
                getattr(tensor.contents, field).extend([value] * count)
    for _ in range(draw(st.integers(0, 1))):
        output = request.outputs.add(name=draw(mostly("scores", NAMES)))
        for key, value in draw(mostly({}, parameters(PLACES))).items():
            output.parameters[key].CopyFrom(value)
    sizes = draw(mostly([768], st.lists(st.sampled_from([0, 1, 4, 384, 768]), max_size=3)))
    request.raw_input_contents.extend(draw(st.sampled_from([b"\0", b"?"])) * size for size in sizes)
    return request.SerializeToString()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=requests())
def test_any_request_gets_an_answer_or_an_error_of_ours(plane, message):
    memory = SharedMemoryRegistry(ANY_KEY)
    path = Path(f"/dev/shm/sanderling-test-{uuid.uuid4().hex}")
    path.write_bytes(bytes(1024))
    memory.register("region", f"/{path.name}", offset=0, size_bytes=1000)
    codes = []
    try:
        answer = asyncio.run(Inference(message).run(plane, memory, Aside()))
        assert client.service_pb2.ModelInferResponse.FromString(answer).model_name == "image"
    except SanderlingError as error:
        codes.append(code_of(error).grpc)
    finally:
        path.unlink()
    assert "INTERNAL" not in codes
