"""Turn `results.json` into `docs/benchmarks-engines.md`: `python -m benchmarks.engines.table`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-engines.md"
_SAME = 0.03  # of the best: the same for any use
_FIVEFOLD = 5.0
_NOTE = (
    "`plan` is what `tune` chose, `best` the quickest candidate when all are timed in turn, each with {calls} calls, "
    "a number fixed beforehand; both medians are from that exhaustive run. `tune` loads, checks "
    "outputs and races, for {tune_seconds:g} s at most; `exhaustive` loads and times, without the check. `FP32` is "
    "ONNX Runtime with both threads and the FP32 variant. Batch 1. The detector has YOLOv5s's shape at 320 × 320; "
    "MiniLM has its real weights and reads 128 tokens of real text with padding. Where weights are random, only speed "
    "counts."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    rows, ratios, behind = [], [], []
    for model in results["models"]:
        p50 = {name: numbers["p50"] for name, numbers in model["candidates"].items()}
        best = min(p50, key=lambda name: p50[name])
        plain = p50["onnxruntime/cpu/fp32/t2/b1"]
        plan = p50[model["winner"]]
        ratios.append(plain / plan)
        behind.append(plan / p50[best] - 1)
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
    head = ["model", "plan", "best", "plan over best", "FP32", "plan against FP32", "tune of exhaustive", "calls"]
    note = _NOTE.format(calls=results["exhaustive"]["calls"], tune_seconds=results["tune_seconds_asked"])
    parts = [
        "# Benchmarks: engines and the choice",
        f"Generated from `benchmarks/engines/results.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        note,
        markdown(head, rows),
        _summary(results["models"], ratios, behind),
        "## Cold start: loading without a cache and with a warm one, one thread",
        markdown(["engine and variant", *(model["name"] for model in results["models"])], _cold(results["models"])),
        "## What a call costs besides the engine, µs",
        markdown(["call", "bare", "with ours", "added"], _overheads(results)),
        "## All candidates, median of a call",
        markdown(["candidate", *(model["name"] for model in results["models"])], _all(results["models"])),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(models: list[dict[str, Any]], ratios: list[float], behind: list[float]) -> str:
    """What the numbers come to, against the aims."""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    fivefold = [model["name"] for model, ratio in zip(models, ratios, strict=True) if ratio >= _FIVEFOLD]
    tune, exhaustive = (sum(model[f"{kind}_seconds"] for model in models) for kind in ("tune", "exhaustive"))
    return (
        f"Geometric mean of plan against FP32: {mean:.2f}×; five times or more: {', '.join(fivefold) or 'none'}. The "
        f"plan is within {100 * _SAME:.0f} % of the best on {sum(one <= _SAME for one in behind)} of {len(behind)} "
        f"models, {100 * max(behind):.1f} % behind at worst. `tune` took {tune:.0f} s for all, the exhaustive run "
        f"{exhaustive:.0f} s: 1/{exhaustive / tune:.1f}."
    )


def _overheads(results: dict[str, Any]) -> list[list[str]]:
    """An engine's raw call and our adapter's, on a graph of one addition; a session's on the null engine."""
    session = results["session_overhead_us"]
    rows = [["session", session["engine"], session["session"], session["added"]]]
    rows += [[f"`{name}`", *(one[key] for key in ("raw", "adapter", "added"))] for name, one in _adapters(results)]
    return [[str(name), *(f"{number:.1f}" for number in numbers)] for name, *numbers in rows]


def _adapters(results: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    return sorted(results["adapter_overhead_us"].items())


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
