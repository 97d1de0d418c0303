"""ONNX or TFLite to ``.ms``, with MindSpore's own converter in a process that ends with the conversion."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.core.errors import EngineError, ModelError, SanderlingError, first_line
from sanderling.core.files import replacing
from sanderling.run.commands import run_command
from sanderling.run.mindspore_lite import library
from sanderling.run.mindspore_lite.log import first_error
from sanderling.run.mindspore_lite.native import Bridge

if TYPE_CHECKING:
    import onnx

_CONVERT_S = 600


def convert(
    lowered: onnx.ModelProto,
    target: Path,
    *,
    half: bool = False,
    channels_last: bool = False,
    config: str = "",
) -> None:
    """Write ``target``, a ``.ms``; the whole file or nothing.

    Args:
        lowered: a graph that ``model/lowering.py`` has lowered for ``mindspore``.
        target: its folder exists.
        half: keep weights in 16 bits.
        channels_last: inputs of four axes become NHWC, as the converter's own command makes them by default.
        config: the converter's file of sections, such as ``[common_quant_param]``.

    Raises:
        ModelError: the converter does not take the graph; the message holds what it logged.
        EngineError: it could not be run, crashed or took too long.
        UnavailableError: MindSpore Lite is not installed.
        OutputError: ``target`` cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="sanderling-mindspore-") as scratch:
        source = Path(scratch) / "model.onnx"
        try:
            source.write_bytes(lowered.SerializeToString(deterministic=True))
        except (OSError, ValueError) as error:
            raise EngineError(f"mindspore's converter could not be given the graph: {first_line(error)}") from error
        convert_file(source, target, half=half, channels_last=channels_last, config=config)


def convert_file(
    source: Path, target: Path, *, half: bool = False, channels_last: bool = False, config: str = ""
) -> None:
    """Write ``target`` as ``convert`` does.

    Args:
        source: ``.onnx``, lowered, or ``.tflite``, whose inputs keep their order with ``channels_last``.
        target: its folder exists.
        half: keep weights in 16 bits.
        channels_last: inputs of four axes become NHWC; those of a ``.tflite`` count as being it.
        config: the converter's file of sections.
    """
    bridge = library.bridge()
    with tempfile.TemporaryDirectory(prefix="sanderling-mindspore-") as scratch, replacing(target) as temporary:
        written, settings = Path(scratch) / "model.ms", Path(scratch) / "converter.ini"
        try:
            settings.write_text(config)
        except OSError as error:
            raise EngineError(f"mindspore's converter could not be given its settings: {first_line(error)}") from error
        flags = [str(int(half)), str(int(channels_last)), str(settings) if config else ""]
        log = _run([str(bridge), str(source), str(written), *flags])
        if not written.is_file():
            raise ModelError(f"its converter wrote nothing: {first_error(log)}")
        shutil.copyfile(written, temporary)


def _run(arguments: list[str]) -> str:
    """Run the converter; its log is the answer.

    Raises:
        ModelError: it refused the graph.
        EngineError: it could not be run, crashed or took too long.
    """
    try:
        done = run_command(
            [sys.executable, "-m", "sanderling.run.mindspore_lite.converter", *arguments], timeout_s=_CONVERT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"mindspore's converter could not be run: {first_line(error)}") from error
    if done.returncode < 0:
        raise EngineError(f"mindspore's converter crashed: {first_error(done.stderr)}")
    if done.returncode:
        raise ModelError(f"its converter refuses it: {first_error(done.stderr)}")
    return done.stderr


def main(arguments: list[str]) -> None:
    """Convert in this process: bridge, source, target, 16-bit weights, NHWC inputs, settings file."""
    bridge, source, target, half, channels_last, config = arguments
    options = {"half": half == "1", "channels_last": channels_last == "1"}
    try:
        Bridge(Path(bridge)).convert(Path(source), Path(target), config=Path(config) if config else None, **options)
    except SanderlingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
