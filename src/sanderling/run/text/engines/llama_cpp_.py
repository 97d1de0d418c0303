"""llama.cpp: language models from GGUF files, in the quantisation that the file has.

Every sequence is a context of its own, so that memory is taken for its capacity and given back with it. Keys and values
are in 16 bits. The package prints what it does to stderr from native code; here it is silent, and what fails is raised.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, OptionError, UnavailableError
from sanderling.core.machine import usable_cores
from sanderling.core.tensor import Array
from sanderling.model.text import TextSpec
from sanderling.run.engines.base import Availability
from sanderling.run.text.base import GREEDY, Sampling, capacity_of
from sanderling.run.text.sampling import Sampler
from sanderling.run.text.sequence import Sequenced, SequencedModel

GRAPH = "model.gguf"
_BATCH = 512  # tokens of one native call
_HALF_BYTES = 2
_HINT = "pip install llama-cpp-python, which compiles it for this processor"


class LlamaCpp:
    """Runs folders with a GGUF file and its tokenizer."""

    name = "llama_cpp"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("llama-cpp-python"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint=_HINT)

    def load(self, folder: Path, spec: TextSpec, *, threads: int = 0) -> LlamaCppModel:
        """Load a variant's folder.

        Raises:
            ModelError: the folder has no GGUF file, or one that the engine does not take.
            UnavailableError: ``tokenizers`` is not installed.
        """
        if not (folder / GRAPH).is_file():
            raise ModelError(f"{folder} has no {GRAPH}: expected the folder of a variant for llama.cpp")
        return LlamaCppModel(folder, spec, threads or usable_cores())


class LlamaCppModel(SequencedModel):
    """One loaded variant. Its sequences share the weights, which stay in the file's pages."""

    rows_are_independent = True

    def __init__(self, folder: Path, spec: TextSpec, threads: int) -> None:
        super().__init__(folder, spec)
        self._llama = _llama()
        self._threads = threads
        self._model = self._llama.llama_model_load_from_file(
            str(folder / GRAPH).encode(), self._llama.llama_model_default_params()
        )
        if not self._model:
            raise ModelError(f"llama_cpp: {folder / GRAPH} cannot be loaded: it is cut short, or its kind is unknown")
        tokens = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model))
        if tokens != spec.vocabulary:
            self._llama.llama_model_free(self._model)
            raise ModelError(f"llama_cpp: {folder / GRAPH} has {tokens} tokens: the package says {spec.vocabulary}")
        self.token_bytes = _token_bytes(self._llama, self._model)
        self._generations: weakref.WeakSet[LlamaCppGeneration] = weakref.WeakSet()

    def generation(
        self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = ""
    ) -> LlamaCppGeneration:
        """Start a sequence.

        Raises:
            OptionError: a capacity below 1 or beyond the context, or a schema, which this adapter does not keep.
            EngineError: there is no memory for it, or the model is closed.
        """
        size = capacity_of(self.spec, capacity)
        if schema:
            raise OptionError("llama_cpp: an answer cannot be held to a JSON schema; use a variant for ONNX Runtime")
        if self._model is None:
            raise EngineError("llama_cpp: the model is closed; load the package again")
        generation = LlamaCppGeneration(self._llama, self._model, self.spec, Sampler(sampling), size, self._threads)
        self._generations.add(generation)
        return generation

    def close(self) -> None:
        """Close what is left of the sequences, and give the weights back."""
        for generation in list(self._generations):
            generation.close()
        model, self._model = self._model, None
        if model is not None:
            self._llama.llama_model_free(model)


class LlamaCppGeneration(Sequenced):
    """One sequence, which is a context of its own."""

    engine = LlamaCpp.name

    def __init__(
        self,
        llama: Any,  # noqa: ANN401 - untyped
        model: Any,  # noqa: ANN401 - untyped
        spec: TextSpec,
        sampler: Sampler,
        capacity: int,
        threads: int,
    ) -> None:
        super().__init__(spec, sampler, capacity)
        self._llama = llama
        self._lock = threading.Lock()
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = capacity
        parameters.n_batch = parameters.n_ubatch = min(capacity, _BATCH)
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama.llama_init_from_model(model, parameters)
        if not self._context:
            self._closed = True
            raise EngineError(f"llama_cpp: there is no memory for a sequence of {capacity} tokens")
        self._batch = llama.llama_batch_init(min(capacity, _BATCH), 0, 1)

    def read(self, ids: Sequence[int], known: int, *, scored: int) -> Array:
        """Compute tokens after the first ``known``; the scores of the last ``scored``."""
        llama, size = self._llama, min(self.capacity, _BATCH)
        scores = np.empty((scored, self._vocabulary), np.float32)
        with self._lock:
            llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), 0, known, -1)
            for start in range(0, len(ids), size):
                part = ids[start : start + size]
                first = len(ids) - scored - start  # of this part's tokens, whose scores are wanted
                self._fill(part, known + start, first)
                failure = llama.llama_decode(self._context, self._batch)
                if failure:
                    raise EngineError(f"llama_cpp: execution failed with {failure}")
                for place in range(max(first, 0), len(part)):
                    row = llama.llama_get_logits_ith(self._context, place)
                    scores[place - first] = np.ctypeslib.as_array(row, (self._vocabulary,))
        return scores

    def release(self) -> None:
        """Give the context back."""
        with self._lock:
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self._context)
            self._context = None

    def _fill(self, ids: Sequence[int], position: int, first_scored: int) -> None:
        batch = self._batch
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place] = token
            batch.pos[place] = position + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = place >= first_scored


def _llama() -> Any:  # noqa: ANN401 - untyped
    try:
        import llama_cpp
    except ImportError as error:
        raise UnavailableError(f"this variant needs llama.cpp: {_HINT}") from error
    llama_cpp.llama_log_set(_silent(llama_cpp), ctypes.c_void_p(0))
    return llama_cpp


def _silent(llama: Any) -> Any:  # noqa: ANN401 - untyped
    """A callback that prints nothing; kept for good, as native code holds it."""
    if not _KEPT:

        def ignore(level: int, text: bytes, data: Any) -> None:  # noqa: ANN401
            """Nothing."""

        _KEPT.append(llama.llama_log_callback(ignore))
    return _KEPT[0]


def _token_bytes(llama: Any, model: Any) -> int:  # noqa: ANN401 - untyped
    """Memory of one token's keys and values of all layers, in 16 bits."""
    heads = llama.llama_model_n_head(model)
    width = llama.llama_model_n_embd(model) // max(heads, 1) * llama.llama_model_n_head_kv(model)
    return int(2 * llama.llama_model_n_layer(model) * width * _HALF_BYTES)


_KEPT: list[Any] = []
ENGINE = LlamaCpp()
