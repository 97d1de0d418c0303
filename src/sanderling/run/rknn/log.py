"""What Rockchip's toolkit prints: the only place where it says what went wrong."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sanderling.core.errors import EngineError, first_line

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NODE = re.compile(r'In Node, \("(?P<name>[^"]*)", (?P<kind>\w+), .*?Error (?P<reason>.+)')
_RAISED = re.compile(r"^[\w.]*(Error|Exception|Fail|InvalidGraph|NotImplemented): (?P<reason>.+)")
_ERROR = re.compile(r"^E (RKNN: \[[\d:.]+\] |\w+: )?(?P<reason>.+)")
_HARMLESS = re.compile(r"Unkown op target: 0|rknn-toolkit2 version|Traceback|Please feedback")


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Work in ``folder`` with all that is printed going to a file in it, that of native code too.

    The toolkit leaves files where it runs, and tells only in print where each layer goes.
    """
    log, place, temporary = folder / "log", Path.cwd(), tempfile.tempdir
    printed = [os.dup(descriptor) for descriptor in (1, 2)]
    _flush()
    try:
        with log.open("wb") as stream:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
        os.chdir(folder)
        tempfile.tempdir = str(folder)
        yield log
    finally:
        _flush()
        tempfile.tempdir = temporary
        os.chdir(place)
        for descriptor, kept in zip((1, 2), printed, strict=True):
            os.dup2(kept, descriptor)
            os.close(kept)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # the buffers of native code


def read_log(log: Path) -> list[str]:
    """The lines that were printed so far, without colours."""
    _flush()
    return [_COLOUR.sub("", line).rstrip() for line in log.read_text(errors="replace").splitlines()]


def raised(error: Exception) -> str:
    """What an exception of the toolkit means: its text is a traceback."""
    return reason([_COLOUR.sub("", line) for line in str(error).splitlines()], first_line(error))


def reason(told: Sequence[str], otherwise: str) -> str:
    """The most telling of the printed lines."""
    for line in told:
        found = _NODE.search(line)
        if found:
            return first_line(EngineError(f"operator {found['kind']} ('{found['name']}'): {found['reason']}"))
    for pattern in (_RAISED, _ERROR):
        reasons = [found["reason"] for line in told if (found := pattern.match(line)) and not _HARMLESS.search(line)]
        if reasons:
            return first_line(EngineError(reasons[-1]))
    return otherwise or "the toolkit does not say why"
