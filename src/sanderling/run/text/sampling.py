"""The choice of the next token from its scores, alike for every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import EngineError
from sanderling.core.tensor import Array
from sanderling.run.text.base import Sampling

SCORED_TOKENS = 256
"""Whose scores one call tells, which bounds the memory for them."""
_COLDEST = 1e-6  # below, numbers overflow, and only the likeliest is chosen anyway


class Sampler:
    """Chooses tokens, one after the other, with random numbers of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: Array, seen: Sequence[int]) -> int:
        """Choose a token.

        Args:
            logits: float32, shape (vocabulary,); it may be changed.
            seen: ids of the sequence so far, which ``repetition_penalty`` counts.

        Raises:
            EngineError: a score is NaN, or all are infinite.
        """
        if self._sampling.repetition_penalty != 1.0 and seen:
            _penalize(logits, seen, self._sampling.repetition_penalty)
        best = int(logits.argmax())  # NaN counts as the largest
        if not np.isfinite(logits[best]):
            raise EngineError(f"the model's scores of the next token are {logits[best]}: no token can be chosen")
        if self._sampling.temperature == 0:
            return best
        tokens, weights = self._candidates(logits)
        point = self._random.random() * weights[-1]
        return int(tokens[min(int(np.searchsorted(weights, point, side="right")), len(tokens) - 1)])

    def _candidates(self, logits: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Tokens that may be chosen, most likely first, and the running sum of their weights."""
        top_k, top_p = self._sampling.top_k, self._sampling.top_p
        tokens = np.arange(len(logits))
        if 0 < top_k < len(logits):
            tokens = np.argpartition(logits, -top_k)[-top_k:]
        scores = logits[tokens].astype(np.float64)
        weights = np.exp((scores - scores.max()) / max(self._sampling.temperature, _COLDEST))
        if top_p < 1.0:
            order = np.argsort(-weights, kind="stable")
            tokens, weights = tokens[order], weights[order]
        sums = np.cumsum(weights)
        if top_p < 1.0:
            kept = int(np.searchsorted(sums, top_p * sums[-1])) + 1
            tokens, sums = tokens[:kept], sums[:kept]
        return tokens, sums


def _penalize(logits: Array, seen: Sequence[int], penalty: float) -> None:
    """Divide the scores of seen tokens that are positive, multiply those that are negative.

    Source: Keskar et al. 2019, CTRL, equation 2, as it is commonly used.
    """
    ids = np.unique(np.asarray(seen, dtype=np.int64))
    scores = logits[ids]
    logits[ids] = np.where(scores > 0, scores / penalty, scores * penalty)


def log_probabilities(logits: Array, following: Sequence[int]) -> Array:
    """Log-probability of each following token, float64; logits have shape (tokens, vocabulary)."""
    scores = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    chosen = scores[np.arange(len(following)), np.asarray(following)]
    result: Array = chosen - np.log(np.exp(scores).sum(axis=1))
    return result


def score_in_pieces(ids: Sequence[int], read: Callable[[Sequence[int]], Array]) -> Array:
    """Log-probability of every token but the first after those before it, float64, shape (len(ids) - 1,).

    Args:
        ids: of a text, at least two.
        read: appends tokens to a sequence, ``SCORED_TOKENS`` at most, and gives the scores after each of them.
    """
    found = []
    for start in range(0, len(ids) - 1, SCORED_TOKENS):
        following = ids[start + 1 : start + 1 + SCORED_TOKENS]
        found.append(log_probabilities(read(ids[start : start + len(following)]), following))
    return np.concatenate(found)
