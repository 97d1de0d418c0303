"""Resident memory, threads and sessions over cycles of load, run and unload, in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from sanderling.core.errors import EngineError, OptionError, SanderlingError, first_line
from sanderling.core.statistics import fitted_slope
from sanderling.core.tensor import random_feeds
from sanderling.measure.doctor.findings import Finding, fault
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions

LEAST_CYCLES = 8
_TIMEOUT_S = 900
_SETTLING_SHARE = 0.25
_PAGES_BYTES = 16 << 10


def check_count(cycles: int) -> None:
    """Check that there are no cycles, or enough of them.

    Raises:
        OptionError: fewer than a line needs.
    """
    if 0 < cycles < LEAST_CYCLES:
        raise OptionError(f"--cycles {cycles} is too few to fit a line: at least {LEAST_CYCLES} are needed")


def check_cycles(file: Path, engine_name: str, cycles: int) -> tuple[list[Finding], str]:
    """Load, run and unload a graph again and again, and fit a line to what stays.

    Returns:
        Findings, and the numbers in words.

    Raises:
        EngineError: the measuring process failed.
    """
    return judge_cycles(_measured(file, engine_name, cycles), f"{file.name} on {engine_name}")


def judge_cycles(measured: dict[str, list[int]], subject: str) -> tuple[list[Finding], str]:
    """Decide whether memory or threads grow.

    Args:
        measured: ``resident_bytes`` and ``threads`` after each cycle.
        subject: what was loaded.
    """
    settled = measured["resident_bytes"][int(len(measured["resident_bytes"]) * _SETTLING_SHARE) :]
    slope, low, high = (value / 1e3 for value in fitted_slope([float(value) for value in settled]))
    verdict = "grows" if low * 1e3 > _PAGES_BYTES else "does not grow"
    told = (
        f"resident memory {verdict}: {slope:+.1f} kB a cycle, 95 % between {low:+.1f} and {high:+.1f}, over the last "
        f"{len(settled)} of {len(measured['resident_bytes'])} cycles"
    )
    found = []
    if verdict == "grows":
        numbers = {"slope_kb": slope, "slope_low_kb": low, "slope_high_kb": high}
        remedy = "load once and keep the session; report it to the engine's makers with this command"
        found.append(fault("memory-growth", subject, told, remedy, **numbers))
    threads = measured["threads"][int(len(measured["threads"]) * _SETTLING_SHARE) :]
    each = (threads[-1] - threads[0]) / (len(threads) - 1)
    if each >= 0.5:
        evidence = f"{threads[-1]} threads after the last cycle, {threads[0]} after the first that counts"
        remedy = "load once and keep the session"
        found.append(fault("thread-growth", subject, evidence, remedy, threads_per_cycle=each))
    return found, told


def _measured(file: Path, engine_name: str, cycles: int) -> dict[str, list[int]]:
    request = json.dumps({"model": str(file), "engine": engine_name, "cycles": cycles})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sanderling.measure.doctor.cycles", request],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        detail = (getattr(error, "stderr", "") or first_line(error)).strip().splitlines()
        raise EngineError(f"cycles of {file.name} could not be measured: {detail[-1] if detail else ''}") from error
    if "error" in answer:
        raise EngineError(f"{engine_name} failed while {file.name} was loaded again and again: {answer['error']}")
    return answer


def _measure(request: str) -> dict[str, Any]:
    wanted = json.loads(request)
    chosen = engine(wanted["engine"])
    options = EngineOptions(threads=1, compute=chosen.devices()[0].computes[0])
    process = psutil.Process()
    resident: list[int] = []
    threads: list[int] = []
    try:
        for _ in range(wanted["cycles"]):
            executable = chosen.load(Path(wanted["model"]), options)
            executable.run(random_feeds(executable.inputs))
            executable.close()
            del executable
            gc.collect()
            _trim()
            resident.append(int(process.memory_info().rss))
            threads.append(process.num_threads())
    except SanderlingError as error:
        return {"error": str(error)}
    return {"resident_bytes": resident, "threads": threads}


def _trim() -> None:
    """Give freed memory back, so that what glibc keeps for later does not look like a leak."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(_measure(sys.argv[1]))}\n")
