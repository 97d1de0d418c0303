"""A device over OpenHarmony's `hdc`. The variable HDC names another program.

``hdc`` ends with 0 whatever happened: a command's exit code is echoed after it, and a copy is believed when ``hdc``
says that it finished.

Source: openharmony/docs, dfx/hdc.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from sanderling.core.errors import EngineError, UnavailableError, first_line
from sanderling.measure.remote.devices import Ran
from sanderling.run.commands import run_command

_REACH_S, _COPY_S = 30.0, 900.0
_FINISHED = "FileTransfer finish"
_EXIT = re.compile(r"(?s)(?P<told>.*)sanderling-exit=(?P<code>\d+)\s*$")


class HdcDevice:
    """A device that ``hdc list targets`` shows."""

    folder = "/data/local/tmp"

    def __init__(self, key: str) -> None:
        self.name = f"hdc:{key}"
        self._key = key
        self._program = os.environ.get("HDC", "hdc")

    def reach(self) -> None:
        """Look for it among the targets."""
        if shutil.which(self._program) is None:
            raise UnavailableError(
                f"{self.name} is reached by '{self._program}', which is missing: it comes with the OHOS SDK"
            )
        try:
            told = self._hdc(["list", "targets"], _REACH_S)
        except EngineError as error:
            raise UnavailableError(str(error)) from error
        targets = [line.strip() for line in told.splitlines() if line.strip()]
        if self._key not in targets:
            known = ", ".join(target for target in targets if target != "[Empty]") or "none"
            raise UnavailableError(f"hdc reaches no device '{self._key}': connected are {known}")

    def push(self, file: Path, target: str) -> None:
        """Copy a file there."""
        told = self._hdc(["-t", self._key, "file", "send", str(file), target], _COPY_S)
        if _FINISHED not in told:
            raise EngineError(f"{file.name} could not be copied to {self.name}: {first_line(RuntimeError(told))}")

    def pull(self, source: str, file: Path) -> None:
        """Copy a file here."""
        told = self._hdc(["-t", self._key, "file", "recv", source, str(file)], _COPY_S)
        if _FINISHED not in told or not file.is_file():
            name = Path(source).name
            raise EngineError(f"{name} could not be copied from {self.name}: {first_line(RuntimeError(told))}")

    def run(self, command: str, *, timeout_s: float) -> Ran:
        """Run a command of its shell; both of its outputs come as one."""
        told = self._hdc(["-t", self._key, "shell", f"({command}) 2>&1; echo sanderling-exit=$?"], timeout_s)
        found = _EXIT.match(told)
        if found is None:
            raise EngineError(f"{self.name} ran no command: {first_line(RuntimeError(told))}")
        return Ran(int(found["code"]), found["told"])

    def _hdc(self, words: list[str], timeout_s: float) -> str:
        """What the program printed.

        Raises:
            EngineError: it could not be started, failed, or took too long.
        """
        try:
            done = run_command([self._program, *words], timeout_s=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{self.name} gave no answer for {timeout_s:g} s") from error
        except OSError as error:
            raise EngineError(f"{self.name} cannot be reached: {error.strerror}") from error
        told = done.stdout.replace("\r\n", "\n") + done.stderr
        if done.returncode:
            raise EngineError(f"{self.name} cannot be reached: {first_line(RuntimeError(told))}")
        return told
