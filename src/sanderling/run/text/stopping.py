"""Texts that end an answer, wherever the pieces that it comes in begin and end."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until one of the stop strings comes; what may be the beginning of one is held back.

    Args:
        stops: none of them empty.

    Attributes:
        found: one has come: nothing is passed on any more.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that can be passed on now, without the stop string that it may end before."""
        if self.found:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found = True
            self._held = ""
            return text[: min(places)]
        kept = max(_beginning(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """What was held back, as no more text comes."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with, without being all of it."""
    longest = min(len(stop) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
