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
        OptionError: no JSON, or another kind of value.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise OptionError(f"{name} must be a JSON object, got {type(value).__name__}")
    return value
