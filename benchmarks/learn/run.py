"""Measure learning: `python -m benchmarks.learn.run [--only NAME] [--folder DIR]`.

Writes `benchmarks/learn/results.json` and regenerates `docs/benchmarks-learn.md`. A part measured alone takes the place
of its older numbers, and keeps its own machine and time. Needs Debian's `espeak-ng` and `dataset-fashion-mnist`, the
packages of `requirements-models.txt`, and the extras of `dev`; a part that misses something says so and keeps its older
numbers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.learn import table
from sanderling.core.errors import UnavailableError
from sanderling.core.files import replacing
from sanderling.core.machine import describe_machine

RESULTS = Path(__file__).with_name("results.json")
PARTS = ("gradients", "steps", "memory", "spoken", "camera", "texts", "private", "commands")


def main() -> None:
    """Measure all parts, or those that ``--only`` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, help="where tasks and data go; a temporary folder by default")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    with ExitStack() as stack:
        for name in arguments.only:
            folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            measured = _measured(name, folder)
            if measured is not None:
                results[name] = measured
                _keep(results)
    table.main()


def _measured(name: str, folder: Path) -> dict[str, Any] | None:
    print(f"== {name}", flush=True)
    start = time.perf_counter()
    try:
        value = importlib.import_module(f"benchmarks.learn.{name}").measure(folder)
    except (FileNotFoundError, UnavailableError) as error:
        print(f"{name} was not measured: {error}", file=sys.stderr)
        return None
    return {
        "command": f"python -m benchmarks.learn.run --only {name}",
        "machine": describe_machine().model_dump(),
        "seconds": round(time.perf_counter() - start),
        "value": value,
    }


def _keep(results: dict[str, Any]) -> None:
    with replacing(RESULTS) as target:
        target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
