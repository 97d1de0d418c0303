"""The fault drill: `python -m benchmarks.runtime.drill [--seconds N] [--json FILE] [--only WORD]`.

Each fault in turn, while callers run, submit and await requests with priorities and deadlines. Every request carries
a number of its own that its result must show, and what becomes of every request is accounted: completed, refused with a
reason that the fault explains, or cancelled by its caller. Ends with `lost 0, duplicated 0, misrouted 0, wrong 0`, or
with exit code 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.runtime.callers import Callers
from benchmarks.runtime.faults import FAULTS, Fault, Rig
from benchmarks.runtime.ledger import FAULTS as KINDS
from benchmarks.runtime.ledger import Ledger
from sanderling.api import build
from sanderling.core.machine import describe_machine
from tests.models import save, sum_and_difference

_LEAST_S = 0.2
_SPARE_S = 240.0  # beside the seconds of load: then what hangs is shown, and the drill ends


def main() -> int:
    """Run the drill and print its last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, all faults together")
    parser.add_argument("--json", type=Path, help="file for the counts")
    parser.add_argument("--only", default="", help="faults with this word in their name")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.name]
    faulthandler.dump_traceback_later(arguments.seconds + _SPARE_S, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        package = built_sums(Path(folder))
        each_s = max(arguments.seconds / max(len(faults), 1), _LEAST_S)
        results = [drill(package, fault, each_s) for fault in faults]
    faulthandler.cancel_dump_traceback_later()
    total: Counter[str] = Counter()
    for result in results:
        total.update(result["faults"])
    if arguments.json is not None:
        value = {
            "command": f"python -m benchmarks.runtime.drill --seconds {arguments.seconds:g}",
            "machine": describe_machine().model_dump(mode="json"),
            "seconds": arguments.seconds,
            "requests": sum(result["requests"] for result in results),
            "faults": results,
            "total": {kind: total[kind] for kind in KINDS},
        }
        arguments.json.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    problems = [problem for result in results for problem in result["problems"]]
    print(", ".join(f"{kind} {total[kind]}" for kind in KINDS))
    return 1 if total.total() or problems else 0


def built_sums(folder: Path) -> Path:
    """A package of two inputs and two outputs, with any number of rows."""
    source = save(sum_and_difference(), folder / "sums.onnx")
    build(source, folder / "sums.sdl", precision="fp32", repeats=1)
    return folder / "sums.sdl"


def drill(package: Path, fault: Fault, seconds: float) -> dict[str, Any]:
    """One fault under load."""
    before = {thread.ident for thread in threading.enumerate()}
    ledger = Ledger(fault.refusals, once=fault.once)
    rig = Rig(package, fault, ledger)
    callers = Callers(lambda: rig.session, ledger, fault.load)
    disturbing = threading.Thread(target=_disturb, args=(rig,), name="disturbing", daemon=True)
    begun_s = time.monotonic()
    disturbing.start()
    time.sleep(seconds)
    rig.ended.set()
    disturbing.join(20)
    rig.expect(not disturbing.is_alive(), "what disturbs did not end")
    waiting = callers.stop()
    rig.expect(not waiting, f"still waiting: {', '.join(waiting)}")
    took_s = time.monotonic() - begun_s
    rig.session.close()
    _check_counts(rig)
    _check_leaks(rig, before)
    found = ledger.close()
    problems = [*rig.problems, *ledger.examples]
    told = ", ".join(f"{kind} {count}" for kind, count in ledger.fates().items())
    print(f"{fault.name}: {ledger.issued} requests in {took_s:.1f} s ({told})", *problems, sep="\n  ", flush=True)
    return {
        "fault": fault.name,
        "seconds": round(took_s, 2),
        "requests": ledger.issued,
        "fates": ledger.fates(),
        "events": dict(Counter(event.kind for event in rig.session.events)),
        "faults": found,
        "problems": problems,
    }


def _disturb(rig: Rig) -> None:
    try:
        rig.fault.disturb(rig)
    except Exception as error:  # noqa: BLE001 - shown with the result
        rig.problems.append(f"what disturbs failed: {type(error).__name__}: {error}")


def _check_counts(rig: Rig) -> None:
    """The runtime's own account of the last session must add up."""
    counts, _ = rig.session._runtime.tallies()
    fates = sum(counts[fate] for fate in ("completed", "failed", "late", "rejected", "cancelled"))
    rig.expect(counts["requests"] == fates, f"the runtime counts {counts['requests']} requests and {fates} fates")


def _check_leaks(rig: Rig, before: set[int | None]) -> None:
    """Neither threads nor processes outlive a session."""
    end_s = time.monotonic() + 5
    while (left := [thread.name for thread in threading.enumerate() if thread.ident not in before]) and (
        time.monotonic() < end_s
    ):
        time.sleep(0.01)
    rig.expect(not left, f"threads that were left: {', '.join(left)}")
    children = psutil.Process().children(recursive=True)
    rig.expect(not children, f"processes that were left: {children}")


if __name__ == "__main__":
    sys.exit(main())
