"""What a command prints, where, and the code that it exits with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from sanderling.core.errors import (
    EngineError,
    InputError,
    NotMetError,
    OutputError,
    SanderlingError,
    UnavailableError,
)

if TYPE_CHECKING:
    from rich.console import Console

DONE, ANSWER_IS_NO, BAD_INPUT, MISSING, INTERRUPTED = 0, 1, 2, 3, 130
_EXIT_CODES: tuple[tuple[type[SanderlingError], int], ...] = (
    (InputError, BAD_INPUT),
    (OutputError, BAD_INPUT),
    (NotMetError, ANSWER_IS_NO),
    (EngineError, ANSWER_IS_NO),
    (UnavailableError, MISSING),
)


def exit_code(error: SanderlingError) -> int:
    """The exit code that an error stands for."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ANSWER_IS_NO)


@contextmanager
def reporting_errors(*, as_json: bool) -> Iterator[None]:
    """Turn our errors into one line on stderr (and, with ``as_json``, an object on stdout) and an exit code."""
    try:
        yield
    except SanderlingError as error:
        fail(type(error).__name__, str(error), exit_code(error), as_json=as_json)
    except OSError as error:
        fail("OSError", f"{error.filename or 'a file'}: {error.strerror or error}", BAD_INPUT, as_json=as_json)
    except KeyboardInterrupt:
        fail("Interrupted", "interrupted: nothing half-written was kept", INTERRUPTED, as_json=as_json)


def print_result(value: dict[str, Any], *, as_json: bool, show: Callable[[Console], None]) -> None:
    """Print one JSON object on stdout, or let ``show`` print for people."""
    if as_json:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        return
    from rich.console import Console

    show(Console(highlight=False, soft_wrap=False))


def fail(kind: str, message: str, code: int, *, as_json: bool) -> NoReturn:
    """Print one line on stderr (and, with ``as_json``, an object on stdout) and exit."""
    line = " ".join(message.split())
    sys.stderr.write(f"sanderling: error: {line}\n")
    if as_json:
        sys.stdout.write(json.dumps({"error": {"type": kind, "message": line}}, ensure_ascii=False) + "\n")
    sys.exit(code)
