"""Plain ONNX Runtime on the same folders as onnxruntime-genai, with a loop of our own around the graph.

What the loop gives and the kept library does not: one call computes the next tokens of several sequences, however long
each of them is; one call tells the scores after each of a few tokens, which drafts are checked with; and a sequence
takes memory only for the tokens that it has. The graph keeps the scores of those rows that it is asked for, so that one
graph on one copy of the weights reads prompts, writes, checks drafts and scores texts.

What it leaves to onnxruntime-genai is an answer that keeps a JSON schema.
"""

from __future__ import annotations

import json
import threading
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
from sanderling.run.text.base import GREEDY, PIECE_TOKENS, Generation, Sampling, TextModel, capacity_of
from sanderling.run.text.sampling import Sampler
from sanderling.run.text.sequence import Sequenced, SequencedModel
from sanderling.run.text.slots import CacheTensor, Slots, neighbours

GRAPH = "model.onnx"
_MOST_TOGETHER = 8
_KEPT = "kept_rows"  # the input of ours: rows whose scores are wanted
_PRUNING = "/lm_head/prune/"
_MASK, _POSITIONS = "attention_mask", "position_ids"
_CONFIG = "genai_config.json"
_KINDS = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}
# The first rounds all rows of a call by one scale; the second rounds one row and several by different kernels.
_DEPENDENT = ("DynamicQuantizeMatMul", "MatMulNBits")


class OnnxRuntime:
    """Runs folders that onnxruntime-genai's model builder, or this Sanderling, has written."""

    name = "onnxruntime"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("onnxruntime"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install onnxruntime")

    def load(self, folder: Path, spec: TextSpec, *, threads: int = 0) -> OnnxRuntimeModel:
        """Load a variant's folder.

        Raises:
            ModelError: the folder has no graph, or its graph is not one that this loop knows.
            UnavailableError: ``tokenizers`` is not installed.
        """
        if not (folder / GRAPH).is_file():
            raise ModelError(f"{folder} has no {GRAPH}: expected the folder of a language model's variant")
        return OnnxRuntimeModel(folder, spec, threads or usable_cores())


class OnnxRuntimeModel(SequencedModel):
    """One loaded variant. Its sequences share the weights, and lie in slots that a call can span."""

    most_together = _MOST_TOGETHER

    def __init__(self, folder: Path, spec: TextSpec, threads: int) -> None:
        super().__init__(folder, spec)
        self.rows_are_independent, graph = _prepared(folder)
        self._folder, self._threads = folder, threads
        self._session: Any = _session(graph, folder, threads)
        self._graph = _Graph(self._session, spec, _head_size(folder))
        self.token_bytes = sum(tensor.token_bytes for tensor in self._graph.tensors)
        self._pools: list[Slots] = []
        self._lock = threading.RLock()
        self._generations: weakref.WeakSet[OnnxRuntimeGeneration] = weakref.WeakSet()
        self._guided: TextModel | None = None

    def generation(self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = "") -> Generation:
        """Start a sequence; one with a schema is onnxruntime-genai's, on a copy of the model that is loaded for it.

        Raises:
            OptionError: a capacity below 1 or beyond the context, or a schema where onnxruntime-genai is not installed.
            EngineError: there is no memory for it, or the model is closed.
        """
        size = capacity_of(self.spec, capacity)
        with self._lock:
            self._open()
            if schema:
                return self._guide().generation(sampling, capacity=size, schema=schema)
            generation = OnnxRuntimeGeneration(self, Sampler(sampling), size, *self._taken())
            self._generations.add(generation)
        return generation

    def append_together(self, generations: Sequence[Generation], tokens: Sequence[int]) -> Array:
        """Read one token of each of several sequences in one call.

        Args:
            generations: of this model, none twice, at most ``most_together``.
            tokens: one for each.

        Returns:
            Scores of what follows each, float32, shape (sequences, vocabulary).

        Raises:
            OptionError: they are none or too many, a token is out of the vocabulary, or a sequence is full.
            EngineError: execution failed, or one is closed.
        """
        own = [generation for generation in generations if isinstance(generation, OnnxRuntimeGeneration)]
        if not 1 <= len(own) <= self.most_together or len(own) != len(generations) or len(own) != len(tokens):
            raise OptionError(
                f"{len(generations)} sequences in one call: expected 1 to {self.most_together} of this model"
            )
        for generation, token in zip(own, tokens, strict=True):
            generation.check([token])
        found: dict[int, Array] = {}
        with self._lock:
            for pool in self._pools:
                here = [place for place, generation in enumerate(own) if generation.pool is pool]
                if here:
                    rows = self._read_together([own[place] for place in here], [tokens[place] for place in here])
                    found |= dict(zip(here, rows, strict=True))
        return np.stack([found[place] for place in range(len(own))])

    def close(self) -> None:
        """Close what is left of the sequences, and give the weights back."""
        with self._lock:
            for generation in list(self._generations):
                generation.close()
            guided, self._guided = self._guided, None
            self._session = None
            self._pools.clear()
        if guided is not None:
            guided.close()

    def read(self, generation: OnnxRuntimeGeneration, ids: Sequence[int], known: int, *, scored: int) -> Array:
        """Compute tokens of one sequence after its first ``known``; the scores of the last ``scored``.

        They are read in pieces: see ``PIECE_TOKENS``. The last piece has all that are scored.
        """
        last = max(len(ids) - max(scored, PIECE_TOKENS), 0)  # where the last piece begins
        with self._lock:
            session = self._open()
            cache = generation.pool.views(generation.slot, 1)
            for start in range(0, last, PIECE_TOKENS):
                piece = ids[start : min(start + PIECE_TOKENS, last)]
                self._graph.run(session, cache, np.asarray([piece], np.int64), [known + start], np.zeros(1, np.int64))
            piece = ids[last:]
            kept = np.arange(len(piece) - scored, len(piece))
            rows = self._graph.run(session, cache, np.asarray([piece], np.int64), [known + last], kept)
        scores: Array = rows[0]
        return scores

    def free(self, generation: OnnxRuntimeGeneration) -> None:
        """Give a sequence's slot back."""
        with self._lock:
            generation.pool.free(generation.slot)
            if generation.pool.is_empty and generation.pool in self._pools[1:]:
                self._pools.remove(generation.pool)

    def _taken(self) -> tuple[Slots, int]:
        for pool in self._pools:
            slot = pool.take()
            if slot is not None:
                return pool, slot
        pool = Slots(self._graph.tensors, self.spec.context_length)
        self._pools.append(pool)
        slot = pool.take()
        assert slot is not None
        return pool, slot

    def _read_together(self, own: Sequence[OnnxRuntimeGeneration], tokens: Sequence[int]) -> list[Array]:
        """The scores after a token of each of some sequences of one pool. Under the lock."""
        session = self._open()
        for generation in own:
            if generation.length:
                generation.catch_up()
        first, exchanges = neighbours([generation.slot for generation in own])
        pool = own[0].pool
        held = {each.slot: each for each in self._generations if each.pool is pool and each.is_open}
        for slot, place in exchanges:
            mover, other = held.pop(slot), held.pop(place, None)
            pool.swap(slot, place, tokens=(mover.known, other.known if other is not None else 0))
            mover.slot, held[place] = place, mover
            if other is not None:
                other.slot, held[slot] = slot, other
        order = np.argsort([generation.slot for generation in own])
        ids = np.asarray(tokens, np.int64)[order][:, None]  # (sequences, 1)
        lengths = [own[place].known for place in order]
        rows = self._graph.run(session, pool.views(first, len(own)), ids, lengths, np.zeros(1, np.int64))
        for place, row in zip(order, rows, strict=True):
            own[place].took(tokens[place], row[0])
        return [generation.logits() for generation in own]

    def _guide(self) -> TextModel:
        """The model that holds answers to a JSON schema."""
        if self._guided is None:
            from sanderling.run.text.engines import text_engine

            try:
                self._guided = text_engine("genai").load(self._folder, self.spec, threads=self._threads)
            except UnavailableError as error:
                raise OptionError(f"an answer is held to a JSON schema by onnxruntime-genai: {error}") from error
        return self._guided

    def _open(self) -> Any:  # noqa: ANN401 - untyped
        if self._session is None:
            raise EngineError("onnxruntime: the model is closed; load the package again")
        return self._session


class OnnxRuntimeGeneration(Sequenced):
    """One sequence, whose keys and values are in a slot.

    Attributes:
        pool: that its slot is in.
        slot: where its keys and values are; it changes when sequences become neighbours.
    """

    engine = OnnxRuntime.name

    def __init__(self, model: OnnxRuntimeModel, sampler: Sampler, capacity: int, pool: Slots, slot: int) -> None:
        super().__init__(model.spec, sampler, capacity)
        self.pool, self.slot = pool, slot
        self._model = model

    def read(self, ids: Sequence[int], known: int, *, scored: int) -> Array:
        """Compute tokens after the first ``known``; the scores of the last ``scored``."""
        return self._model.read(self, ids, known, scored=scored)

    def release(self) -> None:
        """Give the slot back."""
        self._model.free(self)


class _Graph:
    """How the graph's inputs and outputs are bound. Used under the model's lock."""

    def __init__(self, session: Any, spec: TextSpec, head_size: int) -> None:  # noqa: ANN401 - untyped
        inputs = {value.name: value for value in session.get_inputs()}
        self._names = set(inputs)
        past = [value for name, value in inputs.items() if len(value.shape) == 4]
        self.tensors = [_cache_tensor(value, head_size) for value in past]
        unknown = self._names - {value.name for value in past} - {"input_ids", _MASK, _POSITIONS, _KEPT}
        self._present = [name.replace("past_key_values", "present") for name in (value.name for value in past)]
        missing = {"logits", *self._present} - {value.name for value in session.get_outputs()}
        if unknown or missing or not past:
            raise ModelError(
                f"the graph is none that this loop knows: {', '.join(sorted(unknown | missing)) or 'no cache'}"
            )
        self._vocabulary = spec.vocabulary
        self._bound: dict[tuple[int, int], Any] = {}

    def run(self, session: Any, cache: Sequence[Array], ids: Array, lengths: Sequence[int], kept: Array) -> Array:  # noqa: ANN401
        """Compute tokens after what the cache holds.

        Args:
            session: that computes.
            cache: keys and values, shape (sequences, heads, context, width), which are added to.
            ids: int64, shape (sequences, tokens).
            lengths: tokens of each sequence that the cache holds.
            kept: which of the tokens' scores are wanted.

        Returns:
            Scores, float32, shape (sequences, len(kept), vocabulary).
        """
        import onnxruntime as ort

        sequences, tokens = ids.shape
        ends = np.asarray(lengths) + tokens
        mask = (np.arange(ends.max()) < ends[:, None]).astype(np.int64)
        feeds = {"input_ids": ids, _MASK: mask, _KEPT: kept}
        if _POSITIONS in self._names:
            feeds[_POSITIONS] = np.asarray(lengths)[:, None] + np.arange(tokens)
        rows = len(kept) if _KEPT in self._names else tokens
        scores = np.empty((sequences, rows, self._vocabulary), np.float32)
        with _translated("execution failed", EngineError):
            binding = session.io_binding()
            for name, value in feeds.items():
                if name in self._names:
                    binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)))
            for tensor, present, array in zip(self.tensors, self._present, cache, strict=True):
                value = ort.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(tensor.name, value)
                binding.bind_ortvalue_output(present, value)
            binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(scores))
            session.run_with_iobinding(binding)
        return scores if _KEPT in self._names else scores[:, kept]


def _prepared(folder: Path) -> tuple[bool, bytes]:
    """Whether a row's numbers are the same whatever else is in a call, and the graph, which keeps rows by an input."""
    import onnx

    try:
        model = onnx.load(folder / GRAPH, load_external_data=False)
    except Exception as error:
        raise ModelError(f"{folder / GRAPH} cannot be read: {first_line(error)}") from error
    graph = model.graph
    independent = not any(node.op_type in _DEPENDENT for node in graph.node)
    pruning = [node for node in graph.node if node.name.startswith(_PRUNING)]
    if pruning:
        kept = onnx.helper.make_node(
            "Gather", [pruning[0].input[0], _KEPT], [pruning[-1].output[0]], name=f"{_PRUNING}{_KEPT}", axis=1
        )
        place = list(graph.node).index(pruning[0])
        for node in pruning:
            graph.node.remove(node)
        graph.node.insert(place, kept)
        graph.input.append(onnx.helper.make_tensor_value_info(_KEPT, onnx.TensorProto.INT64, ["kept"]))
        del graph.value_info[:]
        for value in graph.output:
            if value.name == "logits":
                value.type.tensor_type.shape.dim[1].Clear()
                value.type.tensor_type.shape.dim[1].dim_param = "kept"
    return independent, model.SerializeToString()


def _session(graph: bytes, folder: Path, threads: int) -> Any:  # noqa: ANN401 - untyped
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what fails is raised as well
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    with _translated(f"{folder} cannot be loaded", ModelError):
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _cache_tensor(value: Any, head_size: int) -> CacheTensor:  # noqa: ANN401 - untyped
    """Keys or values of a layer; their width is the head's where the graph leaves it open."""
    if value.type not in _KINDS:
        raise ModelError(f"{value.name} is a {value.type}: available are {', '.join(_KINDS)}")
    width = value.shape[3] if isinstance(value.shape[3], int) else head_size
    return CacheTensor(value.name, value.shape[1], width, _KINDS[value.type])


def _head_size(folder: Path) -> int:
    """Width of one attention head, as the configuration beside the graph has it."""
    try:
        return int(json.loads((folder / _CONFIG).read_text(encoding="utf-8"))["model"]["decoder"]["head_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / _CONFIG} cannot be read: {first_line(error)}") from error


@contextmanager
def _translated(what: str, kind: type[ModelError | EngineError]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the package's errors have no common class
        raise kind(f"onnxruntime: {what}: {first_line(error)}") from error


ENGINE = OnnxRuntime()
