"""onnxruntime-genai: language models as ONNX graphs with a cache of keys and values, on ONNX Runtime's CPU kernels.

Four of its ways are not ours. It chooses tokens itself: here they are chosen by ``run.text.sampling`` from its scores,
so that every engine means the same by a seed. Its tokenizer ends a text at a NUL character: such a text is refused. It
reserves memory for the longest sequence a model can have: here for ``capacity``. And where a graph keeps only the last
token's scores, which a prompt is read much faster with, it cannot tell how likely a given text is: ``score`` runs the
variant's second graph on the same weights.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, OptionError, UnavailableError, first_line
from sanderling.core.machine import usable_cores
from sanderling.core.tensor import Array
from sanderling.model.text import TextSpec
from sanderling.run.engines.base import Availability
from sanderling.run.text.base import (
    GREEDY,
    PIECE_TOKENS,
    Generation,
    Message,
    Sampling,
    append_one,
    capacity_of,
    check_scored,
)
from sanderling.run.text.sampling import Sampler, score_in_pieces
from sanderling.run.text.wording import check_messages, check_text, with_bos

CONFIG = "genai_config.json"
GRAPH = "model.onnx"
SCORING_GRAPH = "scoring.onnx"
_FLOAT_BYTES = 4


class GenAi:
    """Runs folders that onnxruntime-genai's model builder, or this Sanderling, has written."""

    name = "genai"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("onnxruntime-genai"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install onnxruntime-genai")

    def load(self, folder: Path, spec: TextSpec, *, threads: int = 0) -> GenAiModel:
        """Load a variant's folder.

        Raises:
            ModelError: the folder has no configuration, or its graph is not one that the engine takes.
        """
        if not (folder / CONFIG).is_file():
            raise ModelError(f"{folder} has no {CONFIG}: expected the folder of a language model's variant")
        return GenAiModel(folder, spec, threads or usable_cores())


class GenAiModel:
    """One loaded variant. Its generations share the weights.

    The package decodes several sequences in one call only when they begin together and are padded alike: not here.
    """

    most_together = 1
    most_scored = 1
    rows_are_independent = False  # never asked: a call has one row

    def __init__(self, folder: Path, spec: TextSpec, threads: int) -> None:
        self.spec = spec
        self.token_bytes = _token_bytes(folder)
        self._folder, self._threads = folder, threads
        self._model: Any = _load(folder, GRAPH, threads)
        with _translated("its tokenizer cannot be read", ModelError):
            self._tokenizer: Any = _genai().Tokenizer(self._model)
        self._generations: weakref.WeakSet[GenAiGeneration] = weakref.WeakSet()

    def encode(self, text: str) -> list[int]:
        """Ids of a text; ``spec.bos_id`` first where the model wants it and the text does not begin with it.

        Raises:
            OptionError: the text has a lone surrogate or a NUL character.
        """
        check_text(text)
        return with_bos([int(token) for token in self._tokenizer.encode(text)], self.spec)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self._tokenizer.decode(np.asarray(ids, dtype=np.int32))) if len(ids) else ""

    def stream_decoder(self) -> GenAiStreamDecoder:
        """A decoder for one answer."""
        return GenAiStreamDecoder(self._tokenizer)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, by the model's chat template.

        Raises:
            OptionError: there is no template, or it refuses the messages.
        """
        check_messages(messages, self.spec)
        turns = json.dumps([{"role": message.role, "content": message.content} for message in messages])
        with _translated("the chat template refuses the messages", OptionError):
            return str(self._tokenizer.apply_chat_template(turns, add_generation_prompt=add_generation_prompt))

    def generation(
        self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = ""
    ) -> GenAiGeneration:
        """Start a sequence; one with a schema chooses its tokens by the engine's own sampler.

        Raises:
            OptionError: a capacity below 1 or beyond the context, or a schema that the engine does not take.
            EngineError: there is no memory for it, or the model is closed.
        """
        size = capacity_of(self.spec, capacity)
        if self._model is None:
            raise EngineError("genai: the model is closed; load the package again")
        if schema:
            generation: GenAiGeneration = GenAiGuidedGeneration(self._model, self.spec, sampling, size, schema)
        else:
            generation = GenAiGeneration(self._model, self.spec, Sampler(sampling), size)
        self._generations.add(generation)
        return generation

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
            ModelError: the folder has no graph for it.
            EngineError: execution failed, or the model is closed.
        """
        check_scored(self.spec, ids)
        if self._model is None:
            raise EngineError("genai: the model is closed; load the package again")
        if not (self._folder / SCORING_GRAPH).is_file():
            raise ModelError(f"{self._folder} has no {SCORING_GRAPH}, which texts are scored with: build it again")
        return score(self._folder, SCORING_GRAPH, self.spec, [ids], threads=self._threads)[0]

    def close(self) -> None:
        """Close what is left of the generations, and give the weights back."""
        for generation in list(self._generations):
            generation.close()
        self._model = None


class GenAiGeneration:
    """One sequence. A chosen token is read by the engine when the one after it is asked for."""

    def __init__(self, model: Any, spec: TextSpec, sampler: Sampler, capacity: int) -> None:  # noqa: ANN401 - untyped
        with _translated("a sequence could not be started", EngineError):
            self._generator: Any = self._start(model, capacity)
        self._spec, self._sampler = spec, sampler
        self._capacity = capacity
        self._ids: list[int] = []
        self._read = 0  # how many of the ids the engine has read

    @property
    def length(self) -> int:
        """Tokens so far: those appended and those chosen."""
        return len(self._ids)

    @property
    def capacity(self) -> int:
        """Most tokens that it can hold."""
        return self._capacity

    def append(self, ids: Sequence[int]) -> None:
        """Read tokens; the engine is called for at most 256 at a time.

        Raises:
            OptionError: they are none, out of the vocabulary, or more than fit.
            EngineError: execution failed, or the generation is closed.
        """
        self._open()
        if not ids:
            raise OptionError("no tokens to append: expected at least one")
        if len(self._ids) + len(ids) > self._capacity:
            raise OptionError(f"{len(ids)} tokens after {len(self._ids)} do not fit into {self._capacity}")
        wrong = next((token for token in ids if not 0 <= token < self._spec.vocabulary), None)
        if wrong is not None:
            raise OptionError(f"token {wrong} is not in the vocabulary: ids are 0 to {self._spec.vocabulary - 1}")
        self._ids.extend(int(token) for token in ids)
        self._catch_up()

    def append_scored(self, ids: Sequence[int]) -> Array:
        """Read one token; its scores, shape (1, vocabulary).

        Raises:
            OptionError: there are several, or none; or as of ``append``.
            EngineError: execution failed, or the generation is closed.
        """
        if len(ids) > 1:
            raise OptionError(f"{len(ids)} tokens to score in one call: expected 1")
        self.append(ids)
        return self.logits()[None]

    def logits(self) -> Array:
        """Scores of the next token, float32, shape (vocabulary,), a copy.

        Raises:
            OptionError: nothing was appended yet.
            EngineError: execution failed, or the generation is closed.
        """
        return np.array(self.all_logits()[-1], dtype=np.float32)

    def all_logits(self) -> Array:
        """Scores after each token of the last call that the graph keeps, shape (tokens, vocabulary)."""
        self._open()
        if not self._ids:
            raise OptionError("nothing was appended yet: append the prompt first")
        self._catch_up()
        with _translated("execution failed", EngineError):
            logits: Array = self._generator.get_output("logits")[0]  # (tokens, vocabulary)
        return logits

    def next(self) -> int:
        """Choose the next token and add it.

        Raises:
            OptionError: nothing was appended yet, or the sequence is full.
            EngineError: execution failed, or the generation is closed.
        """
        if len(self._ids) >= self._capacity:
            raise OptionError(f"the sequence is full: it holds {self._capacity} tokens")
        token = self._sampler.choose(self.logits(), self._ids)
        self._ids.append(token)
        return token

    def rewind(self, length: int) -> None:
        """Forget what follows the first ``length`` tokens.

        Raises:
            OptionError: ``length`` is out of range.
            EngineError: the generation is closed, or the engine cannot go back.
        """
        generator = self._open()
        if not 0 <= length <= len(self._ids):
            raise OptionError(f"cannot go back to {length} tokens: the sequence has {len(self._ids)}")
        del self._ids[length:]
        # The scores of the last token are gone: it is read again with what comes, or when they are asked for.
        kept = max(length - 1, 0)
        if kept < self._read:
            with _translated("the sequence could not go back", EngineError):
                generator.rewind_to(kept)
            self._read = kept

    def close(self) -> None:
        """Give the cache back; a second call does nothing."""
        self._generator = None

    def _start(self, model: Any, size: int) -> Any:  # noqa: ANN401 - untyped
        og = _genai()
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=size, min_length=0, repetition_penalty=1.0)
        return og.Generator(model, parameters)

    def _catch_up(self) -> None:
        if self._read == len(self._ids):
            return
        generator = self._open()
        with _translated("execution failed", EngineError):
            while self._read < len(self._ids):
                piece = self._ids[self._read : self._read + PIECE_TOKENS]
                generator.append_tokens(np.asarray(piece, dtype=np.int32))
                self._read += len(piece)

    def _open(self) -> Any:  # noqa: ANN401 - untyped
        if self._generator is None:
            raise EngineError("genai: the sequence is closed; start another")
        return self._generator


class GenAiGuidedGeneration(GenAiGeneration):
    """A sequence whose chosen tokens keep a JSON schema. Only the engine knows which may follow: it chooses them."""

    def __init__(self, model: Any, spec: TextSpec, sampling: Sampling, capacity: int, schema: str) -> None:  # noqa: ANN401 - untyped
        self._sampling, self._schema = sampling, schema
        super().__init__(model, spec, Sampler(sampling), capacity)

    def next(self) -> int:
        """Choose the next token and add it.

        Raises:
            OptionError: nothing was appended yet, or the sequence is full.
            EngineError: execution failed, or the generation is closed.
        """
        generator = self._open()
        if not self._ids:
            raise OptionError("nothing was appended yet: append the prompt first")
        if len(self._ids) >= self._capacity:
            raise OptionError(f"the sequence is full: it holds {self._capacity} tokens")
        with _translated("execution failed", EngineError):
            generator.generate_next_token()
            token = int(generator.get_next_tokens()[0])
        self._ids.append(token)
        self._read = len(self._ids)
        return token

    def rewind(self, length: int) -> None:
        """Refused: what the schema allows next depends on everything before.

        Raises:
            OptionError: always.
        """
        raise OptionError(f"a sequence that keeps a JSON schema cannot go back to {length} tokens")

    def _start(self, model: Any, size: int) -> Any:  # noqa: ANN401 - untyped
        og = _genai()
        parameters = og.GeneratorParams(model)
        asked = self._sampling
        options: dict[str, Any] = {
            "do_sample": asked.temperature > 0,
            "max_length": size,
            "min_length": 0,
            "repetition_penalty": asked.repetition_penalty,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "random_seed": -1 if asked.seed is None else asked.seed % 2**31,
        }
        if asked.temperature > 0:
            options["temperature"] = asked.temperature
        parameters.set_search_options(**options)
        with _translated("an answer cannot be held to the JSON schema", OptionError):
            parameters.set_guidance("json_schema", self._schema)
            return og.Generator(model, parameters)


class GenAiStreamDecoder:
    """Turns ids into text as they come."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - untyped
        self._tokenizer = tokenizer
        self._stream: Any = tokenizer.create_stream()
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        """Text that is whole now."""
        text = str(self._stream.decode(token))
        self._held = [] if text else [*self._held, token]
        return text

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, []
        return str(self._tokenizer.decode(np.asarray(held, dtype=np.int32))) if held else ""


def score(folder: Path, graph: str, spec: TextSpec, texts: Sequence[Sequence[int]], *, threads: int) -> list[Array]:
    """Log-probabilities as of ``GenAiModel.score``, of several texts, by a graph that keeps every token's scores.

    Raises:
        ModelError: the graph is not one that the engine takes.
        EngineError: execution failed.
    """
    model = _load(folder, graph, threads)
    return [_scored(GenAiGeneration(model, spec, Sampler(GREEDY), len(ids)), ids) for ids in texts]


def _scored(generation: GenAiGeneration, ids: Sequence[int]) -> Array:
    def read(piece: Sequence[int]) -> Array:
        generation.append(piece)
        return generation.all_logits()

    scores = score_in_pieces(ids, read)
    generation.close()
    return scores


def _genai() -> Any:  # noqa: ANN401 - untyped
    try:
        import onnxruntime_genai
    except ImportError as error:
        raise UnavailableError("this package needs onnxruntime-genai: pip install 'sanderling[text]'") from error
    onnxruntime_genai.disable_telemetry_events()
    return onnxruntime_genai


def _load(folder: Path, graph: str, threads: int) -> Any:  # noqa: ANN401 - untyped
    og = _genai()
    session = {"intra_op_num_threads": threads, "log_severity_level": 4}  # what fails is raised as well
    overlay = {"model": {"decoder": {"filename": graph, "session_options": session}}}
    with _translated(f"{folder} cannot be loaded", ModelError):
        config = og.Config(str(folder))
        config.overlay(json.dumps(overlay))
        return og.Model(config)


def _token_bytes(folder: Path) -> int:
    """Memory of one token's keys and values of all layers, in float32."""
    decoder = _decoder(folder)
    width = decoder.get("num_key_value_heads", 0) * decoder.get("head_size", 0)
    return int(decoder.get("num_hidden_layers", 0) * width * 2 * _FLOAT_BYTES)


def _decoder(folder: Path) -> dict[str, Any]:
    """What the configuration says about the graph."""
    try:
        return dict(json.loads((folder / CONFIG).read_text(encoding="utf-8"))["model"]["decoder"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {first_line(error)}") from error


@contextmanager
def _translated(what: str, kind: type[OptionError | ModelError | EngineError]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the only class that the package raises
        raise kind(f"genai: {what}: {first_line(error)}") from error


ENGINE = GenAi()
