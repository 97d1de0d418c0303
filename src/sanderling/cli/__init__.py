"""The command line: arguments in, text or JSON out, and nothing else."""

from __future__ import annotations

import io
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command and exit with its code."""
    signal.signal(signal.SIGTERM, _terminated)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8; JSON has such escapes
    from typer import Abort, TyperException

    from sanderling.cli.app import app
    from sanderling.cli.output import BAD_INPUT, INTERRUPTED, fail

    as_json = "--json" in sys.argv[1:]
    try:
        sys.exit(app(prog_name="sanderling", standalone_mode=False))
    except TyperException as error:
        if not str(error):  # no command was given, and the help was printed instead
            sys.exit(BAD_INPUT)
        fail("UsageError", f"{error.format_message().rstrip('.')}; see --help", BAD_INPUT, as_json=as_json)
    except Abort:
        fail("Interrupted", "interrupted: nothing half-written was kept", INTERRUPTED, as_json=as_json)


def _terminated(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Leave through the ordinary clean-up, so that nothing half-written stays."""
    sys.exit(128 + number)
