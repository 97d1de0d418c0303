"""Turn `results.json` into `docs/benchmarks-learn.md`: `python -m benchmarks.learn.table`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown
from benchmarks.zoo.dialect_data import ACCENTS

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-learn.md"
_KINDS = {"head": "last layer", "lora": "LoRA", "full": "all"}
_GRADIENTS_NOTE = (
    "Largest difference from PyTorch's eager autograd in float64, over the largest true gradient of the same parameter "
    "(at least 1e-3), as the task's own golden gradients say."
)
_STEPS_NOTE = (
    "Forward, backward and AdamW of one batch, {threads} thread, a block of each in turn; the ratio is the median "
    "over neighbours, below 1 is faster than PyTorch. `processor` is the time that the processor spent."
)
_MEMORY_NOTE = (
    "Peak resident memory of a whole process, median of {repeats}, {steps} steps of {batch} texts of 64 tokens "
    "with AdamW. `training adds` is what is above a process that only infers on the same batch. PyTorch's process "
    "imports PyTorch and the model's code, ours NumPy, ONNX Runtime and Sanderling."
)
_SPOKEN_NOTE = (
    "Synthetic speech by `espeak-ng`: {words} words, chosen because accents confuse them, and a network of ours "
    "trained on American English. A device hears {utterances} utterances of one voice in another accent, each "
    "played at {played} speeds, with {replayed} sounds of the first training beside them, and is tested on "
    "{voices} other voices, none of which was trained on. Trained: {trainable}. Means over voices to adapt "
    "to, ± half of the 95 % interval. The gap is what the accent cost before."
)
_CAMERA_NOTE = (
    "Fashion-MNIST, its pictures tilted by 15°, out of focus and in poor light; {pictures} of them, with "
    "{replayed} of the first training beside them. Tested on {tested} pictures, {runs} choices of what is learned "
    "from."
)
_TEXTS_NOTE = (
    "{trained} docstrings of {classes} packages of Python's standard library to learn from, {tested} others to "
    "test with; the package's name is taken out of them. LoRA here is rank 8 on queries and values, with the last "
    "layer."
)
_PRIVATE_NOTE = (
    "The last layer of the Fashion-MNIST network on {pictures} pictures of the worse camera, {epochs} epochs of "
    "{batch}; before training {before:.1%} are named rightly."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown; a part that was not measured is left out."""
    parts = [
        "# Benchmarks: learning on the device",
        "Generated from `benchmarks/learn/results.json`, which `python -m benchmarks.learn.run` wrote. Do not edit.",
    ]
    machines = {json.dumps(part["machine"], sort_keys=True) for part in results.values()}
    if len(machines) == 1:
        parts.append(machine_line(next(iter(results.values()))["machine"]))
    for name, title, section in _SECTIONS:
        if name in results:
            part = results[name]
            parts += [f"## {title}", *section(part["value"])]
            parts.append(f"`{part['command']}`, {part['seconds']} s.")
            if len(machines) > 1:
                parts.append(machine_line(part["machine"]))
    return "\n\n".join(parts) + "\n"


def _gradients(rows: list[dict[str, Any]]) -> list[str]:
    models = list(dict.fromkeys(row["model"] for row in rows))
    errors = {(row["model"], row["trainable"]): row["error"] for row in rows}
    lines = [[model, *(f"{errors[model, kind]:.1e}" for kind in _KINDS)] for model in models]
    return [_GRADIENTS_NOTE, markdown(["model", *_KINDS.values()], lines)]


def _steps(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        [
            row["model"],
            _KINDS[row["trainable"]],
            str(row["batch"]),
            f"{row['sanderling_ms']['p50']:.1f} / {row['sanderling_ms']['p95']:.1f} ms",
            f"{row['torch_ms']['p50']:.1f} / {row['torch_ms']['p95']:.1f} ms",
            f"{row['ratio']:.2f}",
            f"{row['processor_ms']['sanderling']:.1f} / {row['processor_ms']['torch']:.1f} ms",
        ]
        for row in rows
    ]
    head = ["model", "trained", "batch", "Sanderling p50 / p95", "PyTorch p50 / p95", "ratio", "processor"]
    return [_STEPS_NOTE.format(threads=rows[0]["threads"]), markdown(head, lines)]


def _memory(value: dict[str, Any]) -> list[str]:
    peaks = value["peak_bytes"]
    added = {kind: _added(peaks, kind) for kind in _KINDS}
    lines = []
    for kind, label in _KINDS.items():
        torch = peaks.get(f"{kind}/torch")
        ours = peaks.get(f"{kind}/features", peaks[f"{kind}/train"])
        lines.append(
            [
                f"{label}{', on cached features' if f'{kind}/features' in peaks else ''}",
                _megabytes(ours),
                _megabytes(torch) if torch else "",
                f"{ours / torch:.2f}" if torch else "",
                _megabytes(peaks[f"{kind}/infer"]),
                _megabytes(added[kind]),
                f"{1 - added[kind] / added['full']:.0%} less" if kind != "full" else "",
            ]
        )
    head = ["trained", "peak", "PyTorch's", "ratio", "inference alone", "training adds", "against all"]
    return [_MEMORY_NOTE.format(**value), markdown(head, lines)]


def _added(peaks: dict[str, float], kind: str) -> float:
    train = peaks.get(f"{kind}/features", peaks[f"{kind}/train"])
    return max(0.0, train - peaks[f"{kind}/infer"])


def _spoken(value: dict[str, Any]) -> list[str]:
    lines = []
    for accent, found in value["accents"].items():
        lines.append(
            [
                f"{ACCENTS[accent]} (`{accent}`)",
                str(len(found["runs"])),
                _share(found["source_before"]),
                _share(found["target_before"]),
                _share(found["target_after"]),
                _share(found["gap_closed"]),
                _points(found["forgotten_points"]),
                f"{max(run['seconds'] for run in found['runs']):.0f} s",
            ]
        )
    note = _SPOKEN_NOTE.format(
        words=value["words"],
        utterances=value["utterances"],
        played=value["played"],
        replayed=value["replayed"],
        voices=value["test_voices"],
        trainable=f"`{value['trainable']}`",
    )
    head = ["accent", "voices", "American", "before", "after", "gap closed", "forgotten", "longest training"]
    return [note, markdown(head, lines)]


def _camera(value: dict[str, Any]) -> list[str]:
    before = value["before"]
    line = [
        f"{before['source']:.1%}",
        f"{before['target']:.1%}",
        _share(value["target_after"]),
        _share(value["gap_closed"]),
        _points(value["forgotten_points"]),
    ]
    note = _CAMERA_NOTE.format(**value | {"runs": len(value["runs"])})
    return [note, markdown(["first camera", "before", "after", "gap closed", "forgotten"], [line])]


def _texts(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        [
            _KINDS[row["trainable"]],
            f"{row['parameters']:,}",
            f"{row['before']:.1%}",
            f"{row['after']:.1%}",
            f"{row['seconds']} s",
        ]
        for row in rows
    ]
    return [
        _TEXTS_NOTE.format(**rows[0]),
        markdown(["trained", "numbers", "before", "after", "training"], lines),
    ]


def _private(value: dict[str, Any]) -> list[str]:
    if "refused" in value:
        return [f"Refused: {value['refused']}."]
    spent = value["private"]["privacy"]
    lines = [
        ["without", f"{value['plain']['accuracy']:.1%}", "", "", f"{value['plain']['seconds']} s"],
        [
            f"`{value['target']}`",
            f"{value['private']['accuracy']:.1%}",
            f"{spent['epsilon']:.2f}",
            f"{spent['delta']:g}",
            f"{value['private']['seconds']} s",
        ],
    ]
    return [_PRIVATE_NOTE.format(**value), markdown(["privacy", "accuracy", "ε", "δ", "training"], lines)]


def _commands(rows: list[dict[str, Any]]) -> list[str]:
    lines = [[f"`{row['command']}`", f"{row['seconds']} s"] for row in rows]
    lines.append(["all", f"{sum(row['seconds'] for row in rows):.0f} s"])
    accuracy = rows[-1]["accuracy"]["fp32"]
    note = f"The adapted package recognises {accuracy['value']:.1f} % of {accuracy['samples']} words of other voices."
    return ["Each in a process of its own, as the README has them.", markdown(["command", "time"], lines), note]


def _share(found: dict[str, float]) -> str:
    return f"{100 * found['mean']:.1f} ± {100 * found['half_interval']:.1f} %"


def _points(found: dict[str, float]) -> str:
    return f"{found['mean']:.1f} ± {found['half_interval']:.1f} points"


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


_SECTIONS: tuple[tuple[str, str, Callable[[Any], list[str]]], ...] = (
    ("spoken", "Words in another accent", _spoken),
    ("camera", "Pictures of a worse camera", _camera),
    ("texts", "Texts, with MiniLM", _texts),
    ("private", "Differential privacy", _private),
    ("commands", "The README's commands", _commands),
    ("steps", "Time of an update", _steps),
    ("memory", "Memory, with MiniLM", _memory),
    ("gradients", "Gradients", _gradients),
)

if __name__ == "__main__":
    main()
