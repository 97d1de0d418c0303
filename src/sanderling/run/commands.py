"""Programs of others, run to their end: what they print is kept, and they are never asked anything."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run_command(
    command: Sequence[str], *, timeout_s: float, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit code and what it printed.

    Args:
        command: program and arguments.
        timeout_s: after which it is ended, with all that it started.
        folder: that it runs in; ours by default.
        variables: of its environment; ours by default.

    Raises:
        OSError: it could not be started.
        subprocess.TimeoutExpired: it took too long.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:  # what it has started itself holds our pipes, and would run on
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
