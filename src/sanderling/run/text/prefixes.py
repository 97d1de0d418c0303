"""Sequences that are over, kept for prompts that begin alike: what a prompt shares with one is not computed again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sanderling.run.text.base import Generation

_LEAST_TOKENS = 4  # fewer are as quickly read again
_LEAST_SHARE = 0.25  # of a kept sequence


class _Kept(NamedTuple):
    ids: np.ndarray
    generation: Generation
    used_s: float


class PrefixCache:
    """Generations by the tokens that they hold. Used under its owner's lock.

    A prompt takes the generation that shares the longest beginning with it, but no long conversation for less than a
    quarter of it: its own next turn would have to be computed again.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def capacity(self) -> int:
        """Tokens that the kept generations have memory for."""
        return sum(kept.generation.capacity for kept in self._kept)

    def keep(self, ids: Sequence[int], generation: Generation) -> None:
        """Keep a generation that holds these tokens, instead of shorter ones that it begins with.

        One that is too short to be of use is closed.
        """
        if len(ids) < _LEAST_TOKENS:
            generation.close()
            return
        tokens = np.asarray(ids, dtype=np.int64)
        for kept in [kept for kept in self._kept if _shared(kept.ids, tokens) == len(kept.ids)]:
            self._drop(kept)
        self._kept.append(_Kept(tokens, generation, time.monotonic()))

    def take(self, prompt: Sequence[int], *, capacity: int) -> tuple[Generation, int] | None:
        """The generation that a prompt goes on from, and how many tokens they share; it must go back to these.

        Args:
            prompt: at least one token; its last one is always computed, for the scores of what follows.
            capacity: tokens that the generation must have memory for.
        """
        tokens = np.asarray(prompt, dtype=np.int64)
        fitting = [kept for kept in self._kept if kept.generation.capacity >= capacity]
        found = max(fitting, key=lambda kept: _shared(kept.ids, tokens), default=None)
        if found is None:
            return None
        shared = min(_shared(found.ids, tokens), len(tokens) - 1)
        if shared < _LEAST_TOKENS or _LEAST_SHARE * len(found.ids) > shared:
            return None
        self._kept = [kept for kept in self._kept if kept is not found]
        return found.generation, shared

    def drop_oldest(self) -> bool:
        """Give back the memory of the generation that was kept first; False where there is none."""
        if not self._kept:
            return False
        self._drop(min(self._kept, key=lambda kept: kept.used_s))
        return True

    def clear(self) -> None:
        """Give back everything."""
        while self.drop_oldest():
            pass

    def _drop(self, dropped: _Kept) -> None:
        self._kept = [kept for kept in self._kept if kept is not dropped]
        dropped.generation.close()


def _shared(ids: np.ndarray, others: np.ndarray) -> int:
    """How many tokens both begin with."""
    longest = min(len(ids), len(others))
    differing = np.flatnonzero(ids[:longest] != others[:longest])
    return int(differing[0]) if len(differing) else longest
