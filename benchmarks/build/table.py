"""Turn `results.json` into `docs/benchmarks.md`: `python -m benchmarks.build.table`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
_SPEED_NOTE = (
    "Calls of both in turn in one process; the ratio is the median over the pairs. Memory is what loading and three "
    "runs add to a fresh process, median of five."
)
_ACCURACY_NOTE = (
    "`bound` is the upper 95 % confidence bound of the drop. Crops of one photo are not independent, so the bound on "
    "crops is too hopeful."
)
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    parts = [
        "# Benchmarks",
        f"Generated from `benchmarks/build/results.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        "## INT8 against FP32 on ONNX Runtime",
        _SPEED_NOTE,
        _speed_table(results["cases"]),
        "## Accuracy of INT8",
        _ACCURACY_NOTE,
        _accuracy_table(results["cases"]),
    ]
    if results["whole_processes"]:
        parts += ["## Whole processes", _process_table(results["whole_processes"])]
    return "\n\n".join(parts) + "\n"


def machine_line(machine: dict[str, Any]) -> str:
    """What the numbers were measured on."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Machine: {machine['processor']}, {machine['cores']} cores ({', '.join(machine['cpu_features'])}), "
        f"{machine['memory_bytes'] / 1e9:.0f} GB, {machine['system']}, Python {machine['python']}. {versions}. "
        "The machine is virtual and shared: read ratios, not milliseconds."
    )


def _speed_table(cases: list[dict[str, Any]]) -> str:
    speeds = [(speed["threads"], speed["batch"]) for speed in cases[0]["speed"]]
    head = [
        "model",
        "file",
        "memory",
        *(f"{threads} thread{'s' * (threads > 1)}, batch {batch}" for threads, batch in speeds),
    ]
    rows = []
    for case in cases:
        size = case["size_bytes"]["int8"] / case["size_bytes"]["fp32"]
        memory = {name: statistics.median(values) for name, values in case["memory_bytes"].items()}
        ratios = [
            f"{speed['ratio_median']:.2f}× ({speed['fp32']['p50']:.2f} → {speed['int8']['p50']:.2f} ms)"
            for speed in case["speed"]
        ]
        rows.append([case["name"], f"{size:.3f}×", f"{100 * (memory['int8'] / memory['fp32'] - 1):+.0f} %", *ratios])
    return markdown(head, rows)


def _accuracy_table(cases: list[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        kept = case["kept"]
        how = f"{kept['method']}, bias correction {'on' if kept['bias_correction'] else 'off'}"
        build_data = ("build's evaluation data", case["accuracy"])
        for name, accuracy in (build_data, *case["further_accuracy"].items()):
            rows.append(
                [
                    case["name"],
                    name,
                    str(accuracy["samples"]),
                    f"{accuracy['metric']} {accuracy['value']:.2f} %",
                    f"{accuracy['drop']:.2f}",
                    f"{accuracy['drop_upper']:.2f}",
                    how,
                    case["chosen"],
                ]
            )
    return markdown(["model", "data", "samples", "INT8", "drop, points", "bound", "kept candidate", "chosen"], rows)


def _process_table(whole: dict[str, Any]) -> str:
    built = whole["build_from_onnx"]
    start = whole["start_seconds"]
    rows = [
        [
            "build EfficientNet-Lite0 from ONNX with 128 photos",
            f"{built['seconds']:.0f} s, peak {built['peak_memory_bytes'] / 1e6:.0f} MB",
            f"120 s, {built['limit_bytes'] / 1e6:.0f} MB",
        ],
        [
            "`sanderling --help` over the bare interpreter",
            f"{1e3 * start['help']['difference_median']:.0f} ms",
            "200 ms",
        ],
        ["`sanderling run` of a package on a photo", f"{start['run']['command_median']:.2f} s", "1.5 s"],
    ]
    return markdown(["what", "measured", "limit"], rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
