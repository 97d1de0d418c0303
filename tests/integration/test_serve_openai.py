"""OpenAI's own client, as it is, against the command `sanderling serve` with a small language model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import openai
import psutil
import pytest

from tests.engines import wait_until
from tests.tiny_text import CONTEXT
from tests.unit.serve.packages import classifier_package

MESSAGES = [{"role": "user", "content": "what is the capital of France?"}]
CONVERSATIONS = 50


@contextmanager
def serving(*packages: object):
    """The command's process and ports, once it serves."""
    arguments = [*map(str, packages), "--http", "0", "--grpc", "-1", "--metrics", "-1", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", "from sanderling.cli import main; main()", "serve", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    ) as process:
        try:
            yield process, json.loads(process.stdout.readline())["ports"]["http"]
        finally:
            process.terminate()
            try:
                process.wait(15)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def served(chat_package, sentence_package, tmp_path_factory):
    picture = classifier_package(tmp_path_factory.mktemp("tiny") / "tiny.sdl").path
    with serving(chat_package, sentence_package, picture) as (process, port):
        yield process, port


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served[1]}/v1", api_key="unused", max_retries=0) as client:
        yield client


def metric(port: int, name: str) -> float:
    """The sum of a metric's values."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + " ", name + "{")))


def test_a_chat_is_answered_with_its_counts(client):
    answer = client.chat.completions.create(model="chat", messages=MESSAGES, temperature=0, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_pieces_of_a_stream_are_the_whole_answer(client):
    asked = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    *pieces, counts = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert counts.choices == []
    assert counts.usage.completion_tokens == 12
    assert counts.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1


def test_a_stream_without_the_option_has_no_counts(client):
    chunks = list(client.completions.create(model="chat", prompt="the quick", max_tokens=3, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


def test_a_completion_goes_on_with_text_and_with_tokens(client):
    text = client.completions.create(model="chat", prompt="the quick", temperature=0, max_tokens=5)
    assert text.object == "text_completion"
    assert text.usage.completion_tokens == 5
    tokens = client.completions.create(model="chat", prompt=[40, 41, 42], temperature=0, max_tokens=5)
    assert tokens.usage.prompt_tokens == 3
    assert client.completions.create(model="chat", prompt="the quick").usage.completion_tokens <= 16


def test_the_same_seed_gives_the_same_text(client):
    def ask(seed):
        return client.completions.create(model="chat", prompt="a", seed=seed, max_tokens=20).choices[0].text

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


def test_a_stop_string_ends_an_answer_before_it(client):
    asked = {"model": "chat", "prompt": "the quick brown", "temperature": 0, "max_tokens": 30}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[2:4]
    answer = client.completions.create(**asked, stop=[stop]).choices[0]
    assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")
    streamed = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.text


def test_the_next_turn_of_a_conversation_computes_only_what_is_new(client):
    first = client.chat.completions.create(model="chat", messages=MESSAGES, temperature=0, max_tokens=8)
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "go on"},
    ]
    second = client.chat.completions.create(model="chat", messages=messages, temperature=0, max_tokens=8)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_an_answer_keeps_a_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 5}, "size": {"type": "integer", "maximum": 99}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="chat",
        messages=MESSAGES,
        seed=1,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": schema}},
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content)
    assert list(found) == ["city", "size"]
    assert isinstance(found["size"], int)


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["chat", "sentences"]
    assert client.models.retrieve("chat").owned_by == "sanderling"
    assert client.models.retrieve("chat:1").id == "chat:1"
    with pytest.raises(openai.NotFoundError, match="model 'tiny' takes tensors"):
        client.models.retrieve("tiny")


def test_texts_are_embedded_one_and_several_in_both_forms(client):
    one = client.embeddings.create(model="sentences", input="a small bird")  # the client asks for base64
    assert one.usage.prompt_tokens == 3
    several = client.embeddings.create(model="sentences", input=["fish", "a small bird"], encoding_format="float")
    assert [each.index for each in several.data] == [0, 1]
    np.testing.assert_allclose(several.data[1].embedding, one.data[0].embedding, atol=1e-6)
    tokens = client.embeddings.create(model="sentences", input=[[6], [2, 3, 5]], dimensions=4)
    np.testing.assert_allclose(tokens.data[1].embedding, one.data[0].embedding, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(one.data[0].embedding), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "parameter", "code", "told"),
    [
        ({"input": ""}, None, None, "is empty"),
        ({"input": []}, "input", None, "at least 1 item"),
        ({"input": "bird " * 9}, None, "context_length_exceeded", "has 9 tokens: at most 8 are embedded"),
        ({"input": [99]}, None, None, "token 99 is not in the vocabulary: ids are 0 to 7"),
        ({"dimensions": 3}, "dimensions", None, "is 3: this model's embeddings have 4"),
    ],
)
def test_what_cannot_be_embedded_is_openais_error(client, changed, parameter, code, told):
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(**{"model": "sentences", "input": "fish", "encoding_format": "float", **changed})
    assert (error.value.param, error.value.code) == (parameter, code)
    assert told in error.value.body["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changed", "kind", "parameter", "code", "told"),
    [
        ({"model": "other"}, openai.NotFoundError, "model", "model_not_found", "available are chat"),
        ({"n": 2}, openai.BadRequestError, "n", None, "parameter 'n': input should be 1; got 2"),
        ({"temperature": 9}, openai.BadRequestError, "temperature", None, "less than or equal to 2; got 9"),
        ({"messages": []}, openai.BadRequestError, "messages", None, "at least 1"),
        ({"extra_body": {"x": 1}}, openai.BadRequestError, "x", None, "unknown parameter 'x'"),
        (
            {"messages": [{"role": "user", "content": "the " * CONTEXT}]},
            openai.BadRequestError,
            None,
            "context_length_exceeded",
            f"prompt and answer together have {CONTEXT}",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
            openai.BadRequestError,
            None,
            None,
            "cannot be held to the JSON schema",
        ),
    ],
)
def test_what_cannot_be_answered_is_openais_error(client, changed, kind, parameter, code, told, stream):
    with pytest.raises(kind) as error:
        client.chat.completions.create(**{"model": "chat", "messages": MESSAGES, "stream": stream, **changed})
    assert error.value.param == parameter
    assert error.value.code == code
    assert error.value.type == "invalid_request_error"
    assert told in error.value.body["message"]


def test_an_empty_prompt_and_a_wrong_method_are_openais_errors(client):
    with pytest.raises(openai.BadRequestError, match="the prompt is empty"):
        client.completions.create(model="chat", prompt="")
    with pytest.raises(openai.BadRequestError, match="embeds no texts"):
        client.embeddings.create(model="chat", input="hello")
    with pytest.raises(openai.APIStatusError) as error:
        client.get("/chat/completions", cast_to=object)
    assert error.value.status_code == 405
    assert error.value.type == "invalid_request_error"


def test_tensors_are_refused_where_text_is_generated(served):
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{served[1]}/v2/models/chat/infer", body)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request)
    assert "generates text: ask /v1/chat/completions" in json.loads(error.value.read())["error"]


def test_hanging_up_ends_the_generation(client, served):
    before = metric(served[1], "sanderling_tokens_total")
    stream = client.completions.create(model="chat", prompt="a", max_tokens=250, seed=1, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: metric(served[1], "sanderling_text_conversations") == 0)
    assert metric(served[1], "sanderling_tokens_total") > before


def test_several_conversations_at_once_get_their_own_answers(client):
    def ask(number):
        answer = client.completions.create(
            model="chat", prompt=f"{number} " * 8, temperature=0, max_tokens=16 + number, stop=None
        )
        return answer.choices[0].text, answer.usage.prompt_tokens

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert together == [ask(number) for number in range(8)]


def test_metrics_and_readiness_count_a_language_model_as_any(client, served):
    port = served[1]
    before = metric(port, "sanderling_tokens_total")
    client.completions.create(model="chat", prompt="a", max_tokens=7, temperature=0)
    assert metric(port, "sanderling_tokens_total") == before + 7
    assert metric(port, "sanderling_first_token_seconds_count") > 0
    assert metric(port, "sanderling_text_decode_tokens_per_second") > 0
    assert metric(port, "sanderling_model_ready") == 3
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/chat/ready") as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/live/now") as answer:
        assert json.loads(answer.read())["setup"]["models"][0]["lanes"] == ["onnxruntime/cpu/fp32"]


def drop(client, number):
    """Open a conversation, read a little or nothing, and hang up."""
    stream = client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": f"conversation {number} " * (1 + number % 5)}],
        max_tokens=150,
        stream=True,
    )
    for _ in range(number % 4):
        next(iter(stream), None)
    stream.close()


def resident_after(client, process, port, numbers):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: drop(client, number), numbers))
    wait_until(lambda: metric(port, "sanderling_text_conversations") == 0)
    return psutil.Process(process.pid).memory_info().rss


def test_conversations_that_are_opened_and_dropped_leave_no_memory_behind(client, served):
    process, port = served
    resident_after(client, process, port, range(CONVERSATIONS))
    before = resident_after(client, process, port, range(CONVERSATIONS))
    after = resident_after(client, process, port, range(CONVERSATIONS))
    assert after - before < 4 * 2**20
    assert metric(port, "sanderling_text_kept_sequences") < CONVERSATIONS


@pytest.mark.drill
def test_five_hundred_conversations_that_are_dropped_leave_no_memory_behind(client, served):
    process, port = served
    before = resident_after(client, process, port, range(2 * CONVERSATIONS))
    began_s = time.monotonic()
    after = resident_after(client, process, port, range(500))
    print(f"500 conversations in {time.monotonic() - began_s:.1f} s: {(after - before) / 2**20:+.1f} MiB")  # noqa: T201
    assert after - before < 6 * 2**20
