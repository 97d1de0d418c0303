"""The contract that every engine for language models keeps; `tests/contract` holds each of them to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sanderling.core.errors import OptionError
from sanderling.core.tensor import Array
from sanderling.model.text import TextSpec
from sanderling.run.engines.base import Availability


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; roles are those that the chat template knows, such as ``user``."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the most likely token; above, probabilities are sharpened below 1 and flattened above.
        top_p: share of the probability that the candidates keep, most likely first, in (0, 1].
        top_k: most candidates; 0 for all.
        repetition_penalty: above 1, tokens that were seen before become less likely.
        seed: of the random choice; None takes a new one every time.
        max_tokens: most tokens of an answer; None up to the end of the context.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is out of range.

        Raises:
            OptionError: one of the numbers.
        """
        for name, ok, expected in (
            ("temperature", 0 <= self.temperature <= 100, "0 to 100"),
            ("top_p", 0 < self.top_p <= 1, "above 0, up to 1"),
            ("top_k", self.top_k >= 0, "0 (all candidates) or more"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100, "0.01 to 100"),
            ("seed", self.seed is None or self.seed >= 0, "0 or more"),
            ("max_tokens", self.max_tokens is None or self.max_tokens > 0, "1 or more"),
        ):
            if not ok:
                raise OptionError(f"{name} is {getattr(self, name)}: expected {expected}")


PIECE_TOKENS = 256
"""Of a prompt that are read at once: a call computes attention of all its tokens to all, also to those after them, so
that two halves are less than a whole."""
GREEDY = Sampling(temperature=0.0)


class StreamDecoder(Protocol):
    """Turns ids into text as they come."""

    def feed(self, token: int) -> str:
        """Text that is whole now; empty while a character or a word is incomplete."""

    def finish(self) -> str:
        """What was held back; bytes that are no whole character become U+FFFD."""


class Generation(Protocol):
    """One sequence of tokens with its cache of keys and values. Used by one thread at a time; closed once."""

    @property
    def length(self) -> int:
        """Tokens so far: those appended and those chosen."""

    @property
    def capacity(self) -> int:
        """Most tokens that it can hold."""

    def append(self, ids: Sequence[int]) -> None:
        """Read tokens, and return when they are read: the caller cuts a long prompt into chunks, to look up in between.

        Raises:
            OptionError: they are none, out of the vocabulary, or more than fit.
            EngineError: execution failed, or the generation is closed.
        """

    def append_scored(self, ids: Sequence[int]) -> Array:
        """Read tokens in one call of the engine, and tell the scores after each of them: drafts are checked with it.

        Returns:
            float32, shape (len(ids), vocabulary).

        Raises:
            OptionError: as of ``append``, or they are more than the model's ``most_scored``.
            EngineError: execution failed, or the generation is closed.
        """

    def logits(self) -> Array:
        """Scores of the next token, float32, shape (vocabulary,), a copy.

        Raises:
            OptionError: nothing was appended yet.
            EngineError: execution failed, or the generation is closed.
        """

    def next(self) -> int:
        """Choose the next token and add it; one step of decoding.

        Raises:
            OptionError: nothing was appended yet, or the sequence is full.
            EngineError: execution failed, or the generation is closed.
        """

    def rewind(self, length: int) -> None:
        """Forget what follows the first ``length`` tokens, in [0, length]; at least one must be appended afterwards.

        Raises:
            OptionError: ``length`` is out of range.
        """

    def close(self) -> None:
        """Give the cache back; a second call does nothing."""


class TextModel(Protocol):
    """A language model that an engine has loaded. Generations of several threads may run at once; closed once.

    Attributes:
        token_bytes: memory of one token's keys and values.
        most_together: sequences that one call can read a token of; 1 where each takes a call of its own.
        most_scored: tokens whose scores one call can tell; 1 where it tells those after the last token only.
        rows_are_independent: whether a token's numbers are the same with and without other tokens in its call, but for
            the order of sums. They are not where what a call reads is rounded, by one scale or by another kernel.
    """

    spec: TextSpec
    token_bytes: int
    most_together: int
    most_scored: int
    rows_are_independent: bool

    def encode(self, text: str) -> list[int]:
        """Ids of a text; ``spec.bos_id`` first where the model wants it and the text does not begin with it.

        Raises:
            OptionError: the text is not valid Unicode (a lone surrogate).
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""

    def stream_decoder(self) -> StreamDecoder:
        """A decoder for one answer."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, by the model's chat template.

        Raises:
            OptionError: there is no template, or it refuses the messages; the message says why.
        """

    def generation(self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = "") -> Generation:
        """Start a sequence.

        Args:
            sampling: how ``next`` chooses.
            capacity: most tokens; memory for their keys and values is taken at once. None for the whole context.
            schema: JSON schema that the text of the tokens from ``next`` keeps; such a sequence cannot go back.

        Raises:
            OptionError: a capacity below 1 or beyond the context, or a schema that the engine cannot hold it to.
            EngineError: there is no memory for it, or the model is closed.
        """

    def append_together(self, generations: Sequence[Generation], tokens: Sequence[int]) -> Array:
        """Read one token of each of several sequences, however long each of them is, in one call.

        Args:
            generations: of this model, none twice, at most ``most_together``; something was appended to each.
            tokens: one for each.

        Returns:
            Scores of what follows each, float32, shape (sequences, vocabulary).

        Raises:
            OptionError: they are none or too many, a token is out of the vocabulary, or a sequence is full.
            EngineError: execution failed, or one is closed; sequences may have read their token or not.
        """

    def score(self, ids: Sequence[int]) -> Array:
        """Log-probability of every token but the first after those before it, float64, shape (len(ids) - 1,).

        Raises:
            OptionError: fewer than two ids, more than the context, or ids out of the vocabulary.
            EngineError: execution failed, or the model is closed.
        """

    def close(self) -> None:
        """Give back what the model holds; its generations are closed before it. A second call does nothing."""


class TextEngine(Protocol):
    """Software that runs language models."""

    name: str

    def availability(self) -> Availability:
        """Whether it is installed here, in which version."""

    def load(self, folder: Path, spec: TextSpec, *, threads: int = 0) -> TextModel:
        """Load a variant's folder.

        Args:
            folder: ``variants/ID`` of a package.
            spec: of the package.
            threads: of one call; 0 for the machine's cores.

        Raises:
            ModelError: the folder is none of this engine's.
            EngineError: loading failed for another reason.
        """


def capacity_of(spec: TextSpec, capacity: int | None) -> int:
    """Tokens of a sequence that is asked for; None stands for the whole context.

    Raises:
        OptionError: below 1, or beyond the context.
    """
    size = spec.context_length if capacity is None else capacity
    if not 1 <= size <= spec.context_length:
        raise OptionError(f"capacity is {size}: expected 1 to {spec.context_length}, the model's context")
    return size


def check_scored(spec: TextSpec, ids: Sequence[int]) -> None:
    """Check that a text has tokens that follow others, and is not longer than the context.

    Raises:
        OptionError: it has not, or is.
    """
    if not 2 <= len(ids) <= spec.context_length:
        raise OptionError(f"{len(ids)} ids cannot be scored: expected 2 to {spec.context_length}")


def append_one(generations: Sequence[Generation], tokens: Sequence[int]) -> Array:
    """``append_together`` of a model whose sequences each take a call of their own.

    Raises:
        OptionError: there are several sequences, or none.
        EngineError: execution failed, or it is closed.
    """
    if not len(generations) == len(tokens) == 1:
        raise OptionError(f"{len(generations)} sequences in one call: expected 1")
    generations[0].append(tokens)
    return generations[0].logits()[None]
