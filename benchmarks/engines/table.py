"""Turn `results.json` into `docs/benchmarks-engines.md`: `python -m benchmarks.engines.table`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-engines.md"
_NOTE = (
    "`plan` is what `tune` chose, `best` the quickest candidate when all are timed 100 times in turn; both from the "
    "exhaustive run. `FP32` is ONNX Runtime with both threads and the FP32 variant. Batch 1."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    rows, ratios = [], []
    for model in results["models"]:
        p50 = {name: numbers["p50"] for name, numbers in model["candidates"].items()}
        best = min(p50, key=lambda name: p50[name])
        plain = p50["onnxruntime/cpu/fp32/t2/b1"]
        plan = p50[model["winner"]]
        ratios.append(plain / plan)
        rows.append(
            [
                model["name"],
                f"{model['winner']} {plan:.2f} ms",
                f"{best} {p50[best]:.2f} ms",
                f"{100 * (plan / p50[best] - 1):+.1f} %",
                f"{plain:.2f} ms",
                f"{plain / plan:.2f}×",
                f"{model['tune_seconds']:.0f} s of {model['exhaustive_seconds']:.0f} s",
                f"{model['race_calls']} of {model['exhaustive_calls']}",
            ]
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    head = ["model", "plan", "best", "plan over best", "FP32", "plan against FP32", "tune of exhaustive", "calls"]
    overhead = results["session_overhead_us"]
    summary = (
        f"Geometric mean of plan against FP32: {mean:.2f}×. A session adds {overhead['added']:.1f} µs to the engine's "
        f"call (median; {overhead['engine']:.1f} → {overhead['session']:.1f} µs on the null engine)."
    )
    parts = [
        "# Benchmarks: engines and the choice",
        f"Generated from `benchmarks/engines/results.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        _NOTE,
        markdown(head, rows),
        summary,
        "## Cold start: loading without a cache and with a warm one, one thread",
        markdown(["engine and variant", *(model["name"] for model in results["models"])], _cold(results["models"])),
        "## All candidates, median of a call",
        markdown(["candidate", *(model["name"] for model in results["models"])], _all(results["models"])),
    ]
    return "\n\n".join(parts) + "\n"


def _cold(models: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for name in sorted({name for model in models for name in model["cold_start_ms"]}):
        cells = []
        for model in models:
            load = model["cold_start_ms"].get(name)
            cells.append(
                f"{load['uncached']:.0f} → {load['cached']:.0f} ms ({load['cached'] / load['uncached']:.2f}×)"
                if load
                else ""
            )
        rows.append([f"`{name}`", *cells])
    return rows


def _all(models: list[dict[str, Any]]) -> list[list[str]]:
    names = sorted({name for model in models for name in [*model["candidates"], *model["excluded"]]})
    rows = []
    for name in names:
        cells = []
        for model in models:
            numbers = model["candidates"].get(name)
            cells.append(f"{numbers['p50']:.2f} ms" if numbers else model["excluded"].get(name, ""))
        rows.append([f"`{name}`", *cells])
    return rows


if __name__ == "__main__":
    main()
