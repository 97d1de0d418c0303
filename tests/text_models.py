"""A language model that is plain to see through: its tokens are bytes, and an answer goes on with the alphabet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from sanderling.core.errors import OptionError
from sanderling.model.text import TextSpec
from sanderling.run.text.base import GREEDY, Generation, Message, Sampling

END = 256
SPEC = TextSpec(architecture="alphabet", context_length=512, vocabulary=257, eos_ids=(END,))


class AlphabetModel:
    """After a letter the next one is the likeliest, after ``z`` the end, after ``é`` its first byte again.

    Args:
        spec: another context length, perhaps.
        before: called before every call of the engine with the tokens that it reads.
        most_together: sequences of one call.
        most_scored: tokens of one call whose scores are told.
        noise: added to every score but the likeliest token's in a call of several tokens, which are not independent.

    Attributes:
        together: of how many sequences each shared call has read a token.
        read: how many tokens each call has read.
        open: generations that were not closed.
        is_closed: whether the model was.
    """

    def __init__(
        self,
        spec: TextSpec = SPEC,
        before: Callable[[Sequence[int]], None] = lambda _: None,
        *,
        most_together: int = 1,
        most_scored: int = 1,
        noise: float = 0.0,
    ) -> None:
        self.spec = spec
        self.most_together, self.most_scored, self.noise = most_together, most_scored, noise
        self.rows_are_independent = noise == 0
        self.together: list[int] = []
        self.token_bytes = 1
        self.before = before
        self.read: list[int] = []
        self.open: set[AlphabetGeneration] = set()
        self.is_closed = False
        self.lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise OptionError(f"the text is not valid Unicode: lone surrogate at character {error.start}") from error

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < END).decode("utf-8", "replace")

    def stream_decoder(self) -> AlphabetDecoder:
        return AlphabetDecoder()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        return "".join(f"[{message.role}]{message.content}\n" for message in messages) + (
            "[assistant]" if add_generation_prompt else ""
        )

    def generation(
        self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = ""
    ) -> AlphabetGeneration:
        del sampling  # the session chooses
        if schema:
            raise OptionError("the alphabet keeps no JSON schema")
        return AlphabetGeneration(self, capacity or self.spec.context_length)

    def append_together(self, generations: Sequence[Generation], tokens: Sequence[int]) -> np.ndarray:
        assert 1 <= len(generations) == len(tokens) <= self.most_together
        assert len({id(generation) for generation in generations}) == len(generations)
        self.together.append(len(generations))
        for generation, token in zip(generations, tokens, strict=True):
            generation.append([token])
        return np.stack([generation.logits() for generation in generations])

    def score(self, ids: Sequence[int]) -> np.ndarray:
        return np.zeros(len(ids) - 1)

    def close(self) -> None:
        self.is_closed = True


class AlphabetGeneration:
    def __init__(self, model: AlphabetModel, capacity: int) -> None:
        self.ids: list[int] = []
        self.capacity = capacity
        self._model = model
        with model.lock:
            model.open.add(self)

    @property
    def length(self) -> int:
        return len(self.ids)

    def append(self, ids: Sequence[int]) -> None:
        self._model.before(ids)
        assert self in self._model.open, "used after it was closed"
        assert ids
        assert len(self.ids) + len(ids) <= self.capacity, "more than it has memory for"
        self.ids += ids
        self._model.read.append(len(ids))

    def append_scored(self, ids: Sequence[int]) -> np.ndarray:
        assert len(ids) <= self._model.most_scored
        self.append(ids)
        rows = np.stack([self._scores(token) for token in ids])
        return rows + self._model.noise * (rows < rows.max()) if len(ids) > 1 else rows

    def logits(self) -> np.ndarray:
        assert self in self._model.open
        return self._scores(self.ids[-1])

    def _scores(self, last: int) -> np.ndarray:
        scores = np.zeros(self._model.spec.vocabulary, np.float32)
        following = END if last == ord("z") else 0xC3 if last == 0xA9 else 0xA9 if last == 0xC3 else min(last + 1, END)
        scores[following] = 10.0
        return scores

    def next(self) -> int:
        token = int(self.logits().argmax())
        self.append([token])
        return token

    def rewind(self, length: int) -> None:
        assert 0 <= length <= len(self.ids)
        del self.ids[length:]

    def close(self) -> None:
        with self._model.lock:
            self._model.open.discard(self)


class AlphabetDecoder:
    def __init__(self) -> None:
        self._held = b""

    def feed(self, token: int) -> str:
        self._held += bytes([token]) if token < END else b""
        try:
            text = self._held.decode("utf-8")
        except UnicodeDecodeError:
            return ""
        self._held = b""
        return text

    def finish(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")
