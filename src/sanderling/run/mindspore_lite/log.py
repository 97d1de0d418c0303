"""What MindSpore Lite logs on standard error: its errors have codes, and its log has the reasons."""

from __future__ import annotations

import re

from sanderling.core.errors import EngineError, first_line

_ERROR = re.compile(r"^\[(?:ERROR|CRITICAL)\][^\]]*\] \w+\] (.+)$", re.MULTILINE)
_TELLING = re.compile(r"not support|unsupported|not found|invalid|nullptr|is null", re.IGNORECASE)


def first_error(log: str) -> str:
    """The first error that tells a reason, or the first error, or the last line."""
    errors = _ERROR.findall(log)
    lines = [text for text in errors if _TELLING.search(text)] or errors or log.strip().splitlines()[-1:]
    return first_line(EngineError(lines[0])) if lines else "it gave no reason"
