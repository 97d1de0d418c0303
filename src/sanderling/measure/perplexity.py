"""How well a language model predicts texts, and how much worse a variant of it does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import DataError
from sanderling.core.tensor import Array
from sanderling.model.manifest import Accuracy
from sanderling.run.text.base import TextModel

CONFIDENCE = 0.95
SCORED_TOKENS = 512
_POINT_95 = 1.6449  # of the normal distribution


class Change(BaseModel):
    """Perplexity on one text.

    Attributes:
        tokens: that were predicted.
        value: exp of the mean negative log-probability a token.
        percent: by how much it is higher than FP32's on the same tokens.
        percent_upper: upper 95 % bound of that, from the differences token by token, taken as independent.
    """

    model_config = ConfigDict(frozen=True)

    tokens: int
    value: float
    percent: float
    percent_upper: float

    def accuracy(self) -> Accuracy:
        """The same as a package's manifest keeps it."""
        return Accuracy(
            metric="perplexity",
            value=self.value,
            drop=self.percent,
            drop_upper=self.percent_upper,
            samples=self.tokens,
            sqnr_db={},
            cosine={},
            confidence=CONFIDENCE,
        )


def perplexity(log_probabilities: Array) -> float:
    """exp of the mean negative log-probability."""
    return math.exp(-float(log_probabilities.mean()))


def text_perplexity(model: TextModel, name: str, text: str, *, most: int = SCORED_TOKENS) -> tuple[float, int]:
    """Perplexity of the start of a text, and how many tokens were predicted.

    Raises:
        DataError: the text is too short.
    """
    ids = encoded(model, name, text, most=most)
    return perplexity(model.score(ids)), len(ids) - 1


def change(reference: Sequence[Array], other: Sequence[Array]) -> Change:
    """Compare the log-probabilities of the same tokens, of one text or of several as one."""
    expected, found = np.concatenate(reference), np.concatenate(other)
    lost = expected - found
    error = float(lost.std(ddof=1)) / math.sqrt(len(lost)) if len(lost) > 1 else math.inf
    return Change(
        tokens=len(found),
        value=perplexity(found),
        percent=100 * math.expm1(float(lost.mean())),
        percent_upper=100 * math.expm1(float(lost.mean()) + _POINT_95 * error),
    )


def encoded(model: TextModel, name: str, text: str, *, most: int) -> list[int]:
    """The first ids of a text, at most ``most`` and the context.

    Raises:
        DataError: the text has fewer than two tokens, or the tokenizer makes ids that the model does not have.
    """
    ids = model.encode(text)[: min(most, model.spec.context_length)]
    if len(ids) < 2:
        raise DataError(f"text '{name}' has {len(ids)} tokens: expected some hundred")
    if max(ids) >= model.spec.vocabulary:
        raise DataError(f"the tokenizer does not match the model: it made the id {max(ids)} of {model.spec.vocabulary}")
    return ids
