"""Turn `results.json` into `docs/benchmarks-text.md`: `python -m benchmarks.text.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("results.json")
MEMORY = RESULTS.with_name("memory.json")
LARGE = RESULTS.with_name("large.json")
STEPS = RESULTS.with_name("steps.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-text.md"
BUDGET = 5.0
_LEAST_MS = 0.05  # what takes less is in the sum only
_NOTE = (
    "{source}, one thread each, in turn, {rounds} rounds. Speeds are tokens a processor second (medians): prefill of a "
    "prompt of 512, decode after 16 and after 512 tokens of context; `first` is a prompt of 32. `change` is by how "
    "much perplexity is above FP32's on the same {tokens} tokens of each text, `bound` its upper 95 % bound on both; "
    "`answers` is how many of ten answers are FP32's for 20 tokens. "
    "Memory is the peak of the whole process, Python included, with one sequence of 536 tokens. Peer: {peer}; its keys "
    "and values are in FP16, ours in FP32."
)


_LARGE_NOTE = (
    "Qwen2's shape with random weights: speed and memory only. One thread each, in turn, {rounds} rounds, tokens a "
    "processor second. Four bits are in blocks of 128."
)
_MEMORY_NOTE = (
    "{variant} of the package above, {size:.0f} MB on disk, each setting in processes of its own, {rounds} rounds in "
    "turn. `before` is the process before a model is loaded (Python, NumPy and both runtimes), `peak` what it had at "
    "most with 512 tokens read and 16 written; of what is resident then, `mapped` is files' pages, which the system "
    "can take back, and `own` is not. Speeds are tokens a processor second, and `passed` a second on the clock."
)


def main() -> None:
    """Write the page."""
    read = {path: json.loads(path.read_text("utf-8")) if path.is_file() else None for path in (MEMORY, LARGE, STEPS)}
    page = render(json.loads(RESULTS.read_text("utf-8")), memory=read[MEMORY], large=read[LARGE], steps=read[STEPS])
    PAGE.write_text(page, encoding="utf-8")


def render(
    results: dict[str, Any],
    *,
    memory: dict[str, Any] | None = None,
    large: dict[str, Any] | None = None,
    steps: dict[str, Any] | None = None,
) -> str:
    """The page as Markdown."""
    contenders: dict[str, Any] = results["contenders"]
    note = _NOTE.format(
        source=results["source"], rounds=results["rounds"], tokens=results["scored_tokens"], peer=results["peer"]
    )
    parts = [
        "# Benchmarks: language models",
        f"Generated from `benchmarks/text/results.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        "## Speed at a stated quality",
        note,
        _table(contenders),
    ]
    peers = {name: row for name, row in contenders.items() if name.startswith("llama.cpp")}
    if peers:
        for name in ("int8", "int8-blocks", "int8-residual", "int4"):
            if name in contenders:
                parts += [f"## {name} against llama.cpp", _ratios(contenders[name], peers)]
    if steps:
        parts += _steps(steps)
    if large:
        parts += _large(large)
    if memory:
        parts += _memory(memory)
    return "\n\n".join(parts) + "\n"


def _table(contenders: dict[str, Any]) -> str:
    head = [
        "model", "size", "memory", "prefill/s", "decode/s at 16", "decode/s at 512", "first, ms",
        "prose: change", "code: change", "bound", "answers",
    ]  # fmt: skip
    rows = [
        [
            name,
            f"{row['size_bytes'] / 1e6:.0f} MB",
            f"{row['peak_rss_bytes'] / 1e6:.0f} MB",
            f"{row['prefill_tokens_per_s']:.0f}",
            f"{row['decode_tokens_per_s']:.0f}",
            f"{row['decode_long_tokens_per_s']:.0f}",
            f"{row['ttft_ms']:.0f}",
            _percent(row["perplexity"]["prose"]["percent"]),
            _percent(row["perplexity"]["code"]["percent"]),
            _percent(row["overall"]["percent_upper"]),
            f"{share:.0%}" if (share := row.get("agreeing")) is not None else "",
        ]
        for name, row in contenders.items()
    ]
    return markdown(head, rows)


def _ratios(own: dict[str, Any], peers: dict[str, Any]) -> str:
    head = ["against", "its change", "prefill", "decode at 16", "decode at 512", "first", "memory"]
    rows = [
        [
            f"{name}{'' if row['overall']['percent'] <= BUDGET else ' (beyond 5 %)'}",
            _percent(row["overall"]["percent"]),
            _times(own["prefill_tokens_per_s"] / row["prefill_tokens_per_s"]),
            _times(own["decode_tokens_per_s"] / row["decode_tokens_per_s"]),
            _times(own["decode_long_tokens_per_s"] / row["decode_long_tokens_per_s"]),
            _times(own["ttft_ms"] / row["ttft_ms"]),
            _times(own["peak_rss_bytes"] / row["peak_rss_bytes"]),
        ]
        for name, row in peers.items()
    ]
    return markdown(head, rows)


def _steps(results: dict[str, Any]) -> list[str]:
    """Milliseconds of one decoding step by kind of node."""
    columns = [
        (f"{name} at {context}", kinds)
        for name, contexts in results["variants"].items()
        for context, kinds in contexts.items()
    ]
    names = list(dict.fromkeys(kind for _, kinds in columns for kind, value in kinds.items() if value >= _LEAST_MS))
    rows = [[kind, *(f"{kinds.get(kind, 0):.2f}" for _, kinds in columns)] for kind in names]
    rows.append(["all", *(f"{sum(kinds.values()):.2f}" for _, kinds in columns)])
    told = f"From `benchmarks/text/steps.json`, which `{results['command']}` wrote."
    note = f"Milliseconds by kind of node, of each node the 10th percentile over {results['steps']} steps, one thread."
    return ["## Where a step goes", f"{told} {note}", markdown(["node", *(name for name, _ in columns)], rows)]


def _large(results: dict[str, Any]) -> list[str]:
    """1.4 billion parameters against Q4_0 of the same shape."""
    head = ["model", "memory", "prefill/s", "decode/s at 16", "decode/s at 512"]
    speeds = ("prefill_tokens_per_s", "decode_tokens_per_s", "decode_long_tokens_per_s")
    contenders: dict[str, Any] = results["contenders"]
    rows = [
        [name, f"{row['peak_rss_bytes'] / 1e6:.0f} MB", *(f"{row[speed]:.1f}" for speed in speeds)]
        for name, row in contenders.items()
    ]
    own, *others = contenders.values()
    for peer in others:
        times = [own[key] / peer[key] for key in ("peak_rss_bytes", *speeds)]
        rows.append(["ratio", *(_times(value) for value in times)])
    told = f"From `benchmarks/text/large.json`, which `{results['command']}` wrote."
    return [
        "## 1.4 billion parameters in four bits",
        f"{told} {_LARGE_NOTE.format(rounds=results['rounds'])}",
        markdown(head, rows),
    ]


def _memory(results: dict[str, Any]) -> list[str]:
    """What each option gives, beside what is shipped."""
    head = ["setting", "before", "peak", "own", "mapped", "prefill/s", "decode/s at 16", "at 512", "passed, at 16"]
    told = f"From `benchmarks/text/memory.json`, which `{results['command']}` wrote."
    note = _MEMORY_NOTE.format(variant=results["variant"], size=results["size_bytes"] / 1e6, rounds=results["rounds"])
    rows = [[name, *_memory_row(row, results)] for name, row in results["settings"].items()]
    return ["## What ONNX Runtime's options give", f"{told} {note}", markdown(head, rows)]


def _memory_row(row: dict[str, Any], results: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return [row["failed"], *[""] * 7]
    memory, seconds = row["memory"], row["seconds"]
    sizes = [memory["started"]["resident"], *(memory["written"][key] for key in ("peak", "private", "mapped"))]
    prefill, decode = results["prompt_tokens"], results["steps"]
    speeds = [
        prefill / seconds["prefill_used"],
        decode / seconds["decode_used"],
        decode / seconds["decode_long_used"],
        decode / seconds["decode_passed"],
    ]
    return [*(f"{size / 1e6:.0f} MB" for size in sizes), *(f"{speed:.0f}" for speed in speeds)]


def _percent(value: float) -> str:
    return f"{value:+.2f} %"


def _times(value: float) -> str:
    return f"{value:.2f}×"


if __name__ == "__main__":
    main()
