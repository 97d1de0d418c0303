"""Turn `exports.json` into `docs/benchmarks-exports.md`: `python -m benchmarks.targets.exports_table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("exports.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-exports.md"
MODELS = (".xml", ".bin", ".ort", ".rknn")
_NOTE = (
    "EfficientNet-Lite0 of `sanderling demo`. `golden` is the largest relative error of the golden calls, against the "
    "variant's own outputs; nets that a toolkit quantised itself have the least cosine similarity with FP32 instead. "
    "`first class` is the share of photos whose first class is that of ONNX Runtime with the same variant. `export` is "
    "the whole command with all its checks, without the photos."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    head = ["target", "device", "variant", "form", "golden", "on", "first class", "bytes", "export"]
    parts = [
        "# Benchmarks: exports",
        f"Generated from `benchmarks/targets/exports.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        _NOTE,
        markdown(head, list(map(_row, results["exports"]))),
    ]
    return "\n\n".join(parts) + "\n"


def _row(row: dict[str, Any]) -> list[str]:
    golden = row["proofs"][0]
    value = f"{golden['value']:.4f}" if "cosine" in golden["what"] else f"{golden['value']:.1e}"
    agreement = next((proof["value"] for proof in row["proofs"] if proof["what"].startswith("first class")), None)
    return [
        row["target"],
        row["device"],
        row["variant"],
        row["form"] or row["variant"],
        f"cosine {value}" if "cosine" in golden["what"] else value,
        golden["on"],
        "-" if agreement is None else f"{agreement:.2f} %",
        f"{row['size_bytes'] / 1e6:.1f} MB",
        f"{row['seconds']:.0f} s",
    ]


if __name__ == "__main__":
    main()
