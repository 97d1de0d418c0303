"""Turn `results.json` into `docs/benchmarks-text.md`: `python -m benchmarks.text.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-text.md"
BUDGET = 5.0
_NOTE = (
    "{source}, one thread each, in turn, {rounds} rounds. Speeds are tokens a processor second (medians): prefill of a "
    "prompt of 512, decode after 16 and after 512 tokens of context; `first` is a prompt of 32. `change` is by how "
    "much perplexity is above FP32's on the same {tokens} tokens of each text, `bound` its upper 95 % bound on both. "
    "Memory is the peak of the whole process, Python included, with one sequence of 536 tokens. Peer: {peer}; its keys "
    "and values are in FP16, ours in FP32."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
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
        parts += ["## int8 against llama.cpp", _ratios(contenders["int8"], peers)]
    return "\n\n".join(parts) + "\n"


def _table(contenders: dict[str, Any]) -> str:
    head = [
        "model", "size", "memory", "prefill/s", "decode/s at 16", "decode/s at 512", "first, ms",
        "prose: change", "code: change", "bound",
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


def _percent(value: float) -> str:
    return f"{value:+.2f} %"


def _times(value: float) -> str:
    return f"{value:.2f}×"


if __name__ == "__main__":
    main()
