"""The C++ runner on this machine: compiled, and run against the library of the installed ONNX Runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Any

from sanderling.core.errors import EngineError, UnavailableError, first_line
from sanderling.run.commands import run_command

_COMPILE_S, _RUN_S = 120.0, 120.0


def compiler() -> str | None:
    """The machine's C++ compiler, or None: the one that CXX names, else g++ or clang++."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None
    )


def library() -> Path:
    """ONNX Runtime's shared library in the installed package.

    Raises:
        UnavailableError: it has none.
    """
    spec = util.find_spec("onnxruntime")
    folder = Path(spec.origin).parent / "capi" if spec and spec.origin else Path()
    found = sorted(folder.glob("libonnxruntime.so.*"))
    if not found:
        raise UnavailableError(f"the installed onnxruntime has no libonnxruntime.so in {folder}")
    return found[0]


def run_here(sources: Path, golden: Path, *, repeats: int = 1) -> Mapping[str, Any]:
    """Compile the runner and let it run the golden calls; returns what it wrote.

    Args:
        sources: the folder `runner` of an export.
        golden: the folder with `golden.tsv` and the model.
        repeats: timed calls.

    Raises:
        EngineError: it does not compile, or fails; the message has its own first line.
    """
    program = compiler()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="sanderling-runner-") as scratch:
        made = Path(scratch) / "sanderling-run"
        files = [str(path) for path in sorted(sources.glob("*.cc"))]
        flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
        _run([program, *flags, *files, "-o", str(made), "-ldl"], _COMPILE_S, "does not compile")
        out = Path(scratch) / "benchmark.json"
        words = [
            str(golden),
            "--library",
            str(library()),
            "--warmup",
            "0",
            "--repeats",
            str(repeats),
            "--out",
            str(out),
        ]
        _run([str(made), *words], _RUN_S, "failed", accepted=(0, 1))
        found: dict[str, Any] = json.loads(out.read_bytes())
    return found


def _run(command: list[str], timeout_s: float, failed: str, accepted: tuple[int, ...] = (0,)) -> None:
    try:
        done = run_command(command, timeout_s=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"the C++ runner {failed}: {first_line(error)}") from error
    if done.returncode not in accepted:
        told = first_line(RuntimeError(done.stderr or done.stdout or f"exit code {done.returncode}"))
        raise EngineError(f"the C++ runner {failed}: {told}")
