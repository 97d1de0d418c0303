from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.core.json_text import json_object


def test_object_is_read():
    assert json_object('{"a": {"b": [1]}, "b": 2}', "it") == {"a": {"b": [1]}, "b": 2}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '{"b": {"a": 1, "c": 2, "a": 3}}', '{"b": [{"a": 1, "a": 2}]}'])
def test_key_that_stands_twice_is_refused_at_any_depth(text):
    with pytest.raises(OptionError, match="it is not valid JSON: key 'a' stands twice in one object"):
        json_object(text, "it")


@pytest.mark.parametrize(("text", "message"), [("[1]", "got list"), ("1", "got int"), ("null", "got NoneType")])
def test_another_value_is_refused(text, message):
    with pytest.raises(OptionError, match=f"it must be a JSON object, {message}"):
        json_object(text, "it")


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[" * 200_000])
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(OptionError, match="it is not valid JSON"):
        json_object(text, "it")
