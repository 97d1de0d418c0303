"""Turn `results.json` into `docs/benchmarks-quantize.md`: `python -m benchmarks.quantize.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-quantize.md"
_SENSITIVITY, _SEARCH = "measure sensitivity", "search mixed precision"
_NOTE = (
    "`drop` is in points of the budget's metric on the evaluation data, `bound` its upper confidence bound there. "
    "`INT8` is the share of multiply–accumulates in INT8. Times are wall seconds on {threads} threads; `build` is all "
    "of it, with export, every variant and their proof."
)
_PHOTOS_NOTE = (
    "The evaluation crops are of few photos and flip together, so that agreement on them is erratic: here it is photo "
    "by photo. `fresh` are other crops of the same photos, which neither a build nor NNCF has seen."
)
_PEER_NOTE = (
    "NNCF {nncf}, `quantize_with_accuracy_control` with its defaults, ONNX backend: the same FP32 graph, the same "
    "{calibration} calibration and {validation} evaluation crops, agreement with FP32 as the accuracy function, by "
    "which layers are ranked, too, all cores. Its `max_drop` is kept by the drop as measured, ours by the drop's upper "
    "bound: the budgets do not promise the same. Both results are judged, counted and timed here, by the same code, "
    "on ONNX Runtime; `bound` is at 95 %. NNCF's time is that of its call; ours is that of quantising, measuring "
    "sensitivity and searching, without export and proof."
)
_LATENCY_NOTE = "Median of a call, all cores, one of each in turn. NNCF makes its graphs for OpenVINO."
_OUR_STAGES = (
    "calibrate: ranges",
    "calibrate: histograms",
    "quantise to INT8",
    "round weights by second moments",
    _SENSITIVITY,
    "measure accuracy",
    _SEARCH,
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    cases = results["cases"]
    parts = [
        "# Benchmarks: what INT8 costs in accuracy",
        f"Generated from `benchmarks/quantize/results.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        "## All INT8, and mixed precision under a budget",
        _NOTE.format(threads=results["threads"]),
        _case_table(cases),
    ]
    photos = [case for case in cases if case["photos"]]
    if photos:
        parts += ["## Agreement photo by photo", _PHOTOS_NOTE, _photo_table(photos, results["peer"])]
    if results["peer"]:
        parts += ["## Against NNCF, MobileNetV2", _peer_note(results["peer"]), _peer_table(cases, results["peer"])]
        parts += [_LATENCY_NOTE, _latency_table(results["peer"]["latency_p50_ms"])]
    if results["budget"]:
        parts += ["## The budget never lies", _budget_line(results["budget"])]
    return "\n\n".join(parts) + "\n"


def _case_table(cases: list[dict[str, Any]]) -> str:
    head = ["model", "calibration", "budget", "variant", "INT8", "drop", "bound", "p50", "evaluations"]
    head += ["sensitivity", "search", "build", "chosen"]
    rows = []
    for case in cases:
        first = [case["name"], case["data"], f"`{case['budget']}`"]
        seconds = case["stage_seconds"]
        last = [_seconds(seconds.get(_SENSITIVITY)), _seconds(seconds.get(_SEARCH)), _seconds(case["seconds"])]
        search = case["search"]
        for name in _reduced(case):
            accuracy = case[name]
            row = [*first, name, _percent(case["macs_int8_share"][name]), *_drop(accuracy)]
            row.append(f"{case['latency_p50_ms'][name]:.2f} ms of {case['latency_p50_ms']['fp32']:.2f}")
            rows.append([*row, str(search["evaluations"]) if search else "none", *last, case["chosen"]])
        if search and "mixed" not in case:
            rows.append(
                [*first, "mixed: none found", "", "", "", "", str(search["evaluations"]), *last, case["chosen"]]
            )
    return markdown(head, rows)


def _photo_table(cases: list[dict[str, Any]], peer: dict[str, Any] | None) -> str:
    entries = [
        (f"{case['name']}, {case['data']}, `{case['budget']}`: {name}", case["photos"][name], case["fresh"][name])
        for case in cases
        for name in _reduced(case)
    ]
    entries += [
        (f"NNCF, `max_drop` {run['max_drop']:g}", run["evaluation"], run["fresh"])
        for run in (peer["runs"] if peer else ())
    ]
    names = list(entries[0][1]["photos"])
    head = ["INT8 of", "all", *names, "fresh, all", *(f"fresh, {name}" for name in names), "SQNR"]
    return markdown(
        head,
        [
            [label, *_agreements(seen, names), *_agreements(fresh, names), f"{min(seen['sqnr_db'].values()):.1f} dB"]
            for label, seen, fresh in entries
        ],
    )


def _agreements(accuracy: dict[str, Any], names: list[str]) -> list[str]:
    return [f"{accuracy['value']:.1f} %", *(f"{accuracy['photos'][name]:.0f} %" for name in names)]


def _peer_note(peer: dict[str, Any]) -> str:
    return _PEER_NOTE.format(
        nncf=peer["runs"][0]["versions"]["nncf"],
        calibration=peer["calibration_samples"],
        validation=peer["validation_samples"],
    )


def _peer_table(cases: list[dict[str, Any]], peer: dict[str, Any]) -> str:
    """Ours with the peer's calibration data, then the peer's."""
    ours = [case for case in cases if (case["name"], case["data"]) == ("MobileNetV2", peer["data"])]
    rows = []
    for case in ours:
        seconds = sum(case["stage_seconds"].get(stage, 0.0) for stage in _OUR_STAGES)
        evaluations = str(case["search"]["evaluations"]) if case["search"] else "none"
        for name in _reduced(case):
            row = [f"Sanderling, `{case['budget']}`: {name}", _percent(case["macs_int8_share"][name])]
            row += [*_drop(case["photos"][name]), *_drop(case["fresh"][name])]
            rows.append([*row, _seconds(seconds), evaluations])
    for run in peer["runs"]:
        row = [f"NNCF, `max_drop` {run['max_drop']:g}", _percent(run["macs_int8_share"])]
        row += [*_drop(run["evaluation"]), *_drop(run["fresh"])]
        rows.append([*row, _seconds(run["seconds"]), str(run["validation_calls"])])
    head = ["what", "INT8", "drop", "bound", "fresh drop", "fresh bound", "time", "evaluations"]
    return markdown(head, rows)


def _latency_table(latencies: dict[str, dict[str, float]]) -> str:
    names = list(next(iter(latencies.values())))
    rows = [[engine, *(f"{times[name]:.2f} ms" for name in names)] for engine, times in latencies.items()]
    return markdown(["engine", *names], rows)


def _budget_line(budget: dict[str, Any]) -> str:
    worst = budget["worst"]
    return (
        f"`python -m benchmarks.quantize.budget` repeats the whole decision {worst['repeats']} times in each of "
        f"{budget['cases']} cases, with forms whose true drops are known and other samples each time "
        f"({budget['evaluation_samples']} to decide on). In the worst case, {worst['shape']} at a budget of "
        f"{worst['limit']:.3g} points, a form beyond the budget was accepted in {100 * worst['lies']:.2f} % of the "
        "repeats."
    )


def _reduced(case: dict[str, Any]) -> list[str]:
    return [name for name in ("int8", "mixed") if name in case]


def _drop(accuracy: dict[str, Any]) -> list[str]:
    return [f"{accuracy['drop']:.2f}", f"{accuracy['drop_upper']:.2f}"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
