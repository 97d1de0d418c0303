"""llama-cpp-python as a process of the comparison, in a Python of its own: `python peer.py MODEL.gguf`.

With ``--quantize TYPE FROM`` it writes MODEL.gguf from another file first, and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from turns import PROMPT_TOKENS, STEPS, serve  # type: ignore[import-not-found]

_SCORED = 1024
_TYPES = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}


class Peer:
    """Reads tokens with one thread; batches are as large as the prompt, so that it is read in one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._model = self._loaded(PROMPT_TOKENS + STEPS, every_score=False)

    def restart(self) -> None:
        """Forget what was read."""
        self._model.reset()

    def read(self, ids: Sequence[int]) -> None:
        """Read tokens in one call."""
        self._model.eval(list(ids))

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probabilities, by a second copy that keeps every token's scores."""
        model = self._loaded(_SCORED, every_score=True)
        model.eval(list(ids))
        logits = np.asarray(model.scores[: len(ids) - 1], np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(ids) - 1), np.asarray(ids[1:])]
        found: list[float] = (chosen - np.log(np.exp(logits).sum(axis=1))).tolist()
        return found

    def _loaded(self, context: int, *, every_score: bool) -> Any:  # noqa: ANN401 - untyped
        return llama_cpp.Llama(
            self._path,
            n_ctx=context,
            n_batch=PROMPT_TOKENS,
            n_ubatch=PROMPT_TOKENS,
            n_threads=1,
            n_threads_batch=1,
            logits_all=every_score,
            verbose=False,
        )


def quantize(target: str, kind: str, source: str) -> None:
    """Write a GGUF file in another type."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = _TYPES[kind]
    parameters.allow_requantize = True
    parameters.nthread = 1
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), parameters):
        sys.exit(f"{source} could not be quantised to {kind}")


if __name__ == "__main__":
    if "--quantize" in sys.argv:
        quantize(sys.argv[1], sys.argv[3], sys.argv[4])
    else:
        serve(Peer(sys.argv[1]))
