"""Which converter writes ``.ms`` here: the official program where it is on PATH, else the PyPI wheel's libraries."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import EngineError, ModelError, UnavailableError, first_line
from sanderling.core.files import replacing
from sanderling.run.commands import run_command
from sanderling.run.mindspore_lite import library
from sanderling.run.mindspore_lite.converter import convert_file
from sanderling.run.mindspore_lite.log import first_error
from sanderling.workshop.targets.base import Tool

PROGRAM = "converter_lite"
LIBRARIES = "mindspore-lite"
TFLITE_WRITER = "ai-edge-litert"
_CONVERT_S = 600.0
_SHELL_SIGNALS = 128  # a shell around a program that a signal ended returns this and the signal's number
_PROGRAM_HINT = "MindSpore Lite's own converter: unpack its release and add tools/converter/converter to PATH"


@dataclass(frozen=True)
class Converter:
    """A converter that is here.

    Attributes:
        label: what records call it.
        program: the official one; None for the libraries.
        timeout_s: of one conversion.
    """

    label: str
    program: Path | None = None
    timeout_s: float = _CONVERT_S

    def convert(self, source: Path, target: Path, *, half: bool = False) -> None:
        """Write ``target``, a ``.ms``; the whole file or nothing. Inputs keep the order of their axes.

        Args:
            source: ``.onnx``, lowered, or ``.tflite``.
            target: its folder exists.
            half: keep weights in 16 bits.

        Raises:
            ModelError: the converter does not take the graph; the message holds what it logged.
            EngineError: it could not be run, crashed or took too long.
            OutputError: ``target`` cannot be written.
        """
        channels_last = source.suffix == ".tflite"  # means to the converter that no input has to be turned
        if self.program is None:
            convert_file(source, target, half=half, channels_last=channels_last)
            return
        flags = [
            f"--fmk={'TFLITE' if channels_last else 'ONNX'}",
            f"--modelFile={source}",
            f"--inputDataFormat={'NHWC' if channels_last else 'NCHW'}",
            f"--fp16={'on' if half else 'off'}",
            "--saveType=MINDIR_LITE",
        ]
        with tempfile.TemporaryDirectory(prefix="sanderling-mindspore-") as scratch, replacing(target) as temporary:
            written = Path(scratch) / "model.ms"
            log = self._run([*flags, f"--outputFile={written.with_suffix('')}"], Path(scratch))
            if not written.is_file():
                raise ModelError(f"{PROGRAM} wrote nothing: {first_error(log)}")
            shutil.copyfile(written, temporary)

    def _run(self, flags: Sequence[str], folder: Path) -> str:
        """Run the program; its log is the answer."""
        try:
            done = run_command([str(self.program), *flags], timeout_s=self.timeout_s, folder=folder)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{PROGRAM} gave no answer for {self.timeout_s:g} s and was ended") from error
        except OSError as error:
            raise EngineError(f"{PROGRAM} could not be run: {first_line(error)}") from error
        log = done.stderr + done.stdout
        if done.returncode < 0 or done.returncode > _SHELL_SIGNALS:
            raise EngineError(f"{PROGRAM} crashed: {first_error(log)}")
        if done.returncode:
            raise ModelError(f"{PROGRAM} refuses it: {first_error(log)}")
        return log


def find_converter() -> Converter:
    """The official program, or the libraries.

    Raises:
        UnavailableError: neither is here.
    """
    program = shutil.which(PROGRAM)
    if program:
        return Converter(f"{PROGRAM} (on PATH)", Path(program))
    state = library.state()
    if not state.usable:
        raise UnavailableError(
            f"no converter writes .ms here: {PROGRAM} is not on PATH, and the libraries of PyPI's {LIBRARIES} "
            f"{library.VERSION} are missing: {state.hint}"
        )
    return Converter(f"the converter in PyPI's {LIBRARIES} {library.VERSION}, called through Sanderling's bridge")


def require_tflite_writer() -> None:
    """Look for what INT8 needs before anything is converted.

    Raises:
        UnavailableError: it is missing.
    """
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise UnavailableError(f"INT8 becomes .ms by way of TFLite, which needs a package: pip install {TFLITE_WRITER}")


def tools() -> tuple[Tool, ...]:
    """What may be used, and whether it is here."""
    program, state = shutil.which(PROGRAM), library.state()
    writer = importlib.util.find_spec("ai_edge_litert") is not None
    return (
        Tool(PROGRAM, bool(program), hint="" if program else _PROGRAM_HINT),
        Tool(LIBRARIES, state.usable, library.VERSION if state.usable else "", state.hint),
        Tool(TFLITE_WRITER, writer, hint="" if writer else f"pip install {TFLITE_WRITER}, for INT8"),
    )
