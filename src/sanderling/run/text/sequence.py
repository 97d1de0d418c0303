"""The book-keeping of a sequence: which tokens it has, which of them the engine knows, and what follows the last one.

Engines that can go back at no cost share it: forgotten tokens are written over by the next ones. What
their models have in common beside it is here too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sanderling.core.errors import EngineError, OptionError
from sanderling.core.tensor import Array
from sanderling.model.text import TextSpec
from sanderling.run.text.base import GREEDY, Generation, Sampling, append_one, check_scored
from sanderling.run.text.sampling import SCORED_TOKENS, Sampler, score_in_pieces
from sanderling.run.text.wording import Wording


class Sequenced(ABC):
    """A generation, but for how its tokens are computed.

    Args:
        spec: of the model.
        sampler: that chooses tokens.
        capacity: most tokens that it can hold.

    Attributes:
        engine: name, for messages.
        most_scored: tokens whose scores one call can tell.
        known: tokens whose keys and values the engine has.
    """

    engine = ""
    most_scored = SCORED_TOKENS

    def __init__(self, spec: TextSpec, sampler: Sampler, capacity: int) -> None:
        self.known = 0
        self._sampler, self._capacity = sampler, capacity
        self._vocabulary = spec.vocabulary
        self._ids: list[int] = []
        self._scores: Array | None = None  # of what follows the last id
        self._closed = False

    @abstractmethod
    def read(self, ids: Sequence[int], known: int, *, scored: int) -> Array:
        """Compute tokens after the first ``known`` ones, which the engine has and what follows them is forgotten.

        Returns:
            Scores after the last ``scored`` of them, float32, shape (scored, vocabulary).

        Raises:
            EngineError: execution failed.
        """

    @abstractmethod
    def release(self) -> None:
        """Give memory back; called once."""

    @property
    def length(self) -> int:
        """Tokens so far: those appended and those chosen."""
        return len(self._ids)

    @property
    def capacity(self) -> int:
        """Most tokens that it can hold."""
        return self._capacity

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return not self._closed

    def append(self, ids: Sequence[int]) -> None:
        """Read tokens in one call of the engine.

        Raises:
            OptionError: they are none, out of the vocabulary, or more than fit.
            EngineError: execution failed, or the generation is closed.
        """
        self.check(ids)
        self._ids.extend(int(token) for token in ids)
        self._scores = None
        self.catch_up()

    def append_scored(self, ids: Sequence[int]) -> Array:
        """Read tokens in one call of the engine.

        Returns:
            Scores after each of them, float32, shape (len(ids), vocabulary).

        Raises:
            OptionError: they are none, out of the vocabulary, more than fit, or more than ``most_scored``.
            EngineError: execution failed, or the generation is closed.
        """
        self.check(ids)
        if len(ids) > self.most_scored:
            raise OptionError(f"{len(ids)} tokens to score in one call: expected at most {self.most_scored}")
        self._ids.extend(int(token) for token in ids)
        self._scores = None
        scores = self.read(self._ids[self.known :], self.known, scored=len(ids))
        self.known, self._scores = len(self._ids), scores[-1].copy()
        return scores

    def logits(self) -> Array:
        """Scores of the next token, float32, shape (vocabulary,), a copy.

        Raises:
            OptionError: nothing was appended yet.
            EngineError: execution failed, or the generation is closed.
        """
        self._check_open()
        if not self._ids:
            raise OptionError("nothing was appended yet: append the prompt first")
        return self.catch_up().copy()

    def next(self) -> int:
        """Choose the next token and add it; it is read when the one after it is asked for.

        Raises:
            OptionError: nothing was appended yet, or the sequence is full.
            EngineError: execution failed, or the generation is closed.
        """
        if len(self._ids) >= self._capacity:
            raise OptionError(f"the sequence is full: it holds {self._capacity} tokens")
        token = self._sampler.choose(self.logits(), self._ids)
        self._ids.append(token)
        self._scores = None
        return token

    def rewind(self, length: int) -> None:
        """Forget what follows the first ``length`` tokens.

        Raises:
            OptionError: ``length`` is out of range.
            EngineError: the generation is closed.
        """
        self._check_open()
        if not 0 <= length <= len(self._ids):
            raise OptionError(f"cannot go back to {length} tokens: the sequence has {len(self._ids)}")
        if length < len(self._ids):
            self._scores = None
        del self._ids[length:]
        self.known = min(self.known, length)

    def close(self) -> None:
        """Give memory back; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.release()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def check(self, ids: Sequence[int]) -> None:
        """Refuse tokens that cannot be appended; raises as of ``append``."""
        self._check_open()
        if not ids:
            raise OptionError("no tokens to append: expected at least one")
        if len(self._ids) + len(ids) > self._capacity:
            raise OptionError(f"{len(ids)} tokens after {len(self._ids)} do not fit into {self._capacity}")
        wrong = next((token for token in ids if not 0 <= token < self._vocabulary), None)
        if wrong is not None:
            raise OptionError(f"token {wrong} is not in the vocabulary: ids are 0 to {self._vocabulary - 1}")

    def catch_up(self) -> Array:
        """Read what was not read; returns the scores of what follows, which stay the sequence's own."""
        if self._scores is None:
            self.known = min(self.known, len(self._ids) - 1)  # the scores after the last token are not kept
            self._scores = self.read(self._ids[self.known :], self.known, scored=1)[-1]
            self.known = len(self._ids)
        return self._scores

    def took(self, token: int, scores: Array) -> None:
        """A call with other sequences has read a token of this one."""
        self._ids.append(int(token))
        self.known, self._scores = len(self._ids), scores

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(f"{self.engine}: the sequence is closed; start another")


class SequencedModel(Wording, ABC):
    """A model whose generations are ``Sequenced``, but for how they are started."""

    most_together = 1
    most_scored = SCORED_TOKENS

    @abstractmethod
    def generation(self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = "") -> Generation:
        """Start a sequence; as of ``TextModel``."""

    def append_together(self, generations: Sequence[Generation], tokens: Sequence[int]) -> Array:
        """Read a token of one sequence.

        Raises:
            OptionError: there are several, or none.
            EngineError: execution failed, or it is closed.
        """
        return append_one(generations, tokens)

    def score(self, ids: Sequence[int]) -> Array:
        """Log-probability of every token but the first after those before it, float64, shape (len(ids) - 1,).

        Raises:
            OptionError: fewer than two ids, more than the context, or ids out of the vocabulary.
            EngineError: execution failed, or the model is closed.
        """
        check_scored(self.spec, ids)
        generation = self.generation(capacity=len(ids))
        try:
            return score_in_pieces(ids, generation.append_scored)
        finally:
            generation.close()
