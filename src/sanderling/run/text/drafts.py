"""Guesses of what comes next, from what was there before: text that repeats itself is checked, not written.

Source: Saxena 2023, "Prompt Lookup Decoding"; Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
Decoding", for checking many tokens in one call.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST, _SHORTEST = 3, 2  # tokens that must have been there before, to guess what follows
_PATIENCE = 2  # guesses in a row that may be wrong
_MOST_PAUSE = 32  # tokens


class PromptLookup:
    """Guesses the next tokens of one sequence.

    It looks for the last tokens of the sequence further ahead in it, and guesses what followed there. Where guesses are
    wrong, fewer tokens are guessed, and then none for a while: a call that reads many tokens costs more than one step.

    Args:
        most: tokens of a guess; 0 guesses nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = most
        self._places: dict[tuple[int, ...], int] = {}  # where what follows such tokens begins
        self._seen = 0
        self._wrong = 0
        self._pause = 0
        self._pause_until = 0

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """What may follow, at most ``most`` tokens; nothing where there is no idea.

        Args:
            ids: the sequence, which has grown since the last call.
            most: tokens that are of use.
        """
        if self._most == 0:
            return []
        self._learn(ids)
        if len(ids) < self._pause_until:
            return []
        for size in range(_LONGEST, _SHORTEST - 1, -1):
            place = self._places.get(tuple(ids[-size:])) if len(ids) >= size else None
            if place is not None:
                return _copied(ids, place, min(self._size, most))
        return []

    def told(self, guessed: int, right: int, length: int) -> None:
        """How many of the guessed tokens were right, at a length of the sequence."""
        if not guessed:
            return
        if right:
            self._wrong = self._pause = 0
            self._size = self._most if right == guessed else max(2 * right, 2)
            return
        self._wrong += 1
        self._size = max(self._size // 2, 2)
        if self._wrong >= _PATIENCE:
            self._pause = min(max(2 * self._pause, 4), _MOST_PAUSE)
            self._pause_until = length + self._pause

    def _learn(self, ids: Sequence[int]) -> None:
        """Note what follows the tokens that were not looked at; the last ones have no follower yet."""
        for end in range(max(self._seen, 1), len(ids)):
            for size in range(_SHORTEST, _LONGEST + 1):
                if end >= size:
                    self._places[tuple(ids[end - size : end])] = end
        self._seen = len(ids)


def _copied(ids: Sequence[int], place: int, count: int) -> list[int]:
    """Tokens from a place on; where the sequence ends, the copy goes on with itself."""
    copy: list[int] = []
    for index in range(place, place + count):
        copy.append(ids[index] if index < len(ids) else copy[index - len(ids)])
    return copy
