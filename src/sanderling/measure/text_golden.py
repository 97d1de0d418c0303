"""Golden vectors of a language model: prompts, the scores after them, and the tokens that follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.core.errors import SanderlingError
from sanderling.core.progress import Progress
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array
from sanderling.measure.checks import Check
from sanderling.model.manifest import Variant
from sanderling.model.package import GoldenVectors, Package
from sanderling.run.text.base import Generation, TextModel
from sanderling.run.text.engines import text_engine

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


def check_text_golden(package: Package, threads: int, progress: Progress) -> list[Check]:
    """Compute every variant's golden vectors again."""
    golden = package.golden()
    progress.stage("golden vectors", len(package.manifest.variants))
    checks = []
    for variant in package.manifest.variants:
        checks.append(_check(package, variant, golden, threads))
        progress.advance()
    return checks


def load_variant(package: Package, variant: Variant, *, threads: int = 0) -> TextModel:
    """Load a language model's variant with its own engine."""
    assert package.manifest.text is not None
    folder = package.file(variant.file).parent
    return text_engine(variant.engines[0]).load(folder, package.manifest.text, threads=threads)


def _step(generation: Generation, token: int | None) -> int:
    if token is None:
        return generation.next()
    generation.append([int(token)])
    return int(token)


def _check(package: Package, variant: Variant, golden: GoldenVectors, threads: int) -> Check:
    name = f"golden vectors, {variant.id}"
    tolerance = package.manifest.golden.tolerance[variant.id]
    expected = golden.outputs[variant.id]
    try:
        model = load_variant(package, variant, threads=threads)
        outputs = golden_outputs(model, golden.inputs["prompts"], expected["greedy"])
        model.close()
    except SanderlingError as error:
        return Check(name=name, passed=False, detail=str(error))
    error = relative_error(expected["scores"], outputs["scores"])
    told = f"relative error {error:.1e} of the scores after {len(golden)} prompts and {STEPS} tokens more"
    return Check(name=name, passed=error <= tolerance, detail=f"{told}, at most {tolerance:.0e}")


def agreeing_tokens(reference: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers share from their beginning."""
    pairs = zip(reference, other, strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(reference), len(other)))
