"""A device over OpenSSH's client. The variable SANDERLING_SSH names another command, as ``ssh -F FILE``.

Nothing is asked: keys, known hosts and jumps are those of the user's own configuration.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from sanderling.core.errors import EngineError, OptionError, UnavailableError
from sanderling.measure.remote.devices import Ran, told_by

_LOST = 255  # OpenSSH's own exit code
_REACH_S, _COPY_S = 30.0, 900.0
_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


class SshDevice:
    """A host that ``ssh`` reaches."""

    folder = "/tmp"  # noqa: S108 - on the device, and a folder of its own is made there

    def __init__(self, name: str) -> None:
        host, _, port = name.partition(":")
        if port and not port.isdecimal():
            raise OptionError(f"--on 'ssh:{name}': port '{port}' is no number")
        self.name = f"ssh:{host.rpartition('@')[2]}"
        command = shlex.split(os.environ.get("SANDERLING_SSH", "ssh"))
        self._command = [*command, *_OPTIONS, *(["-p", port] if port else []), "--", host]

    def reach(self) -> None:
        """Log in and out again."""
        if shutil.which(self._command[0]) is None:
            raise UnavailableError(
                f"{self.name} is reached by '{self._command[0]}', which is missing: it comes with OpenSSH"
            )
        try:
            ran = self.run("true", timeout_s=_REACH_S)
        except EngineError as error:
            raise UnavailableError(f"{error}; try ssh {self._command[-1]} true") from error
        if ran.code:
            raise UnavailableError(f"{self.name} runs no commands: {told_by(ran)}")

    def push(self, file: Path, target: str) -> None:
        """Copy a file through the connection's input."""
        with file.open("rb") as stream:
            ran = self._ssh(f"cat > {shlex.quote(target)}", _COPY_S, source=stream)
        if ran.code:
            raise EngineError(f"{file.name} could not be copied to {self.name}: {told_by(ran)}")

    def pull(self, source: str, file: Path) -> None:
        """Copy a file through the connection's output."""
        with file.open("wb") as stream:
            ran = self._ssh(f"cat {shlex.quote(source)}", _COPY_S, sink=stream)
        if ran.code:
            file.unlink()
            raise EngineError(f"{Path(source).name} could not be copied from {self.name}: {told_by(ran)}")

    def run(self, command: str, *, timeout_s: float) -> Ran:
        """Run a command of its shell."""
        return self._ssh(command, timeout_s)

    def _ssh(
        self, command: str, timeout_s: float, *, source: IO[bytes] | None = None, sink: IO[bytes] | None = None
    ) -> Ran:
        """Run a command with that input and output.

        Raises:
            EngineError: it took too long, or the connection was lost.
        """
        words: Sequence[str] = [*self._command, command]
        with ExitStack() as stack:
            given = source or stack.enter_context(Path(os.devnull).open("rb"))
            try:
                done = subprocess.run(
                    words,
                    stdin=given,
                    stdout=sink or subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    timeout=timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise EngineError(f"{self.name} gave no answer for {timeout_s:g} s") from error
            except OSError as error:
                raise EngineError(f"{self.name} cannot be reached: {error.strerror}") from error
        ran = Ran(done.returncode, (done.stdout or b"").decode(errors="replace"), done.stderr.decode(errors="replace"))
        if ran.code == _LOST:
            raise EngineError(f"{self.name} cannot be reached: {told_by(ran)}")
        return ran
