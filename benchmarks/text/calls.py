"""What one call of the engine can do at once: `python -m benchmarks.text.calls CHAT.sdl [--variants int8,int4]`.

Drafts: answers that copy a passage of their prompt, with and without guesses from earlier text that are checked in one
call; their tokens are compared. Together: tokens of several answers in one call, against one call for each. Prefix: the
first token after a prompt whose beginning was read for an earlier one, against the whole prompt. One thread; times are
processor seconds of this process, the settings in turn in every round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.text import calls_table
from sanderling.core.machine import describe_machine
from sanderling.measure.texts import default_texts
from sanderling.model.package import Package
from sanderling.run.text.base import Sampling, TextModel
from sanderling.run.text.limits import TextLimits
from sanderling.run.text.loading import load_model
from sanderling.run.text.session import TextSession

RESULTS = Path(__file__).with_name("calls.json")
ENGINE = "onnxruntime"
DRAFTS = (0, 7, 15)
SEQUENCES = (1, 2, 4, 8)
_PASSAGES, _PASSAGE_TOKENS, _ANSWER_TOKENS, _BEGUN_TOKENS = 6, 120, 96, 12
_CONTEXT, _STEPS = 64, 16
_PROMPT_TOKENS, _QUESTION_TOKENS, _QUESTIONS = 512, 16, 4


def copying_prompts(model: TextModel) -> list[list[int]]:
    """Passages that are there twice, and begun once more: half of prose, half of code."""
    prompts = []
    breaks = model.encode("\n\n")
    for text in default_texts().values():
        ids = model.encode(text)
        for start in range(0, _PASSAGES // 2 * _PASSAGE_TOKENS, _PASSAGE_TOKENS):
            passage = ids[start : start + _PASSAGE_TOKENS]
            prompts.append([*passage, *breaks, *passage, *breaks, *passage[:_BEGUN_TOKENS]])
    return prompts


def measure_drafts(model: TextModel, rounds: int) -> dict[str, Any]:
    """Seconds of all answers by the most tokens of a guess, and how many tokens are those without."""
    prompts = copying_prompts(model)
    sampling = Sampling(temperature=0, max_tokens=_ANSWER_TOKENS)
    found: dict[int, list[float]] = {drafts: [] for drafts in DRAFTS}
    texts: dict[int, list[str]] = {}
    counts = {}
    for _ in range(rounds):
        for drafts in DRAFTS:
            session = TextSession(_Kept(model), limits=TextLimits(drafts=drafts))
            session.start(prompts[0], Sampling(temperature=0, max_tokens=2)).result()  # its thread has started
            seconds, answers, tokens = 0.0, [], 0
            for prompt in prompts:
                session.start(prompt, Sampling(temperature=0, max_tokens=1)).result()  # the prompt is kept
                start = time.process_time()
                result = session.start(prompt, sampling).result()
                seconds += time.process_time() - start
                answers.append(result.text)
                tokens += result.tokens
            told = session.statistics()
            session.close()
            found[drafts].append(seconds / tokens)
            texts[drafts] = answers
            counts[drafts] = (told.drafted_tokens, told.accepted_tokens)
    return {
        str(drafts): {
            "tokens_per_s": 1 / statistics.median(found[drafts]),
            "same_answers": sum(one == other for one, other in zip(texts[0], texts[drafts], strict=True)),
            "answers": len(texts[drafts]),
            "guessed": counts[drafts][0],
            "right": counts[drafts][1],
        }
        for drafts in DRAFTS
    }


def measure_together(model: TextModel, rounds: int) -> dict[str, Any]:
    """Tokens a second of all sequences, in one call and in a call for each; their contexts are of different lengths."""
    ids = model.encode(next(iter(default_texts().values())))
    shared: dict[int, list[float]] = {count: [] for count in SEQUENCES}
    apart: dict[int, list[float]] = {count: [] for count in SEQUENCES}
    for _ in range(rounds):
        for count in SEQUENCES:
            generations = [model.generation(capacity=256) for _ in range(count)]
            for place, generation in enumerate(generations):
                generation.append(ids[place : place + _CONTEXT + 8 * place])
            tokens = ids[:count]

            def each(generations: list[Any] = generations, tokens: list[int] = tokens) -> None:
                for generation, token in zip(generations, tokens, strict=True):
                    generation.append([token])

            def one(generations: list[Any] = generations, tokens: list[int] = tokens) -> None:
                model.append_together(generations, tokens)

            one()
            shared[count].append(_seconds(one) / count)
            apart[count].append(_seconds(each) / count)
            for generation in generations:
                generation.close()
    return {
        str(count): {
            "together_tokens_per_s": 1 / statistics.median(shared[count]),
            "apart_tokens_per_s": 1 / statistics.median(apart[count]),
        }
        for count in SEQUENCES
    }


def measure_prefix(model: TextModel, rounds: int) -> dict[str, float]:
    """Milliseconds to the first token of prompts that differ in their last tokens: the first, and those after it."""
    text = model.encode(next(iter(default_texts().values())))
    shared, questions = text[: _PROMPT_TOKENS - _QUESTION_TOKENS], text[_PROMPT_TOKENS:]
    prompts = [[*shared, *questions[_QUESTION_TOKENS * place :][:_QUESTION_TOKENS]] for place in range(_QUESTIONS + 1)]
    sampling = Sampling(temperature=0, max_tokens=1)
    first, later = [], []
    for _ in range(rounds + 1):
        session = TextSession(_Kept(model))
        session.start(prompts[0][::-1][:_QUESTION_TOKENS], sampling).result()  # its thread has started
        taken = []
        for prompt in prompts:
            start = time.process_time()
            session.start(prompt, sampling).result()
            taken.append(1e3 * (time.process_time() - start))
        session.close()
        first.append(taken[0])
        later.append(statistics.median(taken[1:]))
    return {"whole_ms": statistics.median(first[1:]), "cached_ms": statistics.median(later[1:])}


class _Kept:
    """A model that stays open when a session is closed."""

    def __init__(self, model: TextModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        return getattr(self._model, name)

    def close(self) -> None:
        """Nothing."""


def _seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(_STEPS):
        call()
    return (time.process_time() - start) / _STEPS


def main() -> None:
    """Measure, write `calls.json`, and the page from it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("--variants", default="int8,int4,fp32")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print the result, and write nothing")
    arguments = parser.parse_args()
    package = Package.open(arguments.package)
    results = {}
    for variant in arguments.variants.split(","):
        model = load_model(package, package.variant(variant), threads=1, engine=ENGINE)
        results[variant] = {
            "rows_are_independent": model.rows_are_independent,
            "drafts": measure_drafts(model, arguments.rounds),
            "together": measure_together(model, arguments.rounds),
            "prefix": measure_prefix(model, arguments.rounds),
        }
        model.close()
        sys.stderr.write(f"{variant}: {json.dumps(results[variant])}\n")
    value = {
        "command": "python -m benchmarks.text.calls CHAT.sdl",
        "machine": describe_machine().model_dump(),
        "package": package.manifest.source.name,
        "rounds": arguments.rounds,
        "answer_tokens": _ANSWER_TOKENS,
        "prompt_tokens": _PROMPT_TOKENS,
        "question_tokens": _QUESTION_TOKENS,
        "variants": results,
    }
    if not arguments.dry:
        RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        calls_table.main()


if __name__ == "__main__":
    main()
