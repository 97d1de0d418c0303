"""A fake `atc`, and `omg`: takes the real one's flags strictly, prints what it prints, and converts nothing.

It is told by the environment variable ``FAKE_ATC`` to end well (``ok``), to print an error (``E16002``), to end
without a file (``nothing``), to crash (``crash``) or to hang with a child of its own (``hang``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FLAGS = {
    "framework",
    "model",
    "output",
    "soc_version",
    "input_format",
    "input_shape",
    "dynamic_batch_size",
    "dynamic_image_size",
    "dynamic_dims",
    "precision_mode",
    "precision_mode_v2",
    "op_precision_mode",
    "modify_mixlist",
    "keep_dtype",
    "insert_op_conf",
    "log",
}
OMG_FLAGS = {"framework", "model", "output", "input_shape", "dynamic_dims", "insert_op_conf"}
_FILES = ("model", "op_precision_mode", "modify_mixlist", "keep_dtype", "insert_op_conf")
_REQUIRED = ("framework", "model", "output", "soc_version")
_FAILED = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"
_PRINTED = {
    "E16002": "E16002: [PID: 10490] 2026-12-01-09:02:18.501.341 No ONNX parser is registered for optype [Gelu].\n"
    "        Solution: Submit an issue to request for the support of this operator type.",
    "E10011": "E10011: Value [input:0,3] for parameter --input_shape is invalid.",
    "E19999": "E19999: Unknown error occurred. Please check the log.",
    "strange": "Segment library is missing",
}


def install(folder: Path, name: str = "atc") -> Path:
    """Make the fake an executable in ``folder``, which then belongs on PATH."""
    program = folder / name
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{Path(__file__)}' {name} \"$@\"\n")
    program.chmod(0o755)
    return program


def main(name: str, arguments: list[str]) -> int:
    """Do as the variable says; returns the exit code."""
    known, required = (FLAGS, _REQUIRED) if name == "atc" else (OMG_FLAGS, _REQUIRED[:3])
    _say("ATC start working now, please wait for a moment.")
    flags = {}
    for argument in arguments:
        flag, _, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or flag not in known:
            sys.stderr.write(f"ERROR: unknown command line flag '{flag}'\n")
            return 1
        flags[flag] = value
    wish = os.environ.get("FAKE_ATC", "ok")
    missing = next((flag for flag in required if not flags.get(flag)), None)
    absent = next((flags[flag] for flag in _FILES if flag in flags and not Path(flags[flag]).is_file()), None)
    if missing or absent:
        code = "E10410: File {} does not exist." if absent else "E10054: The required parameter {} for ATC is empty."
        _say(_FAILED, code.format(absent or missing))
        return 1
    if wish == "crash":
        sys.stderr.write("free(): invalid pointer\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGABRT)
    if wish == "hang":
        child = subprocess.Popen(["sleep", "600"])
        Path("child.pid").write_text(str(child.pid))
        time.sleep(600)
    if wish in _PRINTED:
        _say(_FAILED, _PRINTED[wish])
        return 1
    if wish == "ok":
        Path(f"{flags['output']}.om").write_text(json.dumps({"made by": f"a fake {name}", **flags}))
    Path("fusion_result.json").write_text("{}")
    Path("kernel_meta").mkdir(exist_ok=True)
    Path("kernel_meta", "conv.json").write_text("{}")
    _say("ATC run success, welcome to the next use.")
    return 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
