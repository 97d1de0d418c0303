"""Language models against llama.cpp: `python -m benchmarks.text.run CHAT.sdl MODEL.gguf [--peer PYTHON]`.

CHAT.sdl is built from MODEL.gguf with the variants ``fp32,int8,int8-blocks,int8-residual,int4``. The peer is the
Python of an environment with llama-cpp-python: the same weights as they are in the file (Q4_1), and requantised to
Q8_0 and Q4_0. All are processes with one thread that take turns; times are processor seconds, medians over the rounds.
Perplexity is on the same tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.text import table, turns
from sanderling.core.machine import describe_machine
from sanderling.measure.perplexity import change, encoded
from sanderling.measure.texts import default_texts
from sanderling.model.package import Package
from sanderling.run.text.loading import load_model

RESULTS = Path(__file__).with_name("results.json")
VARIANTS = ("fp32", "int8", "int8-blocks", "int8-residual", "int4")
REQUANTIZED = ("Q8_0", "Q4_0")
_SCORED = 640
_PEER = Path(__file__).with_name("peer.py")


class Contender:
    """A process that reads and writes when it is asked to."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: object) -> Any:  # noqa: ANN401 - JSON
        """Send a request, and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    """Measure, write `results.json`, and the page from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("package", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--peer", help="Python with llama-cpp-python.")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        contenders = _ours(arguments.package)
        sizes = {name: Package.open(arguments.package).variant(name).size_bytes for name in VARIANTS}
        if arguments.peer:
            files = _peer_files(arguments.peer, arguments.gguf, Path(scratch))
            sizes |= {name: path.stat().st_size for name, path in files.items()}
            contenders |= {name: Contender([arguments.peer, str(_PEER), str(path)]) for name, path in files.items()}
        for contender in contenders.values():
            stack.callback(contender.end)
        rows = _measured(contenders, arguments.rounds)
        memory = {name: contender.ask(do="memory") for name, contender in contenders.items()}
        changes = _changes(contenders, arguments.package)
    evidence = json.loads(Package.open(arguments.package).file("evidence.json").read_text("utf-8"))
    agreeing = {
        name: sum(tokens >= variant["answer_tokens"] for tokens in variant["agreeing"]) / len(variant["agreeing"])
        for name, variant in evidence["variants"].items()
    }
    results = {
        "command": "python -m benchmarks.text.run CHAT.sdl MODEL.gguf --peer PYTHON",
        "machine": describe_machine().model_dump(),
        "peer": _version(arguments.peer) if arguments.peer else None,
        "source": arguments.gguf.name,
        "rounds": arguments.rounds,
        "scored_tokens": _SCORED,
        "contenders": {
            name: {
                **rows[name],
                **changes[name],
                "size_bytes": sizes[name],
                "peak_rss_bytes": memory[name],
                "agreeing": agreeing.get(name),
            }
            for name in contenders
        },
    }
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    table.main()


def _ours(package: Path) -> dict[str, Contender]:
    command = [sys.executable, "-m", "benchmarks.text.ours", str(package)]
    return {name: Contender([*command, name]) for name in VARIANTS}


def _peer_files(peer: str, gguf: Path, folder: Path) -> dict[str, Path]:
    files = {"llama.cpp Q4_1": gguf}
    for kind in REQUANTIZED:
        path = folder / f"{kind}.gguf"
        subprocess.run([peer, str(_PEER), str(path), "--quantize", kind, str(gguf)], check=True, capture_output=True)
        files[f"llama.cpp {kind}"] = path
    return files


def _measured(contenders: Mapping[str, Contender], rounds: int) -> dict[str, dict[str, float]]:
    """Tokens a processor second, and the milliseconds to a first token; the first round warms up."""
    prompt = np.random.default_rng(0).integers(3, 40_000, turns.PROMPT_TOKENS).tolist()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            turn = contender.ask(do="turn", prompt=prompt)
            if number:
                found[name].append(turn)
        sys.stderr.write(f"round {number} of {rounds}\n")
    medians = {
        name: {key: statistics.median(turn[key] for turn in taken) for key in taken[0]} for name, taken in found.items()
    }
    return {
        name: {
            "prefill_tokens_per_s": turns.PROMPT_TOKENS / median["prefill_s"],
            "decode_tokens_per_s": 1 / median["short_s"],
            "decode_long_tokens_per_s": 1 / median["long_s"],
            "ttft_ms": 1e3 * median["first_s"],
        }
        for name, median in medians.items()
    }


def _changes(contenders: Mapping[str, Contender], package: Path) -> dict[str, dict[str, Any]]:
    """Perplexity of each on the same tokens, and by how many percent it is above FP32's."""
    opened = Package.open(package)
    model = load_model(opened, opened.variant("int8"), threads=1)
    texts = {name: encoded(model, name, text, most=_SCORED) for name, text in default_texts().items()}
    model.close()
    scores = {}
    for name, contender in contenders.items():
        scores[name] = [np.asarray(row) for row in contender.ask(do="score", texts=list(texts.values()))]
        sys.stderr.write(f"perplexity of {name}\n")
    return {
        name: {
            "perplexity": {
                text: change([expected], [row]).model_dump()
                for text, expected, row in zip(texts, scores["fp32"], found, strict=True)
            },
            "overall": change(scores["fp32"], found).model_dump(),
        }
        for name, found in scores.items()
    }


def _version(peer: str) -> str:
    command = [peer, "-c", "import importlib.metadata as m; print(m.version('llama-cpp-python'))"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return f"llama-cpp-python {done.stdout.strip()}, compiled here for this processor"


if __name__ == "__main__":
    main()
