"""OpenVINO: language models as its own graphs with a state, one request of the compiled model for each sequence.

The package `openvino-genai` keeps its sequences to itself: neither going back nor scores are to be had from its
pipelines. So this runs the graphs that it and optimum-intel write, on plain OpenVINO. Keys and values are kept in 16
bits: in 8, as is this plugin's default, a sequence that goes back is rounded once more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.machine import usable_cores
from sanderling.core.tensor import Array
from sanderling.model.text import TextSpec
from sanderling.run.engines.base import Availability
from sanderling.run.text.base import GREEDY, Sampling, capacity_of
from sanderling.run.text.sampling import Sampler
from sanderling.run.text.sequence import Sequenced, SequencedModel

GRAPH = "openvino_model.xml"
_IDS, _MASK, _POSITIONS, _BEAM, _KEPT = "input_ids", "attention_mask", "position_ids", "beam_idx", "kept_rows"


class OpenVino:
    """Runs stateful graphs as openvino-genai and optimum-intel write them."""

    name = "openvino"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("openvino"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install 'sanderling[openvino]'")

    def load(self, folder: Path, spec: TextSpec, *, threads: int = 0) -> OpenVinoModel:
        """Load a variant's folder.

        Raises:
            ModelError: the folder has no such graph, or the graph has other inputs.
            UnavailableError: ``tokenizers`` is not installed.
        """
        if not (folder / GRAPH).is_file():
            raise ModelError(f"{folder} has no {GRAPH}: expected the folder of a variant for OpenVINO")
        return OpenVinoModel(folder, spec, threads or usable_cores())


class OpenVinoModel(SequencedModel):
    """One loaded variant. Its sequences share the weights."""

    rows_are_independent = False  # calls of several tokens round them to 8 bits, those of one token do not

    def __init__(self, folder: Path, spec: TextSpec, threads: int) -> None:
        super().__init__(folder, spec)
        with _translated(f"{folder} cannot be loaded", ModelError):
            self.token_bytes, self._compiled = _compile(folder / GRAPH, threads)
        self._generations: weakref.WeakSet[OpenVinoGeneration] = weakref.WeakSet()
        self._lock = threading.Lock()

    def generation(
        self, sampling: Sampling = GREEDY, *, capacity: int | None = None, schema: str = ""
    ) -> OpenVinoGeneration:
        """Start a sequence.

        Raises:
            OptionError: a capacity below 1 or beyond the context, or a schema, which this engine does not keep.
            EngineError: there is no memory for it, or the model is closed.
        """
        size = capacity_of(self.spec, capacity)
        if schema:
            raise OptionError("openvino: an answer cannot be held to a JSON schema; use a variant for ONNX Runtime")
        if self._compiled is None:
            raise EngineError("openvino: the model is closed; load the package again")
        with _translated("a sequence could not be started", EngineError):
            request = self._compiled.create_infer_request()
        generation = OpenVinoGeneration(request, self._lock, self.spec, Sampler(sampling), size)
        self._generations.add(generation)
        return generation

    def close(self) -> None:
        """Close what is left of the sequences, and give the weights back."""
        for generation in list(self._generations):
            generation.close()
        self._compiled = None


class OpenVinoGeneration(Sequenced):
    """One sequence, whose keys and values are the state of a request."""

    engine = OpenVino.name

    def __init__(self, request: Any, lock: threading.Lock, spec: TextSpec, sampler: Sampler, capacity: int) -> None:  # noqa: ANN401 - untyped
        super().__init__(spec, sampler, capacity)
        self._request = request
        self._lock = lock  # a compiled model with one stream runs one request at a time, whoever asks
        self._held = 0  # tokens of the state

    def read(self, ids: Sequence[int], known: int, *, scored: int) -> Array:
        """Compute tokens after the first ``known``; the scores of the last ``scored``."""
        with self._lock, _translated("execution failed", EngineError):
            if known < self._held:
                self._trim(known)
            total = known + len(ids)
            feeds = {
                _IDS: np.asarray([ids], np.int64),
                _MASK: np.ones((1, total), np.int64),
                _POSITIONS: np.arange(known, total, dtype=np.int64)[None],
                _BEAM: np.zeros(1, np.int32),
                _KEPT: np.arange(len(ids) - scored, len(ids), dtype=np.int64),
            }
            self._held = 0  # unknown, should the call fail
            self._request.infer(feeds)
            self._held = total
            return np.array(self._request.get_tensor("logits").data[0], dtype=np.float32)

    def release(self) -> None:
        """Give the state back."""
        self._request = None

    def _trim(self, length: int) -> None:
        from openvino import Tensor

        if length == 0:
            self._request.reset_state()
            return
        for state in self._request.query_state():
            state.state = Tensor(np.ascontiguousarray(state.state.data[:, :, :length]))


def _compile(path: Path, threads: int) -> tuple[int, Any]:
    """Bytes of a token's keys and values, and the graph as it runs: with scores of those rows that are asked for."""
    import openvino
    from openvino import opset13 as opset

    core = openvino.Core()
    model = core.read_model(path)
    missing = {_IDS, _MASK, _POSITIONS, _BEAM} - {name for port in model.inputs for name in port.names}
    if missing:
        raise ModelError(f"{path} has no input {', '.join(sorted(missing))}: expected a graph of optimum-intel's form")
    head = model.output("logits").get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    kept = opset.parameter([-1], np.int64, name=_KEPT)
    kept.output(0).get_tensor().set_names({_KEPT})
    head.input(0).replace_source_output(opset.gather(head.input_value(0), kept, opset.constant(1)).output(0))
    model.add_parameters([kept])
    model.validate_nodes_and_infer_types()
    shapes = [variable.info.data_shape for variable in model.get_variables()]  # (?, heads, ?, width)
    width = sum(int(np.prod([size.get_length() for size in shape if size.is_static])) for shape in shapes)
    config = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "KV_CACHE_PRECISION": "f16"}
    config["INFERENCE_PRECISION_HINT"] = "f32"  # a processor with bfloat16 would round everything to it
    return 2 * width, core.compile_model(model, "CPU", config)


@contextmanager
def _translated(what: str, kind: type[ModelError | EngineError]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the only class that the package raises
        raise kind(f"openvino: {what}: {first_line(error)}") from error


ENGINE = OpenVino()
