"""What makes a package of a model one that embeds texts: its tokenizer, checked against the graph."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.multimodal import TASKS
from sanderling.model.text import EMBEDDING_INPUTS, EmbeddingSpec
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.text.tokenizer import read_tokenizer

TASK = "embeddings"
_TOKENIZER = "tokenizer.json"


def check_task(task: str | None, tokenizer: Path | None) -> None:
    """Check that the options for a task go together, before anything is built.

    Raises:
        OptionError: a task without its tokenizer, or a tokenizer without the task.
        ModelError: the file is no tokenizer.
        UnavailableError: ``tokenizers`` is not installed.
    """
    if task is None and tokenizer is None:
        return
    if task == "text-generation":
        raise OptionError("a language model is built by sanderling.build_text")
    if task in TASKS:
        raise OptionError("a model of several branches is built by sanderling.build_multimodal")
    if task not in (None, TASK):
        known = ", ".join(("text-generation", TASK, *TASKS))
        raise OptionError(f"unknown task '{task}': available are {known}")
    if task != TASK or tokenizer is None:
        raise OptionError(
            f"--task {task or 'embeddings'} with --tokenizer {tokenizer}: expected both, as in "
            "--task embeddings --tokenizer tokenizer.json"
        )
    read_tokenizer(tokenizer)


def add_tokenizer(
    folder: Path, graph: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], tokenizer: Path
) -> EmbeddingSpec:
    """Put a tokenizer into a package, once it fits the model.

    Args:
        folder: of the package.
        graph: of the variant in FP32.
        inputs: of the model.
        outputs: of the model.
        tokenizer: file.

    Raises:
        ModelError: the model takes or returns something else than a model of sentences does, or has fewer ids than the
            tokenizer.
    """
    _check_tensors(inputs, outputs)
    size = read_tokenizer(tokenizer).get_vocab_size()
    _check_vocabulary(graph, inputs, size)
    shutil.copyfile(tokenizer, folder / _TOKENIZER)
    return EmbeddingSpec(tokenizer=_TOKENIZER, longest=inputs[0].concrete_shape()[1])


def _check_tensors(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in inputs]
    if EMBEDDING_INPUTS[0] not in names or set(names) - set(EMBEDDING_INPUTS):
        raise ModelError(f"the model's inputs are {', '.join(names)}: expected {', '.join(EMBEDDING_INPUTS)}")
    for spec in inputs:
        if (
            len(spec.shape) != 2
            or (spec.shape[0] != 1 and 0 not in spec.dynamic_axes)
            or not spec.dtype.startswith("int")
        ):
            raise ModelError(f"input {spec}: expected ids of shape (1, tokens) or (rows, tokens)")
    if len(outputs[0].shape) not in (2, 3) or not outputs[0].dtype.startswith("float"):
        raise ModelError(f"output {outputs[0]}: expected embeddings, (rows, width) or (rows, tokens, width)")


def _check_vocabulary(graph: Path, inputs: Sequence[TensorSpec], size: int) -> None:
    """Run the tokenizer's last id through the model, which has it only if they belong together."""
    executable = engine(DEFAULT_ENGINE).load(graph, EngineOptions())
    try:
        executable.run({spec.name: _filled(spec, size - 1) for spec in inputs})
    except EngineError as error:
        raise ModelError(
            f"the tokenizer has {size} ids, and the model fails for the last one: it is another model's "
            f"({first_line(error, limit=120)})"
        ) from error
    finally:
        executable.close()


def _filled(spec: TensorSpec, last: int) -> Array:
    shape = [axis if isinstance(axis, int) else 1 for axis in spec.shape]
    values = {EMBEDDING_INPUTS[0]: last, EMBEDDING_INPUTS[1]: 1, EMBEDDING_INPUTS[2]: 0}
    return np.full(shape, values[spec.name], dtype=spec.dtype)
