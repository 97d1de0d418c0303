"""Every key of a policy file: where it stands, its default, what it means.

``python -m sanderling.run.policy.keys`` prints the table of docs/policy.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from sanderling.run.policy.document import FallbackThreshold, Policy, meanings

_THRESHOLDS = "fallbackThresholds"
DEVICE = "DEVICE"  # stands for a device's name


class Key(NamedTuple):
    """A key; ``place`` are the names on the way to it."""

    place: tuple[str, ...]
    default: Any
    meaning: str

    @property
    def name(self) -> str:
        """As in ``batchTuning.maxBatchSize``."""
        return ".".join(self.place)


def keys() -> tuple[Key, ...]:
    """All keys in the file's order."""
    return tuple(_keys(Policy, ()))


def table() -> str:
    """All keys as a Markdown table."""
    rows = [f"| `{key.name}` | {_default(key.default)} | {key.meaning} |" for key in keys()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) + "\n"


def example() -> dict[str, Any]:
    """The article's policy with every key written out; a ``$comment`` in each section says what its keys mean."""
    thresholds = {"NPU": {"latency": 15, "temp": 75}, "GPU": {"latency": 30, "temp": 80}, "CPU": {}}
    policy = Policy.model_validate({"devicePriorities": [*thresholds], _THRESHOLDS: thresholds})
    content = policy.model_dump(mode="json", by_alias=True)
    content["devicePriorities"] = [*thresholds]
    for device, section in zip(thresholds, content[_THRESHOLDS].values(), strict=True):
        section["cooldownTemp"] = policy.threshold(device.lower()).return_c
    sections = [dict(section) for section in content[_THRESHOLDS].values()]
    sections[0] = {"$comment": _comment((_THRESHOLDS, DEVICE)), **sections[0]}
    content[_THRESHOLDS] = dict(zip(thresholds, sections, strict=True))
    for name, section in content.items():
        if isinstance(section, dict) and name != _THRESHOLDS:
            content[name] = {"$comment": _comment((name,)), **section}
    return {"$comment": _comment(()), **content}


def _comment(section: tuple[str, ...]) -> dict[str, str]:
    return {key.place[-1]: key.meaning for key in keys() if key.place[:-1] == section}


def _keys(section: type[BaseModel], place: tuple[str, ...]) -> Iterator[Key]:
    words = meanings(section)
    for name, field in section.model_fields.items():
        key = field.alias or name
        if isinstance(field.default, BaseModel):
            yield from _keys(type(field.default), (*place, key))
            continue
        if key == _THRESHOLDS:
            yield from _keys(FallbackThreshold, (*place, key, DEVICE))
            continue
        default = section.model_validate({}).model_dump(mode="json", by_alias=True)[key]
        yield Key((*place, key), default, words[key])


def _default(value: object) -> str:
    if value is None or value in ([], {}):
        return "none"
    return f"`{value:g}`" if isinstance(value, float) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    sys.stdout.write(table())
