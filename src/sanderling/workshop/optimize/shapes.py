"""Fix a graph's dynamic axes, or make its batch dynamic, as the user asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, TensorSpec, random_feeds
from sanderling.model.graph import input_specs, set_shape
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization

BATCH_AXIS = "batch"
_ROW_TOLERANCE = 1e-4
_ALONE_TOLERANCE = 0.1
_ADVICE = "build it with a fixed batch, --input NAME=1,… and without --dynamic batch"


def apply_shapes(model: onnx.ModelProto, wanted: Sequence[TensorSpec], *, dynamic_batch: bool) -> None:
    """Set the inputs' shapes in place.

    Args:
        model: any checked graph.
        wanted: shapes for some of its inputs; they may only fill dynamic axes.
        dynamic_batch: make axis 0 of every input dynamic, and prove that rows do not influence each other.

    Raises:
        OptionError: an unknown input, or a shape that contradicts the graph.
        ModelError: axes stay dynamic beside the batch, or the graph only works with its own batch size.
    """
    before = {spec.name: spec for spec in input_specs(model)}
    for spec in wanted:
        _check_wanted(before, spec)
        set_shape(_input(model, spec.name), spec.shape)
    if dynamic_batch:
        _make_batch_dynamic(model)
    _forbid_other_dynamic_axes(model)
    for value in model.graph.output:
        if dynamic_batch and value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH_AXIS
    del model.graph.value_info[:]


def has_dynamic_batch(specs: Sequence[TensorSpec]) -> bool:
    """Whether every input's first axis is dynamic."""
    return all(spec.shape and isinstance(spec.shape[0], str) for spec in specs)


def prove_rows_independent(model: onnx.ModelProto, *, seed: int) -> None:
    """Run each row in two batches whose other rows differ, and alone; its results must not care.

    In two batches of one size the row must come out alike to 1e-4. Alone it may take other kernels, whose rounding an
    ill-conditioned graph can amplify, so there only gross differences count.

    Raises:
        ModelError: the row's results depend on the others, or the graph does not run with three rows.
    """
    executable = engine().load(model.SerializeToString(), EngineOptions(optimization=Optimization.NONE))
    inputs = input_specs(model)
    feeds, others = (random_feeds(inputs, batch=3, seed=seed + index) for index in range(2))
    try:
        together = executable.run(feeds)
        for row in range(3):
            beside = executable.run({name: _with_row(others[name], array, row) for name, array in feeds.items()})
            alone = executable.run({name: array[row : row + 1] for name, array in feeds.items()})
            for name, expected in together.items():
                _check_row(name, expected, beside[name], row, _ROW_TOLERANCE)
                _check_row(name, expected, alone[name], row, _ALONE_TOLERANCE)
    except EngineError as error:
        raise ModelError(f"the graph does not run with a batch of 3: {first_line(error)}; {_ADVICE}") from error
    finally:
        executable.close()


def _with_row(array: Array, source: Array, row: int) -> Array:
    """A copy of ``array`` with one row taken from ``source``."""
    copy = array.copy()
    copy[row] = source[row]
    return copy


def _check_row(name: str, expected: Array, got: Array, row: int, tolerance: float) -> None:
    """Compare a row of three with the same row in another batch of three, or alone."""
    if expected.shape[:1] == (3,) and got.shape[:1] in ((1,), (3,)):
        error = relative_error(expected[row], got[row if len(got) == 3 else 0])
    else:
        error = np.inf
    if error > tolerance:
        raise ModelError(f"output '{name}' mixes the rows of a batch (relative error {error:.1e}): {_ADVICE}")


def _check_wanted(before: dict[str, TensorSpec], wanted: TensorSpec) -> None:
    have = before.get(wanted.name)
    if have is None:
        raise OptionError(f"--input '{wanted.name}' is no input of the graph: available are {', '.join(before)}")
    fits = len(have.shape) == len(wanted.shape) and all(
        isinstance(size, str) or size == asked for size, asked in zip(have.shape, wanted.shape, strict=True)
    )
    if not fits or have.dtype != wanted.dtype:
        shape = ",".join(map(str, wanted.shape))
        raise OptionError(f"--input '{wanted.name}={shape}:{wanted.dtype}' contradicts the graph, which has {have}")


def _make_batch_dynamic(model: onnx.ModelProto) -> None:
    for spec in input_specs(model):
        if not spec.shape:
            raise ModelError(f"--dynamic batch: input '{spec.name}' is a scalar and has no batch axis")
        set_shape(_input(model, spec.name), (BATCH_AXIS, *spec.shape[1:]))


def _forbid_other_dynamic_axes(model: onnx.ModelProto) -> None:
    for spec in input_specs(model):
        if any(axis > 0 for axis in spec.dynamic_axes):
            names = ", ".join(str(spec.shape[axis]) for axis in spec.dynamic_axes if axis > 0)
            example = ",".join(str(size) if isinstance(size, int) else "N" for size in spec.shape)
            raise ModelError(
                f"input {spec} has dynamic axes besides the batch ({names}), which cannot be measured: "
                f"fix them with --input {spec.name}={example}"
            )


def _input(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    found: onnx.ValueInfoProto = next(value for value in model.graph.input if value.name == name)
    return found
