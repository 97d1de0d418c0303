"""`atc`'s numbered errors: named before it is asked, and read from what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from sanderling.core.errors import EngineError, ModelError, OptionError, SanderlingError

_NUMBERED = re.compile(r"^\s*(E[0-9A-Z]\d{4}): *(?:\[PID: \d+\] *[\d.:-]+ *)?(.*)$")
_UNKNOWN_FLAG = re.compile(r"unknown command line flag '([^']*)'")
_OF_THE_MODEL = re.compile(r"E(?:11|12|16|19010|13009|13010|13023|10501|14|Z3003|Z9999)")
_OF_THE_COMMAND = re.compile(r"E(?:10|13000|13001|13026)")


@cache
def catalogue() -> dict[str, str]:
    """Text of every error by its number; ``%s`` stands for what it is about."""
    text = resources.files(__package__).joinpath("data/atc_errors.json").read_text("utf-8")
    listed: dict[str, str] = json.loads(text)
    return listed


def numbered(code: str, *values: object) -> str:
    """What `atc` would print, with its number."""
    text = catalogue()[code] % values
    return f"atc {code}: {text.rstrip('.')}"


def excluded(code: str, *values: object, instead: str) -> OptionError:
    """The error for a command that `atc` would refuse."""
    return OptionError(f"{numbered(code, *values)}; {instead}")


def failure(program: str, printed: str, returncode: int) -> SanderlingError:
    """Our error for what a program printed: about the model, about the command, or about itself."""
    lines = printed.splitlines()
    flag = next((match for match in map(_UNKNOWN_FLAG.search, lines) if match), None)
    if flag:
        return EngineError(f"this {program} has no --{flag[1]}: install a newer CANN toolkit, or leave that option out")
    found = [match for match in map(_NUMBERED.match, lines) if match]
    if not found:
        return EngineError(f"{program} ended with code {returncode}: {_last_line(lines)}")
    code, told = found[0].groups()
    message = f"{program} {code}: {told.rstrip('. ') or catalogue().get(code, 'it gave no reason')}"
    if _OF_THE_MODEL.match(code):
        return ModelError(f"{message}; sanderling check --target ascend names operators without a parser")
    return OptionError(message) if _OF_THE_COMMAND.match(code) else EngineError(message)


def _last_line(lines: Sequence[str]) -> str:
    told = [line.strip() for line in lines if line.strip()]
    return told[-1] if told else "it printed nothing"
