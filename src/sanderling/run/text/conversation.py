"""One request for text, step by step: its prompt is read in chunks, then its tokens come one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.text.base import Generation, Sampling, TextModel
from sanderling.run.text.drafts import PromptLookup
from sanderling.run.text.sampling import Sampler
from sanderling.run.text.stopping import StopStrings
from sanderling.run.text.stream import Finish, Outlet, TextResult

_EXPECTED_TOKENS = 256  # of an answer, that memory is taken for at once
_LEAST_TOKENS = 32  # of an answer, that a kept sequence must have memory for
_HEADROOM = 1.5  # for the next turn
_BLOCK = 128
_CLEAR = 2.0  # by which the likeliest token's score is above the second's


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What is asked for.

    Attributes:
        prompt: ids, at least one.
        stop: texts that end the answer, and are not part of it.
        schema: JSON schema that the answer must keep; empty for none.
        priority: larger is sooner.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    schema: str = ""
    priority: int = 0


class Conversation:
    """A request while it is computed. Used by one thread at a time.

    Args:
        model: that computes it.
        request: what is asked for; its prompt leaves room in the context.
        outlet: where its text goes.
        drafts: most tokens of a guess that is checked in one call; 0 for one token a call.

    Attributes:
        used_ms: time that its steps took, from where it entered; the smallest is next.
        cached_tokens: of the prompt, that were not computed.
        drafted_tokens: that were guessed.
        accepted_tokens: of these, that were right.
        is_cancelled: nobody wants the rest.
    """

    def __init__(self, model: TextModel, request: TextRequest, outlet: Outlet, *, drafts: int = 0) -> None:
        self.request = request
        self.outlet = outlet
        self.used_ms = 0.0
        self.cached_tokens = self.drafted_tokens = self.accepted_tokens = 0
        self.is_cancelled = False
        self._model = model
        self._ids = list(request.prompt)
        self._generation: Generation | None = None
        self._read = 0  # of the ids, by the generation
        self._waits_ms: list[float] = []  # for tokens, until they are asked for
        self._told_s = outlet.began_s  # when its reader last got a token
        self._sampler = Sampler(request.sampling)
        self._decoder = model.stream_decoder()
        self._stops = StopStrings(request.stop)
        self._lookup = PromptLookup(drafts if self._can_draft() else 0)
        self._is_doubtful = False  # a draft left the choice of the next token open
        self._most = min(
            request.sampling.max_tokens or model.spec.context_length, model.spec.context_length - len(request.prompt)
        )

    @property
    def tokens(self) -> int:
        """Tokens that were chosen so far."""
        return self.outlet.tokens

    @property
    def capacity(self) -> int:
        """Tokens that it takes memory for when it starts, or has taken."""
        if self._generation is not None:
            return self._generation.capacity
        if self.request.schema:  # what holds it to the schema cannot go back
            return len(self.request.prompt) + self._most
        expected = len(self.request.prompt) + min(self._most, _EXPECTED_TOKENS)
        return min(_blocks(int(expected * _HEADROOM)), self._model.spec.context_length)

    @property
    def needed(self) -> int:
        """Tokens of memory that a kept generation must have to be of use."""
        return len(self.request.prompt) + min(self._most, _LEAST_TOKENS)

    @property
    def unread(self) -> int:
        """Tokens that the next steps read before a token can be chosen."""
        return len(self._ids) - self._read

    @property
    def is_reading(self) -> bool:
        """Whether it reads its prompt."""
        return self.tokens == 0 or self.unread > 1

    def go_on_from(self, generation: Generation, cached: int) -> None:
        """Use a generation that holds the first ``cached`` tokens of the prompt."""
        self._generation = generation
        self._read = self.cached_tokens = cached

    def cancel(self) -> None:
        """Nobody wants the rest; noticed before the next step."""
        self.is_cancelled = True

    @property
    def is_writing(self) -> bool:
        """Whether its next step reads a token and chooses another, which can be one call with other requests' steps."""
        generation = self._generation
        if generation is None or self.is_reading or self.request.schema or self.unread != 1:
            return False
        return self._read < generation.capacity

    def take_waits_ms(self) -> list[float]:
        """Milliseconds that each token that was chosen has come after the one before, or the request's beginning."""
        waits, self._waits_ms = self._waits_ms, []
        return waits

    def step(self, limit: int) -> Finish | None:
        """Read at most ``limit`` tokens, or the last one and choose another, and more where guesses were right.

        Returns:
            How the answer ends, where it does.

        Raises:
            SanderlingError: the engine failed.
        """
        generation = self._roomy()
        if generation.length > self._read:
            generation.rewind(self._read)
        guess = self._guess(generation, limit)
        if guess:
            return self._check(generation, guess)
        if self.unread:
            read = self._ids[self._read :][:limit]
            generation.append(read)
            self._read += len(read)
        if self.unread:
            return None
        return self._accept(self._choose(generation))

    def last_token(self) -> tuple[Generation, int]:
        """The sequence, and the token that it reads next, of a request that is writing."""
        generation = self._generation
        assert generation is not None
        if generation.length > self._read:
            generation.rewind(self._read)
        return generation, self._ids[self._read]

    def go_on(self, scores: Array) -> Finish | None:
        """Choose another token, as the last one was read in a call with other requests'.

        Raises:
            EngineError: no token can be chosen.
        """
        self._read += 1
        return self._accept(self._sampler.choose(scores, self._ids))

    def finish(self, finish: Finish, keep: Callable[[list[int], Generation], None]) -> None:
        """End it: what was held back is given out, and the generation is kept for other requests.

        A generation that was cancelled, or held to a schema, is closed.
        """
        if finish != "cancelled" and not self._stops.found:
            self._give(self._stops.feed(self._decoder.finish()) + self._stops.finish())
        generation, self._generation = self._generation, None
        if generation is not None:
            if finish == "cancelled" or self.request.schema:
                generation.close()
            else:
                keep(self._ids[: self._read], generation)
        self.outlet.end(self._result(finish))

    def drop(self) -> None:
        """Give the memory back."""
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()

    def _can_draft(self) -> bool:
        """Whether what is chosen with drafts is what is chosen without.

        Where a draft changes the numbers of other tokens a little, the likeliest token is known by how clear it is. A
        random choice would be another one.
        """
        if self.request.schema or self._model.most_scored < 2:
            return False
        sampling = self.request.sampling
        is_greedy = sampling.temperature == 0 and sampling.repetition_penalty == 1.0
        return self._model.rows_are_independent or is_greedy

    def _guess(self, generation: Generation, limit: int) -> list[int]:
        """Tokens that may follow the last one, as many as one call may read."""
        if self.is_reading or self._is_doubtful or self.unread != 1:
            return []
        room = generation.capacity - self._read - 1
        return self._lookup.guess(
            self._ids, min(limit - 1, room, self._most - self.tokens - 1, self._model.most_scored - 1)
        )

    def _check(self, generation: Generation, guess: list[int]) -> Finish | None:
        """Read the last token and a guess in one call; every token is chosen from the scores before it, as ever."""
        scores = generation.append_scored([self._ids[self._read], *guess])
        right = 0
        finish: Finish | None = None
        for row, following in zip(scores, [*guess, None], strict=True):
            if not self._model.rows_are_independent and not _is_clear(row):
                self._is_doubtful = True  # the next step takes it without a draft
                break
            self._read += 1
            token = self._sampler.choose(row, self._ids)
            finish = self._accept(token)
            if finish is not None or token != following:
                break
            right += 1
        self.drafted_tokens += len(guess)
        self.accepted_tokens += right
        self._lookup.told(len(guess), right, len(self._ids))
        return finish

    def _accept(self, token: int) -> Finish | None:
        """Take a token into the answer; returns how the answer ends, where it does."""
        now_s = time.monotonic()
        self._is_doubtful = False
        self._waits_ms.append((now_s - self._told_s) * 1e3)
        self._told_s = now_s
        if self.outlet.first_s is None:
            self.outlet.first_s = now_s
        self.outlet.tokens += 1
        if token in self._model.spec.eos_ids:
            return "stop"
        self._ids.append(token)
        self._give(self._stops.feed(self._decoder.feed(token)))
        if self._stops.found:
            return "stop"
        return "length" if self.tokens >= self._most else None

    def _choose(self, generation: Generation) -> int:
        if self.request.schema:
            self._read += 1
            return generation.next()
        return self._sampler.choose(generation.logits(), self._ids)

    def _roomy(self) -> Generation:
        """The generation; one of twice the size, which reads everything again, where it is full."""
        generation = self._generation
        if generation is not None and self._read < generation.capacity:
            return generation
        capacity = self.capacity
        if generation is not None:
            generation.close()
            capacity = min(2 * capacity, self._model.spec.context_length)
            self._generation = None
            self._read = 0
        self._generation = self._model.generation(self.request.sampling, capacity=capacity, schema=self.request.schema)
        return self._generation

    def _give(self, text: str) -> None:
        if text:
            self.outlet.put(text)

    def _result(self, finish: Finish) -> TextResult:
        began_s, first_s = self.outlet.began_s, self.outlet.first_s
        return TextResult(
            text=self.outlet.text,
            finish=finish,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            tokens=self.tokens,
            first_ms=None if first_s is None else (first_s - began_s) * 1e3,
            total_ms=(time.monotonic() - began_s) * 1e3,
        )


def _is_clear(scores: Array) -> bool:
    """Whether the likeliest token stays the likeliest when numbers change a little."""
    second, first = np.partition(scores, -2)[-2:]
    return bool(first - second > _CLEAR)


def _blocks(tokens: int) -> int:
    return -(-tokens // _BLOCK) * _BLOCK
