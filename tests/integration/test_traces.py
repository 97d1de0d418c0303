"""Traces: a span of every request arrives at a collector, in the trace of its client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sanderling.serve.log import Log
from sanderling.serve.settings import Settings
from sanderling.serve.traces import is_configured
from tests.engines import wait_until
from tests.models import random_arrays
from tests.serving import ask, infer, post, running
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (2, 3, 8, 8)}, seed=3)["image"]
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector:
    """Takes traces over OTLP/HTTP."""

    def __init__(self) -> None:
        self.spans: list = []
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # http.server's name
                content = self.rfile.read(int(self.headers["content-length"]))
                for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
                    named = {each.key: each.value.string_value for each in resource.resource.attributes}
                    outer.services.add(named["service.name"])
                    outer.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv(ENDPOINT, made.address)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl").path


def attributes(span) -> dict[str, object]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_request_is_a_span_in_its_clients_trace_with_its_queue_and_its_call(collector, package):
    with running(Settings((package,), http_port=0, grpc_port=None, metrics_port=None, traces=True)) as server:
        port = server.ends["http"].port
        request = infer("tiny", "image", IMAGE).replace(b"\r\n", f"\r\ntraceparent: {TRACEPARENT}\r\n".encode(), 1)
        assert ask(port, request).status == 200
        wait_until(lambda: len(collector.spans) == 3)
    assert collector.services == {"sanderling"}
    spans = {span.name: span for span in collector.spans}
    whole = spans["infer tiny"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert attributes(whole)["sanderling.rows"] == 2
    for name in ("queue", "call"):
        assert spans[name].parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= spans[name].start_time_unix_nano
        assert spans[name].start_time_unix_nano <= spans[name].end_time_unix_nano <= whole.end_time_unix_nano
    assert attributes(spans["call"]) == {
        "sanderling.batch.rows": 2,
        "sanderling.batch.requests": 1,
        "sanderling.lane": "onnxruntime/cpu/fp32",
    }


def test_a_request_over_grpc_is_in_its_clients_trace_and_one_without_a_trace_begins_its_own(collector, package):
    with running(Settings((package,), http_port=0, grpc_port=0, metrics_port=None, traces=True)) as server:
        request = service_pb2.ModelInferRequest(model_name="tiny", raw_input_contents=[IMAGE.tobytes()])
        request.inputs.add(name="image", datatype="FP32", shape=IMAGE.shape)
        with grpc.insecure_channel(f"127.0.0.1:{server.ends['grpc'].port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stub.ModelInfer(request, metadata=[("traceparent", TRACEPARENT)])
            stub.ModelInfer(request)
        wait_until(lambda: len(collector.spans) == 6)
    first, second = [span for span in collector.spans if span.name == "infer tiny"]
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert (second.trace_id.hex() != TRACE_ID, second.parent_span_id) == (True, b"")


def test_a_request_that_fails_says_why_and_a_broken_trace_is_left_out(collector, package):
    with running(Settings((package,), http_port=0, grpc_port=None, metrics_port=None, traces=True)) as server:
        body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
        request = post("/v2/models/tiny/infer", body, traceparent="nonsense")
        assert ask(server.ends["http"].port, request).status == 400
        wait_until(lambda: len(collector.spans) == 2)
    whole = next(span for span in collector.spans if span.name == "infer tiny")
    assert (whole.status.code, whole.status.message, whole.parent_span_id) == (2, "TensorError", b"")


def test_a_collector_that_is_not_there_is_told_once_and_holds_nothing_up(package, monkeypatch, capfd):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with running(Settings((package,), http_port=0, grpc_port=None, metrics_port=None, traces=True)) as server:
        told = ""
        while "the collector takes no traces" not in told:
            assert ask(server.ends["http"].port, infer("tiny", "image", IMAGE)).status == 200
            told += capfd.readouterr().err
    assert (told + capfd.readouterr().err).count("\n") == 1


def test_without_traces_there_is_nobody_who_makes_them(package):
    before = set(threading.enumerate())  # one of an earlier server may still wait for its collector
    with running(Settings((package,), http_port=0, grpc_port=None, metrics_port=None)):
        assert not [thread for thread in set(threading.enumerate()) - before if "traces" in thread.name]


def test_the_environment_may_ask_for_traces(monkeypatch):
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert not is_configured(Log())
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    assert is_configured(Log())
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not is_configured(Log())
