"""Golden vectors of a language model: prompts, the scores after them, and the tokens that follow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError, UnavailableError
from sanderling.core.progress import Progress
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array
from sanderling.measure.checks import Check
from sanderling.measure.perplexity import text_perplexity
from sanderling.measure.texts import read_texts
from sanderling.model.manifest import Variant
from sanderling.model.package import GoldenVectors, Package
from sanderling.run.text.base import Generation, TextModel
from sanderling.run.text.loading import load_model

PROMPTS = ("What is the capital of France?", "def add(a, b):", "The tide had been going out since before dawn, and")
STEPS = 8
_SCORES = 4096
_PADDING = -1


def prompt_ids(model: TextModel) -> Array:
    """The prompts as a model reads them, int64, shape (prompts, tokens), padded with -1."""
    rows = [model.encode(prompt)[: model.spec.context_length - STEPS - 1] for prompt in PROMPTS]
    padded = np.full((len(rows), max(map(len, rows))), _PADDING, np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def golden_outputs(model: TextModel, prompts: Array, greedy: Array | None = None) -> dict[str, Array]:
    """What a variant computes.

    Args:
        model: the variant.
        prompts: as of ``prompt_ids``.
        greedy: tokens that it reads one by one after each prompt; its own choices without.

    Returns:
        ``greedy``, int64, shape (prompts, STEPS), and ``scores``, float32, shape (prompts, 2, scores): of up to 4096
        tokens spread over the vocabulary, after the prompt and after the last of the greedy tokens.
    """
    shown = np.unique(np.linspace(0, model.spec.vocabulary - 1, _SCORES).astype(np.int64))
    chosen, scores = [], []
    for index, row in enumerate(prompts):
        ids = [int(token) for token in row if token != _PADDING]
        generation = model.generation(capacity=len(ids) + STEPS)
        generation.append(ids)
        first = generation.logits()[shown]
        given = greedy[index] if greedy is not None else [None] * STEPS
        chosen.append([_step(generation, token) for token in given])
        scores.append([first, generation.logits()[shown]])
        generation.close()
    return {"greedy": np.asarray(chosen, np.int64), "scores": np.asarray(scores, np.float32)}


def check_text(package: Package, evaluation: str | Path | None, threads: int, progress: Progress) -> list[Check]:
    """Compute every variant's golden vectors again, and its perplexity on a text where one is given.

    Raises:
        DataError: the text cannot be used.
    """
    texts = read_texts([evaluation]) if evaluation else {}
    golden = package.golden()
    progress.stage("golden vectors", len(package.manifest.variants))
    checks = []
    for variant in package.manifest.variants:
        name = f"golden vectors, {variant.id}"
        try:
            with closing(load_model(package, variant, threads=threads)) as model:
                checks.append(
                    _golden_check(name, package.manifest.golden.tolerance[variant.id], variant, golden, model)
                )
                checks += [_told(variant, model, title, text) for title, text in texts.items()]
        except (EngineError, ModelError) as error:
            checks.append(Check(name=name, passed=False, detail=str(error)))
        except UnavailableError as error:
            checks.append(Check(name=name, passed=True, detail=f"not run here: {error}"))
        progress.advance()
    return checks


def _step(generation: Generation, token: int | None) -> int:
    if token is None:
        return generation.next()
    generation.append([int(token)])
    return int(token)


def _golden_check(name: str, tolerance: float, variant: Variant, golden: GoldenVectors, model: TextModel) -> Check:
    expected = golden.outputs[variant.id]
    outputs = golden_outputs(model, golden.inputs["prompts"], expected["greedy"])
    error = relative_error(expected["scores"], outputs["scores"])
    told = f"relative error {error:.1e} of the scores after {len(golden)} prompts and {STEPS} tokens more"
    return Check(name=name, passed=error <= tolerance, detail=f"{told}, at most {tolerance:.0e}")


def _told(variant: Variant, model: TextModel, title: str, text: str) -> Check:
    """A measurement without a limit: what FP32 has on this text is not in the package."""
    value, tokens = text_perplexity(model, title, text)
    return Check(name=f"perplexity, {variant.id}", passed=True, detail=f"{value:.2f} on {tokens} tokens of {title}")


def agreeing_tokens(reference: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers share from their beginning."""
    pairs = zip(reference, other, strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(reference), len(other)))
