"""JSON of many megabytes, read and written in a thread beside the one that serves.

Python's reader and writer hold the interpreter for the whole text, a second for 64 MiB, so a thread alone helps nobody.
Here long lists are read and written a slice at a time, and others run in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from json import decoder, scanner
from typing import Any

from sanderling.core.tensor import Array

LONG_BYTES = 128 * 1024  # from which on it is worth another thread
_SLICE = 64 * 1024  # characters or elements between two chances for others: about a millisecond
_MOST_BRACKETS = 2**20  # each is an object of many bytes, so that short text would become large memory
_MARKS = '"[{'

_Scan = Callable[[str, int], tuple[Any, int]]


def read_long(text: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What ``json.loads`` gives.

    Raises:
        ValueError: the text is no JSON, or has a million lists and objects.
        RecursionError: they are nested too deeply.
    """
    brackets = text.count("[") + text.count("{")
    if brackets > _MOST_BRACKETS:
        raise ValueError(f"it has {brackets} lists and objects: at most {_MOST_BRACKETS} are read; send flat lists")
    reader = decoder.JSONDecoder()
    reader.parse_array = _read_list  # type: ignore[attr-defined]
    reader.scan_once = scanner.py_make_scanner(reader)  # type: ignore[attr-defined]
    return reader.decode(text)


def write_numbers(array: Array) -> Iterator[bytes]:
    """The elements of an array of numbers, with commas between them; finite ones."""
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _SLICE):
        written = json.dumps(flat[begin : begin + _SLICE].tolist(), separators=(",", ":"), allow_nan=False)
        yield (b"," if begin else b"") + written[1:-1].encode()


def _read_list(text_and_begin: tuple[str, int], scan_once: _Scan) -> tuple[list[Any], int]:
    """A list from behind its bracket on: as many elements at once as are plain, the others one by one."""
    text, at = text_and_begin
    values: list[Any] = []
    while (end := _plain_until(text, at)) >= 0:
        part = _read_plain(text, at, end)
        if not part and (values or text[end] == ","):
            raise decoder.JSONDecodeError("Expecting value", text, end)
        values += part
        if text[end] == "]":
            return values, end + 1
        at = end + 1
    rest, end = decoder.JSONArray((text, at), scan_once)  # type: ignore[attr-defined]
    if values and not rest:
        raise decoder.JSONDecodeError("Expecting value", text, end - 1)
    return values + rest, end


def _plain_until(text: str, begin: int) -> int:
    """Where the list ends, or a slice of it that has neither strings, lists nor objects; -1 where it has."""
    limit = begin + _SLICE
    end = text.find("]", begin, limit)
    if end < 0:
        end = text.rfind(",", begin, limit)
    return -1 if any(text.find(mark, begin, end) >= 0 for mark in _MARKS) else end


def _read_plain(text: str, begin: int, end: int) -> list[Any]:
    try:
        part: list[Any] = json.loads(f"[{text[begin:end]}]")
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, begin + error.pos - 1) from None
    return part
