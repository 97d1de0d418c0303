"""What exports take and prove: `python -m benchmarks.targets.exports`.

Exports EfficientNet-Lite0 of the demonstration to OpenVINO, ONNX Runtime's format, OpenHarmony and Rockchip, the last
with the first classes of 240 photos that no calibration saw. Writes `exports.json` and `docs/benchmarks-exports.md`.
Needs `requirements-models.txt` and rknn's environment (`sanderling devices --install rknn`). A demonstration that is in
``--folder`` already is used again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.targets import exports_table
from sanderling.api import export
from sanderling.core.machine import describe_machine
from sanderling.core.progress import Recorder, Silent
from sanderling.demo.story import tell

RESULTS = Path(__file__).with_name("exports.json")
_PACKAGE = "efficientnet-lite0.sdl"
_CALIBRATED_LEAST = "80"


def main() -> None:
    """Export to every target, or to those of ``--target``, whose rows are then replaced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the demonstration; a temporary folder by default")
    parser.add_argument("--target", action="append", help="repeatable; all by default")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / _PACKAGE).exists():
            tell(folder, Silent())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asked = [job for job in jobs(folder) if not arguments.target or job["target"] in arguments.target]
        rows = [measure(folder, scratch, **job) for job in asked]
    kept = json.loads(RESULTS.read_text("utf-8"))["exports"] if RESULTS.exists() else []
    measured = {row["target"] for row in rows}
    value = {
        "command": "python -m benchmarks.targets.exports",
        "machine": describe_machine().model_dump(),
        "model": "EfficientNet-Lite0",
        "exports": [row for row in kept if row["target"] not in measured] + rows,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    exports_table.main()


def jobs(folder: Path) -> list[dict[str, Any]]:
    """Arguments of each export."""
    photos = {"evaluation": str(folder / "evaluation")}
    calibrated = {**photos, "calibration": str(folder / "calibration"), "agreement": _CALIBRATED_LEAST}
    made: list[dict[str, Any]] = [
        {"target": "openvino", "device": "cpu", "variant": variant} for variant in ("fp32", "fp16", "int8")
    ]
    made += [{"target": "openvino", "device": "npu", "variant": "int8"}]
    made += [{"target": "ort", "device": device, "variant": "int8"} for device in ("arm64", "amd64")]
    made += [{"target": "openharmony", "device": "arm64-v8a", "variant": variant} for variant in ("fp32", "int8")]
    nets = [("rk3588", "int8", photos), ("rk3566", "int8", photos), ("rk3588", "fp32", photos)]
    nets += [("rk3588", "fp32", calibrated)]
    made += [{"target": "rknn", "device": chip, "variant": name, "options": options} for chip, name, options in nets]
    return made


def is_model(name: str) -> bool:
    """Whether a file is the model, or its weights."""
    return name.endswith(exports_table.MODELS) and "/golden/" not in name


def measure(
    folder: Path, scratch: Path, *, target: str, device: str, variant: str, options: dict[str, str] | None = None
) -> dict[str, Any]:
    """Export once; what the record says of it, and the time of the whole."""
    watch = Recorder(Silent())
    arguments: dict[str, Any] = {"target": target, "device": device, "variant": variant, "options": options}
    record = export(folder / _PACKAGE, scratch / "out", **arguments, progress=watch).record
    watch.stop()
    photos_s = watch.seconds.get("compare first classes", 0.0)
    files = {name: entry["size_bytes"] for name, entry in record["files"].items()}
    row = {
        "target": target,
        "device": device,
        "variant": variant,
        "form": record["details"].get("form", ""),
        "tool": record["tool"],
        "proofs": record["proofs"],
        "size_bytes": sum(size for name, size in files.items() if is_model(name)),
        "seconds": round(record["seconds"] - photos_s, 2),
        "photos_s": photos_s,
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
