"""Where a decoding step spends its time: `python -m benchmarks.text.steps CHAT.sdl [--variant int8 …]`.

ONNX Runtime's own profile of single steps after 16 and after 512 tokens, one thread. Of each node the 10th percentile
over the steps counts, which other work on the machine hardly moves; nodes are then added up by kind.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.text import table
from sanderling.core.machine import describe_machine
from sanderling.model.package import Package

RESULTS = Path(__file__).with_name("steps.json")
CONTEXTS = (16, 512)
_STEPS = 30
_PRODUCTS = ("MatMul", "MatMulNBits", "DynamicQuantizeMatMul")
_PARTS = ("qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def main() -> None:
    """Measure, write `steps.json`, and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--variant", action="append", help="int8 and int8-blocks by default.")
    arguments = parser.parse_args()
    package = Package.open(arguments.package)
    rows = {}
    for name in arguments.variant or ("int8", "int8-blocks"):
        rows[name] = _profiled(package.file(package.variant(name).file).parent)
        sys.stderr.write(f"{name} profiled\n")
    results = {
        "command": "python -m benchmarks.text.steps CHAT.sdl",
        "machine": describe_machine().model_dump(),
        "steps": _STEPS,
        "variants": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table.main()


def _profiled(folder: Path) -> dict[str, dict[str, float]]:
    """Milliseconds by kind of node, by context."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.enable_profiling = True
    decoder = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
    with TemporaryDirectory() as scratch:
        settings.profile_file_prefix = str(Path(scratch) / "profile")
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings, providers=["CPUExecutionProvider"])
        for context in CONTEXTS:
            binding = _bound(session, decoder, context)
            for _ in range(_STEPS + 1):
                session.run_with_iobinding(binding)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    length = len(nodes) // (len(CONTEXTS) * (_STEPS + 1))  # of one step
    found = {}
    for number, context in enumerate(CONTEXTS):
        start = (number * (_STEPS + 1) + 1) * length  # the first step after a change warms up
        found[str(context)] = _by_kind(nodes[start : start + _STEPS * length])
    return found


def _bound(session: Any, decoder: dict[str, Any], context: int) -> Any:  # noqa: ANN401 - untyped
    """One token after so many; its keys and values are written in place."""
    binding = session.io_binding()
    binding.bind_cpu_input("input_ids", np.full((1, 1), 100, np.int64))
    binding.bind_cpu_input("attention_mask", np.ones((1, context + 1), np.int64))
    shape = (1, decoder["num_key_value_heads"], max(CONTEXTS) + 1, decoder["head_size"])
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for entry in session.get_inputs():
        if entry.name.startswith("past_key_values"):
            past = onnxruntime.OrtValue.ortvalue_from_numpy(values)
            binding.bind_ortvalue_input(entry.name, past)
            binding.bind_ortvalue_output(entry.name.replace("past_key_values", "present"), past)
    binding.bind_output("logits")
    return binding


def _by_kind(events: list[dict[str, Any]]) -> dict[str, float]:
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        taken[event["name"], event["args"]["op_name"]].append(event["dur"])
    kinds: dict[str, float] = defaultdict(float)
    for (name, operator), durations in taken.items():
        part = next((part for part in _PARTS if part in name), operator) if operator in _PRODUCTS else operator
        kinds[part] += float(np.percentile(durations, 10)) / 1e3
    return dict(sorted(kinds.items(), key=lambda row: -row[1]))


if __name__ == "__main__":
    main()
