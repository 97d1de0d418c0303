"""Turn the results into `docs/benchmarks-vision.md`: `python -m benchmarks.vision.table`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

FOLDER = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-vision.md"
_OURS = "sanderling"
_PREPROCESS_NOTE = (
    "{source} to a float tensor, on one thread, medians of {repeats} rounds in which all ways take turns on the same "
    "frames; the tensor is the engine's own. `OpenCV blobFromImage` resizes without antialiasing, `Pillow and NumPy` "
    "is what training does, `NumPy` is the equations written down. ms on the clock, and of the processor in brackets."
)
_STREAM_NOTE = (
    "Throughput is told as a share of what the slowest stage could do alone. Under overload frames come twice as fast "
    "as the slowest stage takes them, and the newest wins; latency is from the capture of a frame to its result, and "
    "told in sums of the stages' mean times."
)


def main() -> None:
    """Write the page."""
    found = {name: FOLDER / f"{name}.json" for name in SECTIONS}
    results = {name: json.loads(path.read_text("utf-8")) for name, path in found.items() if path.is_file()}
    PAGE.write_text(render(results), encoding="utf-8")


def render(results: dict[str, dict[str, Any]]) -> str:
    """The page as Markdown; a part for each result that there is."""
    parts = ["# Benchmarks: vision"]
    for name, result in results.items():
        parts += SECTIONS[name](result)
    return "\n\n".join(parts) + "\n"


def preprocess_section(result: dict[str, Any]) -> list[str]:
    """Ways to a tensor, and how much ours is ahead."""
    ways = list(next(iter(result["cases"].values())))
    rows = []
    for case, found in result["cases"].items():
        own = found[_OURS]["processor_ms"]["p50"]
        others = [found[way]["processor_ms"]["p50"] / own for way in ways if way != _OURS]
        limit = result["limits_ms"].get(case)
        rows.append(
            [
                case,
                *(f"{found[way]['clock_ms']['p50']:.2f} ({found[way]['processor_ms']['p50']:.2f})" for way in ways),
                ", ".join(f"{other:.1f}×" for other in others),
                "" if limit is None else f"{limit:g} ms",
            ]
        )
    return [
        "## From a camera's frame to a tensor",
        _origin(result, "preprocess"),
        machine_line(result["machine"]) + f" OpenCV {result['opencv']}.",
        _PREPROCESS_NOTE.format(source=result["source"], repeats=result["repeats"]),
        markdown(["to", *ways, "ahead of these, processor", "aim"], rows),
    ]


def stream_section(result: dict[str, Any]) -> list[str]:
    """Throughput, and latency where the newest frame wins."""
    rows = [
        [
            f"stages that wait {name} ms",
            f"{found['share_of_slowest_stage']:.3f}",
            f"{found['overload']['p95_of_stages']:.2f}",
            f"{found['overload']['dropped']} of {found['overload']['frames']}",
        ]
        for name, found in result["waiting"].items()
    ]
    real, overload = result["real"], result["overload"]
    rows.append(
        [
            f"MobileNetV2, random weights, 1 thread; slowest is {real['slowest_stage']}, {real['slowest_ms']:.1f} ms",
            f"{real['share_of_slowest_stage']:.3f}",
            f"{overload['p95_of_stages']:.2f}",
            f"{overload['dropped']} of {overload['frames']}",
        ]
    )
    quarters = ", ".join(f"{each:.1f}" for each in overload["p95_ms_by_quarter"])
    memory = ", ".join(f"{each / 1e6:.0f}" for each in overload["memory_bytes_by_quarter"])
    return [
        "## Streams",
        _origin(result, "stream"),
        machine_line(result["machine"]) + f" OpenCV {result['opencv']}.",
        _STREAM_NOTE,
        markdown(["stages", "throughput", "p95 of latency under overload", "dropped"], rows),
        (
            f"The overloaded model ran for {overload['seconds']:g} s. p95 of the latency in each quarter: {quarters} "
            f"ms; memory after each quarter and at the end: {memory} MB."
        ),
    ]


def _origin(result: dict[str, Any], name: str) -> str:
    return f"Generated from `benchmarks/vision/{name}.json`, which `{result['command']}` wrote. Do not edit."


SECTIONS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "preprocess": preprocess_section,
    "stream": stream_section,
}


if __name__ == "__main__":
    main()
