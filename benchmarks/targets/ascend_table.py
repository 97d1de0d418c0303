"""Turn `ascend.json` into `docs/benchmarks-ascend.md`: `python -m benchmarks.targets.ascend_table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("ascend.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-ascend.md"
_NOTE = (
    "Nothing here ran on a chip: the deploy graph (AscendQuant, AscendDequant) is computed by the documented "
    "definitions of its operators. The first two columns are about every value that is stored in eight bits, each "
    "operator given the QDQ graph's own integers: how far any is from that graph's, and how many are. `first class` "
    "and `cosine` compare outputs of both graphs end to end; `ONNX Runtime itself` compares its two ways to run QDQ "
    "graphs, rewritten and not, which differ by roundings too, and most where classes of random weights lie close "
    "together. `in INT8` counts convolutions and matrix products; the others multiply two activations. `export` is the "
    "whole command with all its checks."
)
_AIPP_NOTE = (
    "AIPP's arithmetic, in integers and FP16, against the preprocessing of {package}, YUV by the definition of its "
    "standard: the largest difference, in levels of 255."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    head = [
        "model",
        "largest, steps",
        "differ at all",
        "samples",
        "first class",
        "cosine",
        "ONNX Runtime itself",
        "cosine",
        "in INT8",
        "bytes",
        "export",
    ]
    rows = [
        [
            model["name"],
            f"{model['steps_largest']:g}",
            f"{1e6 * model['values_that_differ']:.1f} in a million",
            str(model["samples"]),
            *_agreement(model, ""),
            *_agreement(model, "_of_onnxruntime"),
            f"{model['nodes_in_int8']} of {model['heavy_nodes']}",
            f"{model['size_bytes'] / 1e6:.1f} MB",
            f"{model['export_s']:.0f} s",
        ]
        for model in results["models"]
    ]
    pictures = [
        [
            row["source"],
            row["matrix"] or "-",
            f"{row['levels_of_all_colours']:.2f}",
            f"{row['levels_on_photos']:.2f}",
        ]
        for row in results["aipp"]["rows"]
    ]
    parts = [
        "# Benchmarks: Ascend",
        f"Generated from `benchmarks/targets/ascend.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        _NOTE,
        markdown(head, rows),
        "## AIPP",
        _AIPP_NOTE.format(package=results["aipp"]["package"]),
        markdown(["source", "matrix", "all colours", f"{results['aipp']['photos']} photos"], pictures),
    ]
    return "\n\n".join(parts) + "\n"


def _agreement(model: dict[str, Any], whose: str) -> list[str]:
    """Share of the first classes, which an embedding of texts has none of, and the cosine."""
    share = "-" if "MiniLM" in model["name"] else f"{100 * model[f'first_class{whose}']:.1f} %"
    return [share, f"{model[f'cosine{whose}']:.5f}"]


if __name__ == "__main__":
    main()
