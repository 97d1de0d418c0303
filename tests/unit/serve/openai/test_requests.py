import json

import pytest

from sanderling.serve.errors import TooLargeError
from sanderling.serve.openai.errors import ParameterError
from sanderling.serve.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest, read_request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def read(form, **fields):
    base = {ChatRequest: CHAT, CompletionRequest: {"model": "m", "prompt": "hello"}}.get(form, {"model": "m"})
    return read_request(json.dumps({**base, **fields}).encode(), form)


def test_a_chat_with_every_parameter_that_is_known_is_read():
    request = read(
        ChatRequest,
        temperature=0,
        top_p=0.9,
        top_k=40,
        repetition_penalty=1.1,
        seed=7,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        n=1,
        max_completion_tokens=5,
        max_tokens=9,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        user="u",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    )
    assert request.stops == ("a", "b")
    assert request.most_tokens == 5
    assert request.includes_usage
    assert request.response_format.json_schema.schema_ == {"type": "object"}


def test_parts_of_text_are_one_message():
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    assert read(ChatRequest, messages=[{"role": "user", "content": parts}]).messages[0].text == "hello"


@pytest.mark.parametrize(
    ("fields", "parameter", "told"),
    [
        ({"n": 2}, "n", "parameter 'n': input should be 1; got 2"),
        ({"temperature": 3}, "temperature", "less than or equal to 2; got 3"),
        ({"temperature": "hot"}, "temperature", "got 'hot'"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "got 0.5"),
        ({"logprobs": True}, "logprobs", "got True"),
        ({"stop": list("abcde")}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"tools": [{}]}, "tools", "unknown parameter 'tools': expected frequency_penalty"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages", "'system', 'developer', 'user'"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "got"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named_with_what_it_was(fields, parameter, told):
    with pytest.raises(ParameterError) as error:
        read(ChatRequest, **fields)
    assert error.value.parameter == parameter
    assert told in str(error.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(ParameterError, match="no JSON object"):
        read_request(body, ChatRequest)


def test_a_missing_parameter_is_named():
    with pytest.raises(ParameterError, match="parameter 'messages' is missing"):
        read_request(b'{"model": "m"}', ChatRequest)


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [1, 2, 3]])
def test_a_prompt_is_text_or_tokens(prompt):
    assert read(CompletionRequest, prompt=prompt).prompt == prompt


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [[1], [2]], [-1], 5, None])
def test_no_prompt_and_several_are_refused(prompt):
    with pytest.raises(ParameterError) as error:
        read(CompletionRequest, prompt=prompt)
    assert error.value.parameter == "prompt"


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_inputs_of_embeddings_are_told_apart(given, inputs):
    assert read(EmbeddingRequest, input=given).inputs == inputs


def test_a_request_longer_than_any_conversation_is_refused_before_it_is_read():
    with pytest.raises(TooLargeError, match="at most 2097152"):
        read_request(b"[" * 2_100_000, ChatRequest)


def test_a_request_that_is_nothing_but_faults_is_told_so_without_a_list_of_them():
    with pytest.raises(ParameterError, match=r"'messages\.0'"):
        read(ChatRequest, messages=[1] * 4000)
    with pytest.raises(ParameterError, match="has 500 faults: expected frequency_penalty, "):
        read(ChatRequest, **{f"k{number}": 1 for number in range(500)})
