"""Measure what INT8 costs in accuracy: `python -m benchmarks.quantize.run [--folder DIR] [--only NAME] [--quick]`.

Builds each case for each of its budgets, lets NNCF do the same on MobileNetV2, writes
`benchmarks/quantize/results.json` and regenerates `docs/benchmarks-quantize.md`. Needs `requirements-models.txt`,
Debian's `dataset-fashion-mnist` and `opencv-doc`, and a network for NNCF's environment. About half an hour on two cores
that nobody else uses; packages that are in the folder already are used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.quantize import table
from benchmarks.quantize.cases import PEER_CASE, Case, Counts, make_cases
from benchmarks.quantize.judging import agreement, int8_share, read_samples, variant_files
from benchmarks.quantize.peer import measure_peer
from sanderling.api import build
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.model.package import EVIDENCE, Package
from sanderling.workshop.evidence import Evidence
from sanderling.workshop.options import parse_budget

RESULTS = Path(__file__).with_name("results.json")
_QUICK = Counts(calibration=8, photos=64, test_images=400, fashion_calibration=32, scenes=40)
_BUDGET_BENCHMARK = "benchmarks.quantize.budget"


def main() -> None:
    """Run all cases, or those whose name contains ``--only``; parts and quick looks are printed, not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    parser.add_argument("--only", default="", help="part of a case's name, or NNCF, or budget")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works, not how well")
    arguments = parser.parse_args()
    only = arguments.only.lower()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        cases = make_cases(folder, _QUICK if arguments.quick else Counts())
        wanted = [case for case in cases if only in case.name.lower()]
        value = {
            "command": "python -m benchmarks.quantize.run",
            "machine": describe_machine().model_dump(),
            "threads": usable_cores(),
            "cases": [result for case in wanted for result in measure_case(case, folder)],
            "peer": _peer(cases[0], folder) if only in "nncf" else None,
            "budget": _budget(folder, quick=arguments.quick) if only in "budget" else None,
        }
    if only or arguments.quick:
        print(json.dumps(value, indent=1))
        print(table.render(value))
        return
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    table.main()


def measure_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Build for each budget; one that all INT8 keeps is not searched for, and neither is a looser one."""
    results: list[dict[str, Any]] = []
    for budget in case.budgets:
        result = _result(case, budget, _built(case, budget, folder))
        results.append(result)
        if result["search"] is None and result["int8"]["drop_upper"] <= parse_budget(budget).limit:
            break
    return results


def _built(case: Case, budget: str, folder: Path) -> Package:
    """The package, which its evidence says everything about: building it again would measure the same."""
    path = folder / f"{case.name}-{case.data}-{budget}.sdl".lower().replace(" ", "-")
    if not path.is_dir():
        print(f"{case.name}, {case.data}, {budget}: build", flush=True)
        build(case.source, path, budget=budget, **case.options)
    return Package.open(path)


def _result(case: Case, budget: str, package: Package) -> dict[str, Any]:
    evidence = Evidence.model_validate_json(package.file(EVIDENCE).read_bytes())
    assert evidence.quantization is not None
    search = evidence.quantization.search
    variants = {variant.id: variant for variant in package.manifest.variants}
    files = variant_files(package)
    reduced = {name: path for name, path in files.items() if name in ("int8", "mixed")}
    photos = {name: path for name, path in files.items() if name == "fp32" or name in reduced}
    return {
        "name": case.name,
        "data": case.data,
        "budget": budget,
        "chosen": package.manifest.chosen,
        "candidates": [candidate.model_dump() for candidate in evidence.quantization.candidates],
        "search": search.summary() if search else None,
        "stage_seconds": evidence.stage_seconds,
        "seconds": round(sum(evidence.stage_seconds.values()), 1),
        "macs_int8_share": {name: int8_share(path) for name, path in reduced.items()},
        **{name: accuracy.model_dump() for name in reduced if (accuracy := variants[name].accuracy)},
        "latency_p50_ms": {name: one.latency_ms.p50 for name, one in variants.items() if one.latency_ms},
        "photos": agreement(photos, read_samples(package, case.options["evaluation"])) if case.fresh else None,
        "fresh": agreement(photos, read_samples(package, case.fresh)) if case.fresh else None,
    }


def _peer(case: Case, folder: Path) -> dict[str, Any]:
    assert case.name == PEER_CASE
    assert case.fresh is not None
    package = _built(case, case.budgets[0], folder)
    calibration, evaluation = case.options["calibration"], case.options["evaluation"]
    drops = tuple(parse_budget(budget).limit for budget in case.budgets)
    return {"data": case.data, **measure_peer(folder, package, calibration, evaluation, case.fresh, drops)}


def _budget(folder: Path, *, quick: bool) -> dict[str, Any] | None:
    """How often the search accepts what misses the budget: a benchmark of its own, where it is there."""
    if find_spec(_BUDGET_BENCHMARK) is None:
        return None
    out = folder / "budget.json"
    command = [sys.executable, "-m", _BUDGET_BENCHMARK, "--out", str(out), *(["--repeats", "50"] if quick else [])]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    value: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return {key: value[key] for key in value if key != "cases"} | {"cases": len(value["cases"])}


if __name__ == "__main__":
    main()
