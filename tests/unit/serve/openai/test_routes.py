"""OpenAI's routes over a model that goes on with the alphabet, as slowly as a test wants."""

from __future__ import annotations

import json
import threading
import time

import pytest

from sanderling.core.errors import EngineError
from sanderling.measure import text_golden
from sanderling.run.text import pooled
from sanderling.run.text.limits import TextLimits
from sanderling.serve.settings import Settings
from tests.alphabet_package import alphabet_package
from tests.engines import wait_until
from tests.serving import RawClient, ask, get, post, running
from tests.text_models import AlphabetModel

SLOW_S = 0.01


@pytest.fixture
def model(monkeypatch):
    model = AlphabetModel()
    monkeypatch.setattr(pooled, "load_model", lambda *_, **__: model)
    monkeypatch.setattr(text_golden, "load_model", lambda *_, **__: AlphabetModel())
    return model


@pytest.fixture
def server(model, tmp_path):  # noqa: ARG001 - the server loads it
    package = alphabet_package(tmp_path / "alphabet.sdl").path
    with running(Settings((package,), http_port=0, grpc_port=None, metrics_port=None)) as server:
        yield server


@pytest.fixture
def finished(server):
    """What is told about requests that are over."""
    told = []
    server.services.plane.observers.append(told.append)
    return told


def complete(**fields):
    body = {"model": "alphabet", "prompt": "v", "temperature": 0, **fields}
    return post("/v1/completions", json.dumps(body).encode())


def events(answer):
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]


def test_a_completion_and_a_chat_are_answered_whole(server):
    port = server.ends["http"].port
    answer = ask(port, complete())
    assert answer.status == 200
    assert answer.json["choices"] == [{"index": 0, "logprobs": None, "finish_reason": "stop", "text": "wxyz"}]
    assert answer.json["usage"]["completion_tokens"] == 5
    chat = {"model": "alphabet", "messages": [{"role": "developer", "content": "x"}], "max_tokens": 2}
    choice = ask(port, post("/v1/chat/completions", json.dumps({**chat, "temperature": 0}).encode())).json["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "^_", "refusal": None}
    assert choice["finish_reason"] == "length"


def test_a_stream_is_events_that_end_with_done(server):
    *pieces, done = events(ask(server.ends["http"].port, complete(stream=True)))
    assert done == "[DONE]"
    choices = [json.loads(piece)["choices"][0] for piece in pieces]
    assert "".join(choice["text"] for choice in choices) == "wxyz"
    assert [choice["finish_reason"] for choice in choices][-1] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_cancels_what_is_generated(server, model, finished, stream):
    model.before = lambda _: time.sleep(SLOW_S)
    with RawClient(server.ends["http"].port) as client:
        client.send(complete(prompt="A", max_tokens=500, stream=stream))
        wait_until(lambda: len(model.read) > 3)
    wait_until(lambda: finished)
    assert finished[0].error == "CancelledError"
    assert 0 < finished[0].tokens < 50
    wait_until(lambda: not model.open)
    assert server.services.plane.pending == 0


def test_hanging_up_before_the_first_token_cancels_the_request(server, model, finished):
    model.before = lambda _: time.sleep(0.2)
    with RawClient(server.ends["http"].port) as client:
        client.send(complete(prompt="A", stream=True))
        wait_until(lambda: model.open)
    wait_until(lambda: finished and not model.open)
    assert finished[0].error == "CancelledError"


def test_a_failure_before_the_first_token_has_its_status(server, model, finished):
    def fail(_):
        raise EngineError("no memory")

    model.before = fail
    for stream in (False, True):
        answer = ask(server.ends["http"].port, complete(stream=stream))
        assert answer.status == 500
        assert answer.error == {"message": "no memory", "type": "server_error", "param": None, "code": None}
    assert [each.error for each in finished] == ["EngineError", "EngineError"]


def test_a_failure_in_mid_stream_is_an_event_and_no_done(server, model):
    def fail(ids):
        if ids[-1] == ord("x"):
            raise EngineError("no memory")

    model.before = fail
    with RawClient(server.ends["http"].port) as client:
        client.send(complete(stream=True))
        received = b""
        while b"no memory" not in received:
            received += client.socket.recv(4096)
    assert b'"error":{"message":"no memory","type":"server_error"' in received
    assert b"[DONE]" not in received


def test_three_failures_in_a_row_make_the_model_not_ready(server, model):
    def fail(_):
        raise EngineError("no memory")

    port = server.ends["http"].port
    model.before = fail
    for _ in range(3):
        ask(port, complete())
    assert ask(port, get("/v2/health/ready")).status == 503
    model.before = lambda _: None
    assert ask(port, complete()).status == 200
    assert ask(port, get("/v2/health/ready")).status == 200


def test_too_many_requests_are_told_to_come_again(server, model):
    text = server.services.plane.model("alphabet").text
    opened = threading.Event()
    model.before = lambda _: opened.wait(10)
    port = server.ends["http"].port
    streams = [text.start("A")]
    wait_until(lambda: text.statistics().active)  # its step is held up, and nothing moves
    streams += [text.start("A") for _ in range(TextLimits().waiting)]
    answer = ask(port, complete())
    assert (answer.status, answer.error["type"]) == (503, "overloaded_error")
    assert answer.headers["retry-after"] == "1"
    for stream in streams:
        stream.cancel()
    opened.set()


def test_a_model_that_was_released_is_loaded_again_by_the_next_request(server, model):
    session = server.services.plane.model("alphabet").session
    wait_until(session.release)
    assert model.is_closed
    assert not session.is_loaded
    assert ask(server.ends["http"].port, complete()).json["choices"][0]["text"] == "wxyz"
    assert session.is_loaded


def test_a_request_that_runs_ends_when_the_server_stops(model, tmp_path):
    package = alphabet_package(tmp_path / "alphabet.sdl").path
    settings = Settings((package,), http_port=0, grpc_port=None, metrics_port=None, drain_s=5)
    with running(settings) as server:
        model.before = lambda _: time.sleep(SLOW_S)
        client = RawClient(server.ends["http"].port)
        client.send(complete(prompt="a"))
        wait_until(lambda: len(model.read) > 3)
    assert client.read().json["choices"][0]["text"] == "bcdefghijklmnopq"
    client.close()


def test_unknown_routes_of_openais_answer_in_its_form(server):
    port = server.ends["http"].port
    assert ask(port, get("/v1/chat/other")).error["type"] == "invalid_request_error"
    assert isinstance(ask(port, get("/v2/other")).error, str)


def test_what_is_no_text_model_is_not_listed_and_not_asked(server):
    port = server.ends["http"].port
    assert [card["id"] for card in ask(port, get("/v1/models")).json["data"]] == ["alphabet"]
    answer = ask(port, get("/v1/models/alphabet:7"))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "has no version '7': available are 1" in answer.error["message"]


def test_a_repository_serves_text_and_swaps_its_versions(model, tmp_path):
    repository = tmp_path / "repository"
    (repository / "alphabet").mkdir(parents=True)
    alphabet_package(repository / "alphabet" / "1.sdl")
    settings = Settings((), repository=repository, http_port=0, grpc_port=None, metrics_port=None)
    with running(settings) as server:
        port = server.ends["http"].port
        assert ask(port, complete()).json["choices"][0]["text"] == "wxyz"
        alphabet_package(repository / "alphabet" / "2.sdl")
        load = post("/v2/repository/models/alphabet/load", Authorization=f"Bearer {settings.token}")
        assert ask(port, load).status == 200
        assert [card["id"] for card in ask(port, get("/v1/models")).json["data"]] == ["alphabet:1", "alphabet"]
        assert server.services.plane.default_version("alphabet") == "2"
        assert ask(port, complete(model="alphabet:1")).json["choices"][0]["text"] == "wxyz"
    assert model.is_closed


def test_a_version_that_writes_something_else_than_it_says_gets_no_request(model, tmp_path, monkeypatch):  # noqa: ARG001
    repository = tmp_path / "repository"
    (repository / "alphabet").mkdir(parents=True)
    alphabet_package(repository / "alphabet" / "1.sdl")
    settings = Settings((), repository=repository, http_port=0, grpc_port=None, metrics_port=None)
    with running(settings) as server:
        port = server.ends["http"].port
        wait_until(lambda: server.services.is_ready)
        alphabet_package(repository / "alphabet" / "2.sdl")
        monkeypatch.setattr(text_golden, "load_model", lambda *_, **__: BackwardModel())
        load = post("/v2/repository/models/alphabet/load", Authorization=f"Bearer {settings.token}")
        answer = ask(port, load)
        assert answer.status == 422
        assert "golden vectors, fp32: relative error" in answer.error
        assert ask(port, complete()).json["choices"][0]["text"] == "wxyz"


class BackwardModel(AlphabetModel):
    """Its letters come in another order than the package says."""

    def generation(self, *arguments, **options):
        generation = super().generation(*arguments, **options)
        forward = generation.logits
        generation.logits = lambda: forward()[::-1]
        return generation


def test_a_second_of_the_dashboard_has_the_tokens_that_were_written(server):
    port = server.ends["http"].port
    server.live.tick()
    ask(port, complete())
    server.live.tick()
    samples = [sample for sample in server.live.samples if "alphabet:1" in sample.models]
    assert any(sample.models["alphabet:1"].tokens for sample in samples)
    assert all(sample.total.tokens == sample.models["alphabet:1"].tokens for sample in samples)
    assert server.live.arrivals == ()  # the twin knows no text


def test_a_request_whose_version_was_just_replaced_goes_to_the_next(server, model, tmp_path, monkeypatch):
    plane = server.services.plane
    text = plane.model("alphabet").text
    newer = server.pool.load_text(alphabet_package(tmp_path / "newer.sdl").path, name="alphabet:2")
    started = text.start

    def replaced(*arguments, **options):
        plane.add(newer, name="alphabet", version="2")
        plane.set_default("alphabet", "2")
        plane.remove("alphabet", "1")
        return started(*arguments, **options)

    monkeypatch.setattr(text, "start", replaced)
    model.is_closed = False
    assert ask(server.ends["http"].port, complete()).json["choices"][0]["text"] == "wxyz"
    assert plane.default_version("alphabet") == "2"


@pytest.mark.parametrize("prompt", ['"\\ud800"', '"a\\u0000b"', '"\\ud83d\\ude00"'])
def test_any_json_text_is_answered_or_refused_clearly(server, prompt):
    body = b'{"model": "alphabet", "max_tokens": 2, "prompt": ' + prompt.encode() + b"}"
    assert ask(server.ends["http"].port, post("/v1/completions", body)).status in (200, 400)
