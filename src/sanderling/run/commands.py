"""Programs of others, run to their end: what they print is kept, and they are never asked anything."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_command(
    command: Sequence[str], *, timeout_s: float, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit code and what it printed.

    Args:
        command: program and arguments.
        timeout_s: after which it is ended.
        folder: that it runs in; ours by default.
        variables: of its environment; ours by default.

    Raises:
        OSError: it could not be started.
        subprocess.TimeoutExpired: it took too long.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
