"""The soak: `python -m benchmarks.runtime.soak [--requests N] [--cycles N] [--seconds N] [--json FILE]`.

As many requests as ten a second make in two days, as fast as they go, with batches, switches, failures and
cancellations: resident memory must not grow in the second of them. Then packages are loaded and unloaded in processes
of their own: memory, processes, descriptors, threads and shared memory must be as before. Exit code 1 where they are
not.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import math
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.runtime.callers import Callers, Load
from benchmarks.runtime.drill import built_sums
from benchmarks.runtime.ledger import Tally
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import fitted_slope
from sanderling.run.policy.document import Policy
from sanderling.run.session import load
from tests.engines import Script, When, scripted_session
from tests.requests import belongs_to, numbered

DAY_REQUESTS = 24 * 3600 * 10
_SAMPLE_S = 0.1
_BLOCKS = 20  # of samples, whose means are compared
_STUDENT_18 = 2.101  # 97.5 % point for the mean of the 19 steps between them
_MOST_GROWTH = 0.05
_SHARED = Path("/dev/shm")


def main() -> int:
    """Run both parts and print what they show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2 * DAY_REQUESTS, help="of the first part")
    parser.add_argument("--cycles", type=int, default=1000, help="of the second part")
    parser.add_argument("--seconds", type=float, default=420.0, help="at most, for the first part")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.seconds + 2.0 * arguments.cycles + 240.0, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        package = built_sums(Path(folder))
        value: dict[str, Any] = {
            "command": "python -m benchmarks.runtime.soak",
            "machine": describe_machine().model_dump(mode="json"),
        }
        if arguments.requests:
            value["load"] = under_load(package, arguments.requests, arguments.seconds)
        if arguments.cycles:
            value["cycles"] = load_and_unload(package, arguments.cycles)
    faulthandler.cancel_dump_traceback_later()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return 0 if all(part["passed"] for part in value.values() if isinstance(part, dict) and "passed" in part) else 1


def under_load(package: Path, requests: int, seconds: float) -> dict[str, Any]:
    """Resident memory while requests run, and its slope in the second half."""
    process = psutil.Process()
    tally = Tally()
    # The last thousand events are kept: failures are frequent enough that there are as many long before half time.
    scripts = {"npu": Script(fails=When(numbers=range(50, 10**9, 97))), "gpu": Script()}
    samples = np.ones((int(seconds / _SAMPLE_S) + 1, 2), np.int64)  # requests and bytes; its own memory must not grow
    count = 0
    policy: dict[str, Any] = {
        "recovery": {"holdOff": 5},
        "batchTuning": {"maxBatchSize": 8},
        "deadlines": {"dropLate": True},
    }
    with scripted_session(package, scripts, **policy) as session:
        for script in scripts.values():
            script.remember = False
        callers = Callers(lambda: session, tally, Load(cancelled=0.05, deadlines_ms=(None, 50.0, 2.0)))
        begun_s = time.monotonic()
        while tally.issued < requests and count < len(samples):
            time.sleep(_SAMPLE_S)
            samples[count] = tally.issued, process.memory_info().rss
            count += 1
            if count % 20 == 0:
                session.switch(device="gpu" if session.device == "npu" else "npu")
        waiting = callers.stop()
        took_s = time.monotonic() - begun_s
    half = samples[count // 2 : count]
    blocks = [float(part[:, 1].mean()) for part in np.array_split(half, _BLOCKS)]
    per_block = (half[-1, 0] - half[0, 0]) / _BLOCKS
    slope, (low, high) = fitted_slope(blocks)[0], drift(blocks)
    slope, low, high = (float(each / per_block * 1e6) for each in (slope, low, high))
    start_bytes, half_bytes, end_bytes = (int(samples[place, 1]) for place in (0, count // 2, count - 1))
    value = {
        "requests": tally.issued,
        "seconds": round(took_s, 1),
        "fates": dict(tally.counts),
        "faults": tally.faults(),
        "resident_bytes": {"start": start_bytes, "half": half_bytes, "end": end_bytes},
        "resident_bytes_by_block": [round(block) for block in blocks],
        "bytes_a_million_requests": {"slope": round(slope), "low": round(low), "high": round(high)},
        "passed": low <= 0 <= high and not waiting and not tally.faults(),
    }
    print(
        f"{tally.issued} requests in {took_s:.0f} s: {half_bytes / 1e6:.1f} MB at half time, {end_bytes / 1e6:.1f} "
        f"at the end; slope {slope / 1e3:.1f} kB a million requests, 95 % between {low / 1e3:.1f} and {high / 1e3:.1f}"
        f" ({'passed' if value['passed'] else 'FAILED'})",
        flush=True,
    )
    return value


def load_and_unload(package: Path, cycles: int) -> dict[str, Any]:
    """What is left of this process after sessions in processes of their own, two at a time."""
    policy = Policy.model_validate({"devicePriorities": ["cpu"], "isolation": "process"})

    def cycle(number: int) -> int:
        with load(package, policy=policy, threads=1) as session:
            assert belongs_to(session.run(numbered(number)), number)
        return int(psutil.Process().memory_info().rss)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(cycle, range(1, 11)))  # what is imported and kept once
        before, begun_s = _state(), time.monotonic()
        resident = list(pool.map(cycle, range(1, cycles + 1)))
        took_s, after = time.monotonic() - begun_s, _state()
    growth = after["resident_bytes"] / before["resident_bytes"] - 1
    same = all(after[key] <= before[key] for key in ("processes", "descriptors", "threads", "shared_files"))
    value = {
        "cycles": cycles,
        "seconds": round(took_s, 1),
        "before": before,
        "after": after,
        "resident_bytes": resident[:: max(1, cycles // 50)],
        "growth": round(growth, 4),
        "passed": abs(growth) <= _MOST_GROWTH and same,
    }
    print(
        f"{cycles} cycles in {took_s:.0f} s: {before['resident_bytes'] / 1e6:.1f} MB before, "
        f"{after['resident_bytes'] / 1e6:.1f} after ({growth:+.1%}); processes, descriptors, threads and shared files "
        f"{list(before.values())[1:]} before, {list(after.values())[1:]} after"
        f" ({'passed' if value['passed'] else 'FAILED'})",
        flush=True,
    )
    return value


def drift(blocks: list[float]) -> tuple[float, float]:
    """95 % interval of the mean step from block to block.

    Resident memory moves in steps and stays: what it is off a line is not independent from block to block, its steps
    are, so the regression's own interval would be too narrow.
    """
    steps = np.diff(blocks)
    reach = _STUDENT_18 * float(steps.std(ddof=1)) / math.sqrt(len(steps))
    return float(steps.mean()) - reach, float(steps.mean()) + reach


def _state() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "resident_bytes": process.memory_info().rss,
        "processes": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "shared_files": len(list(_SHARED.iterdir())) if _SHARED.is_dir() else 0,
    }


if __name__ == "__main__":
    sys.exit(main())
