"""Fix a graph's dynamic axes, or make its batch dynamic, as the user asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError, first_line
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import TensorSpec, random_feeds
from sanderling.model.graph import input_specs, set_shape
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization

BATCH_AXIS = "batch"
_TOLERANCE = 1e-4


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
    """Run three rows at once and one by one; the results must be the same rows.

    Raises:
        ModelError: they are not, or the graph does not run with three rows.
    """
    executable = engine().load(model.SerializeToString(), EngineOptions(optimization=Optimization.NONE))
    feeds = random_feeds(input_specs(model), batch=3, seed=seed)
    advice = "build it without --dynamic batch"
    try:
        together = executable.run(feeds)
        for row in range(3):
            alone = executable.run({name: array[row : row + 1] for name, array in feeds.items()})
            for name, expected in alone.items():
                got = together[name][row : row + 1] if together[name].shape[:1] == (3,) else np.empty(0)
                error = relative_error(expected, got)
                if error > _TOLERANCE:
                    raise ModelError(
                        f"output '{name}' mixes the rows of a batch (relative error {error:.1e}): {advice}"
                    )
    except EngineError as error:
        raise ModelError(f"the graph does not run with a batch of 3: {first_line(error)}; {advice}") from error
    finally:
        executable.close()


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
