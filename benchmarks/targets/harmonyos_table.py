"""Turn `harmonyos.json` into `docs/benchmarks-harmonyos.md`: `python -m benchmarks.targets.harmonyos_table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("harmonyos.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-harmonyos.md"
_NOTE = (
    "Every number is from executing the `.ms` in {runtime} on this processor. `float32` and `float16` are the "
    "largest relative errors of {float_samples} calls, against ONNX Runtime with the FP32 variant; `float16` "
    "keeps only weights in 16 bits. The INT8 columns hold `int8.ms` against ONNX Runtime with the package's own "
    "INT8 variant: `first class` is the share of samples with the same first class; `or tied` also takes a class "
    "to which the variant gives the same, largest eight-bit code as to its first. MindSpore's integer kernels "
    "round twice, so that single codes differ by one step, and ties break another way. `ONNX Runtime itself` "
    "compares the variant, rewritten by ONNX Runtime as by default, with the same variant as it stands: what the "
    "roundings of floats alone change. `export` is the command with all checks of the models, and none of the "
    "ArkTS. Classes of random weights lie close together: read their `first class` as a bound on noise."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    head = [
        "model",
        "float32",
        "float16",
        "samples",
        "INT8: first class",
        "or tied",
        "ONNX Runtime itself",
        "or tied",
        "cosine",
        "quantised",
        "bytes",
        "export",
    ]
    rows = [_row(model) for model in results["models"]]
    note = _NOTE.format(runtime=results["runtime"], float_samples=results["models"][0]["float_samples"])
    refused = [f"- {model['name']}, INT8: {model['refused']}" for model in results["models"] if "refused" in model]
    parts = [
        "# Benchmarks: targets",
        f"Generated from `benchmarks/targets/harmonyos.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        "## harmonyos: `.ms` in the real runtime",
        f"Converter: {results['converter']}. {note}",
        markdown(head, rows),
        *(["Refused:", "\n".join(refused)] if refused else []),
    ]
    return "\n\n".join(parts) + "\n"


def _row(model: dict[str, Any]) -> list[str]:
    made = model.get("int8")
    sizes = " / ".join(f"{size / 1e6:.1f} MB" for size in model["sizes_bytes"].values())
    return [
        model["name"],
        f"{model['fp32']:.1e}",
        f"{model['fp16']:.1e}",
        str(model["samples"]),
        *_agreement(made if model["classifies"] else None),
        *_agreement(model.get("onnxruntime_itself") if model["classifies"] else None),
        f"{made['cosine_mean']:.5f}" if made else "-",
        f"{100 * model['quantized_share']['int8']:.0f} %" if made else "-",
        sizes,
        f"{model['export_s']:.0f} s",
    ]


def _agreement(found: dict[str, float] | None) -> tuple[str, str]:
    if found is None:
        return "-", "-"
    return f"{100 * found['first_class']:.1f} %", f"{100 * found['first_class_or_tied']:.1f} %"


if __name__ == "__main__":
    main()
