"""What the server says while it runs: one line each on stderr."""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import TextIO


class Log:
    """Writes short lines, or one JSON object a line. Usable from several threads.

    Args:
        as_json: write JSON.
        stream: stderr by default.
    """

    def __init__(self, *, as_json: bool = False, stream: TextIO | None = None) -> None:
        self._as_json = as_json
        self._stream = stream

    def info(self, event: str, message: str, **fields: object) -> None:
        """Something happened that an operator wants to know.

        Args:
            event: its kind, such as ``started``.
            message: for people.
            fields: for programs.
        """
        self._write("info", event, message, fields)

    def warning(self, event: str, message: str, **fields: object) -> None:
        """Something is not as it should be."""
        self._write("warning", event, message, fields)

    def failure(self, event: str, error: BaseException, **fields: object) -> None:
        """Something that nobody foresaw, with where it happened."""
        where = "".join(traceback.format_exception(error))
        self._write("error", event, f"{type(error).__name__}: {error}", {**fields, "traceback": where})

    def _write(self, level: str, event: str, message: str, fields: dict[str, object]) -> None:
        stream = self._stream or sys.stderr
        line = " ".join(message.split())
        if self._as_json:
            text = json.dumps({"time": _now(), "level": level, "event": event, "message": line, **fields}, default=str)
        else:
            text = f"{_now()} {line}" if level == "info" else f"{_now()} {level}: {line}"
            if "traceback" in fields:
                text += f"\n{fields['traceback']}".rstrip()
        try:
            stream.write(text + "\n")
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            return


def _now() -> str:
    now_s = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1000):03d}Z"
