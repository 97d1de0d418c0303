"""Our policies against others, on a virtual clock: `python -m benchmarks.runtime.policies`, about ten minutes.

Four models on the article's latencies, with heat; three loads, three seeds each, thirty minutes of virtual time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.build.table import markdown
from sanderling.core.files import replacing
from sanderling.core.machine import describe_machine
from sanderling.run.emulation.table import LatencyTable, article_table
from sanderling.twin.contenders import contender
from sanderling.twin.simulate import Contender, play
from sanderling.twin.summary import Summary, summarize
from sanderling.twin.traces import Trace, specified

RESULTS = Path(__file__).with_name("policies.json")
MINUTES, SEEDS = 30.0, (1, 2, 3)
LOADS = {"moderate": 1.0, "busy": 1.5, "overload": 2.5}
OURS = ("default", "article", str(Path(__file__).with_name("below-throttling.json")))
BASELINES = (
    "baseline:fixed",
    "baseline:round-robin",
    "baseline:sel",
    "baseline:least-slack",
    "baseline:heft",
    "baseline:fixed-delay",
    "baseline:fixed-delay,device=any",
)
_LIMIT_C = 75.0
_MANY = 100.0
_SPEED = "+".join(
    f"poisson:{model}@{rate}/s,deadline=100"
    for model, rate in (("resnet18", 30), ("yolov5s", 20), ("mobilenetv3", 40), ("efficientnet-lite", 5))
)


def trace_text(load: float) -> str:
    """Two cameras at 30 frames a second, and two models whose rates grow with the load."""
    return (
        "camera:yolov5s@30fps,deadline=50,jitter=1+camera:mobilenetv3@30fps,deadline=33,jitter=1"
        f"+poisson:resnet18@{35 * load:g}/s,deadline=80"
        f"+bursty:efficientnet-lite@{4 * load:g}/s,burst={20 * load:g},calm=8,busy=2,deadline=200"
    )


def main() -> None:
    """Play everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--policy", action="append", default=[], help="play this one as well")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    table = article_table()
    results = {
        "command": "python -m benchmarks.runtime.policies",
        "machine": describe_machine().model_dump(),
        "minutes": options.minutes,
        "seeds": list(SEEDS),
        "table": table.source,
        "loads": {name: _load(load, (*OURS, *options.policy), table, options.minutes) for name, load in LOADS.items()},
        "speed": _speed(table),
    }
    with replacing(options.out) as scratch:
        scratch.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(render(results))


def _load(load: float, ours: Sequence[str], table: LatencyTable, minutes: float) -> dict[str, Any]:
    text = trace_text(load)
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in SEEDS:
        trace = specified(text, minutes=minutes, seed=seed)
        for name in (*ours, *BASELINES):
            start = time.perf_counter()
            made = contender(name, trace.models, table)
            numbers = _numbers(made, trace, table, seed)
            found.setdefault(made.name, []).append(numbers)
            sys.stderr.write(
                f"{load:g}, seed {seed}, {made.name}: {100 * numbers['slo_attainment']:.2f} % in time, "
                f"{len(trace) / (time.perf_counter() - start):.0f} requests a second\n"
            )
    return {"trace": text, "policies": found}


def _numbers(made: Contender, trace: Trace, table: LatencyTable, seed: int) -> dict[str, Any]:
    played = play(made, trace, table, seed=seed)
    summary = summarize(played, {device: frozenset({_LIMIT_C}) for device in table.device_kinds})
    return {
        "requests": summary.whole.requests,
        "slo_attainment": summary.whole.slo_attainment,
        "goodput_per_s": summary.whole.goodput_per_s,
        "slo_minute_1": summary.minutes[1].slo_attainment,
        "slo_minute_30": summary.minutes[30].slo_attainment if 30 in summary.minutes else None,
        "latency_ms": summary.whole.latency_ms,
        "late": summary.whole.late,
        "dropped": summary.whole.dropped,
        "rejected": summary.whole.rejected,
        "energy_per_inference_j": summary.energy_per_inference_j,
        "seconds_above_75_c": _seconds_above(summary),
        "highest_c": max(device.highest_c for device in summary.devices.values()),
        "switches": len(summary.switches),
    }


def _seconds_above(summary: Summary) -> float:
    """Of the device that was longest above 75 °C."""
    return max(device.seconds_above_c[_LIMIT_C] for device in summary.devices.values())


def _speed(table: LatencyTable) -> dict[str, float]:
    """Requests that the twin plays a second, every call with one row."""
    trace = specified(_SPEED, minutes=20, seed=0)
    single = LatencyTable(
        source=table.source,
        devices=table.devices,
        models={
            model: {device: entry.model_copy(update={"fixed": True}) for device, entry in entries.items()}
            for model, entries in table.models.items()
        },
    )
    seconds = []
    for _ in range(3):
        made = contender("default", trace.models, single)
        start = time.perf_counter(), time.process_time()
        played = play(made, trace, single)
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        assert played.rows.max() == 1
    wall, processor = (min(column) for column in zip(*seconds, strict=True))
    return {"requests": len(trace), "per_s": len(trace) / wall, "per_processor_s": len(trace) / processor}


def render(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    parts = []
    for name, load in results["loads"].items():
        parts += [f"### {name.capitalize()}: `{load['trace']}`", _table(load["policies"]), _margins(load["policies"])]
    speed = results["speed"]
    parts.append(
        f"The twin played {speed['per_s']:,.0f} requests a second ({speed['per_processor_s']:,.0f} a second of "
        f"processor time), {speed['requests']:,} requests of four models, each by itself."
    )
    return "\n\n".join(parts) + "\n"


def _table(policies: dict[str, list[dict[str, Any]]]) -> str:
    head = ["policy", "in time", "minute 1", "minute 30", "goodput", "p50", "p99", "J each", "above 75 °C", "highest"]
    rows = []
    for name, seeds in policies.items():
        late = [numbers["slo_minute_30"] for numbers in seeds if numbers["slo_minute_30"] is not None]
        rows.append(
            [
                f"`{name}`",
                f"{100 * _mean(seeds, 'slo_attainment'):.2f} %",
                f"{100 * _mean(seeds, 'slo_minute_1'):.2f} %",
                f"{100 * statistics.fmean(late):.2f} %" if late else "–",
                f"{_mean(seeds, 'goodput_per_s'):.1f} /s",
                f"{statistics.fmean(numbers['latency_ms']['p50'] for numbers in seeds):.1f} ms",
                f"{statistics.fmean(numbers['latency_ms']['p99'] for numbers in seeds):.0f} ms",
                f"{_mean(seeds, 'energy_per_inference_j'):.3f}",
                f"{_mean(seeds, 'seconds_above_75_c'):.0f} s",
                f"{max(numbers['highest_c'] for numbers in seeds):.1f} °C",
            ]
        )
    return markdown(head, rows)


def _margins(policies: dict[str, list[dict[str, Any]]]) -> str:
    """The default policy against each baseline: mean, and the worst of the seeds."""
    ours = policies[OURS[0]]
    parts = []
    for name in (baseline.removeprefix("baseline:") for baseline in BASELINES):
        points = [
            100 * (own["slo_attainment"] - other["slo_attainment"])
            for own, other in zip(ours, policies[name], strict=True)
        ]
        factors = [
            own["goodput_per_s"] / max(other["goodput_per_s"], 1e-9)
            for own, other in zip(ours, policies[name], strict=True)
        ]
        parts.append(
            f"`{name}` {statistics.fmean(points):+.3f} points (worst {min(points):+.3f}), goodput {_times(factors)}"
        )
    return f"`{OURS[0]}` against each: {'; '.join(parts)}."


def _times(factors: Sequence[float]) -> str:
    mean = statistics.fmean(factors)
    return f"×{mean:.3f}" if mean < _MANY else f"more than ×{_MANY:g}"


def _mean(seeds: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.fmean(numbers[key] for numbers in seeds)


if __name__ == "__main__":
    main()
