"""Chats about pictures, and the same model for Triton's clients, over a server in this process."""

from __future__ import annotations

import base64
import json

import pytest

from sanderling.serve.settings import Settings
from sanderling.tasks.multimodal import Answerer
from tests.branched_packages import ANSWERS, answering_package, matching_package, picture
from tests.serving import ask, get, post, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    answering_package(folder / "vqa.sdl")
    matching_package(folder / "clip.sdl")
    picture(folder / "one.png")
    return folder


@pytest.fixture(scope="module")
def port(folder):
    packages = (folder / "vqa.sdl", folder / "clip.sdl")
    with running(Settings(packages, http_port=0, grpc_port=None, metrics_port=None)) as server:
        yield server.ends["http"].port


@pytest.fixture
def url(folder):
    return "data:image/png;base64," + base64.b64encode((folder / "one.png").read_bytes()).decode()


def said(url: str | None, text: str = "what color is it?", **fields):
    parts = [{"type": "text", "text": text}]
    parts += [{"type": "image_url", "image_url": {"url": url}}] if url else []
    return {"model": "vqa", "messages": [{"role": "user", "content": parts}], **fields}


def chat(port: int, body):
    return ask(port, post("/v1/chat/completions", json.dumps(body).encode()))


def test_a_chat_with_a_picture_gets_the_answer_that_ask_gives(port, folder, url):
    with Answerer(folder / "vqa.sdl") as answerer:
        expected = answerer.ask(folder / "one.png", ["what color is it?"])[0].answers[0].label
    answer = chat(port, said(url))
    assert answer.status == 200
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": expected, "refusal": None}
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert answer.json["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip


def test_the_next_question_may_be_about_the_picture_before(port, url):
    first = said(url)
    told = chat(port, first).json["choices"][0]["message"]["content"]
    turns = [*first["messages"], {"role": "assistant", "content": told}, {"role": "user", "content": "is it red?"}]
    answer = chat(port, {**first, "messages": turns})
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] in ANSWERS


def test_a_stream_is_one_piece_and_done(port, url):
    answer = chat(port, said(url, stream=True, stream_options={"include_usage": True}))
    *pieces, done = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
    assert done == "[DONE]"
    deltas = [choice["delta"] for piece in pieces for choice in json.loads(piece)["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) in ANSWERS
    assert json.loads(pieces[-1])["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"messages": [{"role": "user", "content": "is it red?"}]}, "no picture"),
        ({"messages": [{"role": "system", "content": "be kind"}]}, "follows no instructions"),
        ({"response_format": {"type": "json_object"}}, "plain words"),
    ],
)
def test_what_the_model_cannot_do_is_refused(port, url, change, fault):
    answer = chat(port, {**said(url), **change})
    assert answer.status == 400
    assert fault in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("given", "text", "fault"),
    [
        ("https://example.com/x.png", "is it red?", "nothing is fetched"),
        ("data:image/png;base64,&&&", "is it red?", "no valid base64"),
        ("data:image/png;base64,bm8gcGljdHVyZQ==", "is it red?", "not a readable picture"),
        ("data:image/png;base64,", " ", "has no question"),
    ],
)
def test_pictures_and_questions_that_are_none_are_refused(port, given, text, fault):
    answer = chat(port, said(given, text))
    assert answer.status == 400
    assert fault in answer.json["error"]["message"]


def test_words_that_are_not_known_are_refused_with_400(port, url):
    answer = chat(port, said(url, "zork"))
    assert answer.status == 400
    assert "none of the words" in answer.json["error"]["message"]


def test_a_model_for_matching_chats_with_nobody(port, url):
    answer = chat(port, {**said(url), "model": "clip"})
    assert answer.status == 400
    assert "answers no questions" in answer.json["error"]["message"]


def test_models_that_answer_questions_are_listed(port):
    assert [card["id"] for card in ask(port, get("/v1/models")).json["data"]] == ["vqa"]


def test_tensors_of_both_kinds_are_one_request_of_kserves_protocol(port):
    ids = {"name": "text.ids", "datatype": "INT64", "shape": [1, 6], "data": [3, 4, 2, 0, 0, 0]}
    image = {"name": "vision.image", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": [0.5] * 192}
    answer = ask(port, post("/v2/models/vqa/infer", json.dumps({"inputs": [image, ids]}).encode()))
    assert answer.status == 200
    assert answer.json["outputs"][0]["name"] == "fusion.scores"
    assert answer.json["outputs"][0]["shape"] == [1, 4]
