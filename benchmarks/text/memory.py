"""What ONNX Runtime's options do for memory and speed: `python -m benchmarks.text.memory CHAT.sdl [--variant int8]`.

Each setting is a process of its own that loads the variant, reads a prompt of 512 tokens and writes 16; then it goes
back, reads 16 tokens and writes 16 more. Settings take turns over the rounds; of memory the least peak counts, of speed
the median.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.text import table
from benchmarks.text.turns import PROMPT_TOKENS, SHORT_TOKENS
from sanderling.core.machine import describe_machine
from sanderling.model.package import Package
from sanderling.model.text import TextSpec
from sanderling.run.text.engines import text_engine

RESULTS = Path(__file__).with_name("memory.json")
_CONFIG = "genai_config.json"
_STEPS = 16
_TIMEOUT_S = 600
_FIELDS = {"resident": "VmRSS", "private": "RssAnon", "mapped": "RssFile", "peak": "VmHWM"}


@dataclass(frozen=True)
class Setting:
    """Options of one process.

    Attributes:
        session: of the engine's session, beside what Sanderling gives it.
        environment: variables of the process.
        threads: of one call.
        plain: run the graph by onnxruntime itself, in that execution mode, without onnxruntime-genai.
    """

    session: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    plain: str = ""


SETTINGS = {
    "as shipped": Setting(),
    "arena off": Setting({"enable_cpu_mem_arena": False}),
    "memory pattern off": Setting({"enable_mem_pattern": False}),
    "arena and pattern off": Setting({"enable_cpu_mem_arena": False, "enable_mem_pattern": False}),
    "prepacking off": Setting({"session.disable_prepacking": "1"}),
    "weights outside the arena": Setting({"session.use_device_allocator_for_initializers": "1"}),
    "two malloc arenas": Setting(environment={"MALLOC_ARENA_MAX": "2"}),
    "two threads": Setting(threads=2),
    "two threads, no spinning": Setting({"session.intra_op.allow_spinning": "0"}, threads=2),
    "onnxruntime alone": Setting(plain="sequential"),
    "onnxruntime alone, parallel execution mode": Setting(plain="parallel"),
}


def main() -> None:
    """Measure, write `memory.json`, and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--variant", default="int8")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    package = Package.open(arguments.package)
    variant = package.variant(arguments.variant)
    folder = package.file(variant.file).parent
    assert package.manifest.text is not None
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: _prepared(folder, Path(scratch) / str(number), setting)
                  for number, (name, setting) in enumerate(SETTINGS.items())}  # fmt: skip
        for number in range(arguments.rounds):
            for name, setting in SETTINGS.items():
                taken[name].append(_measured(places[name], package.manifest.text, setting))
            sys.stderr.write(f"round {number + 1} of {arguments.rounds}\n")
    results = {
        "command": "python -m benchmarks.text.memory CHAT.sdl",
        "machine": describe_machine().model_dump(),
        "variant": variant.id,
        "size_bytes": variant.size_bytes,
        "rounds": arguments.rounds,
        "prompt_tokens": PROMPT_TOKENS,
        "steps": _STEPS,
        "settings": {name: _summary(rows) for name, rows in taken.items()},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table.main()


def _prepared(folder: Path, target: Path, setting: Setting) -> Path:
    """A folder with links to the variant's files, and a configuration with the setting's options."""
    target.mkdir()
    for path in folder.iterdir():
        if path.name != _CONFIG:
            _linked(path, target / path.name)
    told = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    told["model"]["decoder"]["session_options"] |= dict(setting.session)
    (target / _CONFIG).write_text(json.dumps(told), encoding="utf-8")
    return target


def _linked(path: Path, target: Path) -> None:
    """The same file under another name; a copy where that is on another disk (the engine follows no links to it)."""
    try:
        target.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, target)


def _measured(folder: Path, spec: TextSpec, setting: Setting) -> dict[str, Any]:
    request = {
        "folder": str(folder),
        "spec": spec.model_dump(),
        "threads": setting.threads,
        "plain": setting.plain,
    }
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--child", json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env={**os.environ, **setting.environment},
        check=False,
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no reason told"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [row["failed"] for row in rows if "failed" in row]
    if failed:
        return {"failed": failed[0]}
    least = min(rows, key=lambda row: row["written"]["peak"])
    speeds = {key: statistics.median(row["seconds"][key] for row in rows) for key in rows[0]["seconds"]}
    return {"memory": {mark: least[mark] for mark in ("started", "loaded", "read", "written")}, "seconds": speeds}


def child(request: dict[str, Any]) -> dict[str, Any]:
    """Run one setting; memory in bytes by stage, times in seconds (of the processor, and passed ones)."""
    import onnxruntime_genai  # noqa: F401 - part of what every process has before a model is loaded

    found: dict[str, Any] = {"started": _memory()}
    folder = Path(request["folder"])
    if request["plain"]:
        read, restart = _plain(folder, request["plain"], request["threads"])
    else:
        model = text_engine().load(folder, TextSpec.model_validate(request["spec"]), threads=request["threads"])
        generation = model.generation(capacity=PROMPT_TOKENS + _STEPS)
        read, restart = generation.append, lambda: generation.rewind(0)
    found["loaded"] = _memory()
    prompt = np.random.default_rng(0).integers(3, request["spec"]["vocabulary"], PROMPT_TOKENS + _STEPS).tolist()
    seconds: dict[str, float] = {}
    _timed(seconds, "prefill", lambda: read(prompt[:PROMPT_TOKENS]))
    found["read"] = _memory()
    _timed(seconds, "decode_long", lambda: _write(read, prompt[PROMPT_TOKENS:]))
    found["written"] = _memory()
    restart()
    read(prompt[:SHORT_TOKENS])
    _timed(seconds, "decode", lambda: _write(read, prompt[SHORT_TOKENS : SHORT_TOKENS + _STEPS]))
    return {**found, "seconds": seconds}


def _write(read: Callable[[list[int]], object], ids: list[int]) -> None:
    for token in ids:
        read([token])


def _timed(seconds: dict[str, float], name: str, call: Callable[[], object]) -> None:
    passed, used = time.perf_counter(), time.process_time()
    call()
    seconds[f"{name}_used"] = time.process_time() - used
    seconds[f"{name}_passed"] = time.perf_counter() - passed


def _plain(folder: Path, mode: str, threads: int) -> tuple[Callable[[list[int]], object], Callable[[], None]]:
    """The graph on onnxruntime alone, its cache of keys and values written in place."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = threads
    settings.execution_mode = getattr(onnxruntime.ExecutionMode, f"ORT_{mode.upper()}")
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings, providers=["CPUExecutionProvider"])
    decoder = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))["model"]["decoder"]
    shape = (1, decoder["num_key_value_heads"], PROMPT_TOKENS + _STEPS, decoder["head_size"])
    past = {
        entry.name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        for entry in session.get_inputs()
        if entry.name.startswith("past_key_values")
    }
    length = 0

    def read(ids: list[int]) -> None:
        nonlocal length
        binding = session.io_binding()
        length += len(ids)
        binding.bind_cpu_input("input_ids", np.asarray([ids], np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
        for name, value in past.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        binding.bind_output("logits")
        session.run_with_iobinding(binding)

    def restart() -> None:
        nonlocal length
        length = 0

    return read, restart


def _memory() -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: int(lines[key].split()[0]) << 10 for name, key in _FIELDS.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.stdout.write(json.dumps(child(json.loads(sys.argv[2]))))
    else:
        main()
