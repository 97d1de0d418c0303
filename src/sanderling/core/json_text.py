"""JSON objects that a user typed or wrote."""

from __future__ import annotations

import json
from typing import Any

from sanderling.core.errors import OptionError


def json_object(text: str, name: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        text: the JSON.
        name: what it is, for the message.

    Raises:
        OptionError: no JSON, a key that stands twice in one object, or another kind of value.
    """
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise OptionError(f"{name} must be a JSON object, got {type(value).__name__}")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key '{twice[:60]}' stands twice in one object")
    return value
