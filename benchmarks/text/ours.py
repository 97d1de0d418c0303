"""A variant of a package as a process of the comparison: `python -m benchmarks.text.ours CHAT.sdl VARIANT`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.text.turns import PROMPT_TOKENS, STEPS, serve
from sanderling.model.package import Package
from sanderling.run.text.base import Generation, TextModel
from sanderling.run.text.loading import load_model


class Variant:
    """Reads tokens with one thread."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._generation: Generation = model.generation(capacity=PROMPT_TOKENS + STEPS)

    def restart(self) -> None:
        """Go back to the beginning."""
        self._generation.rewind(0)

    def read(self, ids: Sequence[int]) -> None:
        """Read tokens in one call."""
        self._generation.append(ids)

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probabilities, as ``sanderling bench`` takes them for perplexity."""
        found: list[float] = self._model.score(ids).tolist()
        return found


if __name__ == "__main__":
    opened = Package.open(sys.argv[1], check_hashes=False)
    serve(Variant(load_model(opened, opened.variant(sys.argv[2]), threads=1)))
