"""Turn `results.json` into `docs/benchmarks-multimodal.md`: `python -m benchmarks.multimodal.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-multimodal.md"
_ANSWERS_NOTE = (
    "easy-VQA: three branches (`benchmarks/zoo/vqa.py`), trained once (`train_vqa.py`); all questions of its test set, "
    "whose pictures neither training nor calibration saw. Budget {budget}: points of right answers, held against the "
    "upper bound of the drop."
)
_AGAIN_NOTE = (
    "`sanderling.tasks.multimodal.Answerer.ask` on PNG files of the test set, file reading included: a question about "
    "a picture that was never seen, then another question about it. {rounds} pictures."
)
_AT_ONCE_NOTE = (
    "The two towers of the composed search (`benchmarks/zoo/composed_search.py`: MobileNetV2 at 224×224, MiniLM-L6 "
    "with 32 tokens), nothing cached, in turn over {rounds} rounds on {cores} cores. `speed-up` is what running at "
    "once gains over that way, median of the rounds. A second free core is needed for it."
)
_SEARCH_NOTE = (
    "The same towers over photos that come inside scikit-image and scikit-learn. They are composed of an ImageNet "
    "classifier and sentence embeddings, not trained on pairs as CLIP is: what is no ImageNet class is not found."
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    parts = [
        "# Benchmarks: models of several branches",
        f"Generated from `benchmarks/multimodal/results.json`, which `{results['command']}` wrote. Do not edit.",
        machine_line(results["machine"]),
        "## Answers about pictures",
        _ANSWERS_NOTE.format(budget=results["answers"]["budget"]),
        _answers_table(results["answers"]),
        "## A second question about a picture",
        _AGAIN_NOTE.format(rounds=results["rounds"]),
        _again_table(results["again"]),
        "## Two branches at once",
        _AT_ONCE_NOTE.format(rounds=results["rounds"], cores=results["cores"]),
        _at_once_table(results["at_once"]),
        "## Pictures by a text",
        _SEARCH_NOTE,
        _search_table(results["searches"]),
    ]
    return "\n\n".join(parts) + "\n"


def _answers_table(answers: dict[str, Any]) -> str:
    rows = [
        [
            f"{name}{' (chosen)' if name == answers['chosen'] else ''}",
            ", ".join(f"{branch} {variant}" for branch, variant in row["branches"].items()),
            f"{row['size_bytes'] / 1e6:.2f} MB",
            f"{row['top1']:.2f} %",
            f"{row['drop']:.2f}",
            f"{row['drop_upper']:.2f} ({100 * row['confidence']:g} %)",
            f"{row['questions']:,}",
        ]
        for name, row in answers["variants"].items()
    ]
    return markdown(["variant", "branches", "size", "right answers", "drop, points", "bound", "questions"], rows)


def _again_table(again: dict[str, Any]) -> str:
    rows = [
        [name, f"{row['first_ms']['p50']:.2f} ms", f"{row['second_ms']['p50']:.2f} ms", f"{row['ratio']:.2f}×"]
        for name, row in again.items()
    ]
    return markdown(["variant", "first question, p50", "second, p50", "second / first"], rows)


def _at_once_table(at_once: dict[str, Any]) -> str:
    rows = [
        [name, f"{values['p50']:.2f} ms", f"{values['p95']:.2f} ms", _gain(at_once["speedup"].get(name))]
        for name, values in at_once["ms"].items()
    ]
    return markdown(["way", "p50", "p95", "speed-up"], rows)


def _gain(value: float | None) -> str:
    return f"{value:.2f}×" if value is not None else "–"


def _search_table(searches: list[dict[str, Any]]) -> str:
    rows = [[row["text"], row["wanted"], f"{row['place']} of {row['of']}", row["first"]] for row in searches]
    return markdown(["text", "meant", "place", "first found"], rows)


if __name__ == "__main__":
    main()
