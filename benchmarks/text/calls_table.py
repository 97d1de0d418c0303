"""Turn `calls.json` into `docs/benchmarks-text-calls.md`: `python -m benchmarks.text.calls_table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.build.table import machine_line, markdown

RESULTS = Path(__file__).with_name("calls.json")
SHARING = Path(__file__).with_name("sharing.json")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-text-calls.md"
_SETTING = "{package}, ONNX Runtime, one thread, {rounds} rounds in turn. Speeds are tokens a processor second."
_DRAFTS = (
    "Answers of {tokens} tokens that copy a passage of their prompt (three of prose, three of code), greedy. `most` is "
    "the most tokens of a guess, 0 without guesses. Where what a call rounds depends on all of its tokens (`int8` and "
    "`int4`), a guess counts only where the likeliest token is clear, and only when it is asked for."
)
_CAMERA = (
    "`python -m benchmarks.text.sharing CHAT.sdl PICTURES.sdl --json benchmarks/text/sharing.json`: {packages}, "
    "{seconds:g} s each. 30 pictures a second, each missed after 33 ms, while a language model rests, writes answers, "
    "or reads prompts of 512 tokens: in one runtime (`together`), and as two sessions that do not know of each "
    "other (`apart`)."
)
_TOGETHER = "Tokens of all sequences; their contexts are of different lengths, from 64 tokens on."
_PREFIX = (
    "The first token after a prompt of {prompt} tokens: as a whole, and where an earlier prompt was the same up to the "
    "last {question} tokens, so that its keys and values are kept."
)


def main() -> None:
    """Write the page."""
    page = render(json.loads(RESULTS.read_text("utf-8")))
    if SHARING.is_file():
        page += "\n" + render_sharing(json.loads(SHARING.read_text("utf-8")))
    PAGE.write_text(page, encoding="utf-8")


def render(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    variants: dict[str, Any] = results["variants"]
    return (
        "\n\n".join(
            [
                "# Benchmarks: what one call of a language model can do",
                f"Generated from `benchmarks/text/calls.json`, which `{results['command']}` wrote. Do not edit.",
                machine_line(results["machine"]),
                _SETTING.format(package=results["package"], rounds=results["rounds"]),
                "## Guesses from earlier text, checked in one call",
                _DRAFTS.format(tokens=results["answer_tokens"]),
                markdown(["variant", "most", "tokens/s", "times", "right", "same answers"], _draft_rows(variants)),
                "## Several answers in one call",
                _TOGETHER,
                markdown(["variant", "sequences", "in one call", "a call each", "times"], _together_rows(variants)),
                "## A beginning that was read before",
                _PREFIX.format(prompt=results["prompt_tokens"], question=results["question_tokens"]),
                markdown(["variant", "whole prompt, ms", "kept beginning, ms", "of it"], _prefix_rows(variants)),
            ]
        )
        + "\n"
    )


def render_sharing(results: dict[str, Any]) -> str:
    """What `benchmarks.text.sharing` found, as Markdown."""
    rows = [
        [
            row["setting"],
            row["work"],
            str(row["threads"]),
            f"{100 * row['missed']:.1f} % of {row['pictures']}",
            f"{row['picture_ms']['p99']:.1f}" if row["picture_ms"] else "–",
            f"{100 * row['share']:.0f} %" if row["work"] != "rest" else "–",
        ]
        for row in results["results"]
    ]
    head = ["setting", "the language model", "threads", "pictures missed", "p99, ms", "its speed left"]
    return "\n\n".join(
        [
            "## Beside a camera",
            _CAMERA.format(packages=" and ".join(results["packages"]), seconds=results["seconds"]),
            machine_line(results["machine"]),
            markdown(head, rows) + "\n",
        ]
    )


def _draft_rows(variants: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            most,
            f"{row['tokens_per_s']:.0f}",
            f"{row['tokens_per_s'] / found['drafts']['0']['tokens_per_s']:.2f}×",
            f"{row['right']} of {row['guessed']}",
            f"{row['same_answers']} of {row['answers']}",
        ]
        for name, found in variants.items()
        for most, row in found["drafts"].items()
    ]


def _together_rows(variants: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            count,
            f"{row['together_tokens_per_s']:.0f}",
            f"{row['apart_tokens_per_s']:.0f}",
            f"{row['together_tokens_per_s'] / row['apart_tokens_per_s']:.2f}×",
        ]
        for name, found in variants.items()
        for count, row in found["together"].items()
    ]


def _prefix_rows(variants: dict[str, Any]) -> list[list[str]]:
    return [
        [name, f"{row['whole_ms']:.0f}", f"{row['cached_ms']:.0f}", f"{row['cached_ms'] / row['whole_ms']:.2f}×"]
        for name, row in ((name, found["prefix"]) for name, found in variants.items())
    ]


if __name__ == "__main__":
    main()
