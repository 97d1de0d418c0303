"""PyTorch to ONNX, and the proof that both say the same."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch

from sanderling.core.errors import ModelError, OptionError, first_line
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, TensorSpec, random_feeds
from sanderling.model.graph import NEWEST_OPSET
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.workshop.evidence import ExportEvidence
from sanderling.workshop.options import BuildOptions

TOLERANCE = 1e-4
_INPUTS_PER_BATCH_SIZE = 3
_TRACED_BATCH = 2
_OLDEST_EXPORT_OPSET = 18

Module = torch.nn.Module | torch.export.ExportedProgram


def to_onnx(module: Module, options: BuildOptions, *, rewrite: bool = True) -> onnx.ModelProto:
    """Export with PyTorch's graph exporter.

    Args:
        module: in eval mode.
        options: its inputs, dynamic axes and opset.
        rewrite: let the exporter simplify; without, every parameter is an initialiser of its own name.

    Raises:
        OptionError: no ``--input``, an opset out of range, or a dynamic batch asked of an archive without one.
        ModelError: PyTorch could not export the module; its own first line is quoted.
    """
    if not options.inputs:
        raise OptionError("a PyTorch source needs --input NAME=1,3,224,224 for each argument of forward()")
    if not _OLDEST_EXPORT_OPSET <= options.opset <= NEWEST_OPSET:
        raise OptionError(
            f"--opset {options.opset} is out of range: PyTorch exports {_OLDEST_EXPORT_OPSET} to {NEWEST_OPSET}"
        )
    archive = isinstance(module, torch.export.ExportedProgram)
    if archive and options.dynamic_batch and not module.range_constraints:
        raise OptionError("--dynamic batch: the archive was exported with a fixed batch; export it with a dynamic one")
    batch = _TRACED_BATCH if options.dynamic_batch else None
    arguments = tensors(options.inputs, batch, options.seed)
    shapes = None
    if options.dynamic_batch and not archive:
        axis = torch.export.Dim("batch")
        shapes = tuple({0: axis} for _ in options.inputs)
    try:
        with quiet():
            program = torch.onnx.export(
                module,
                () if archive else tuple(arguments),
                dynamo=True,
                input_names=[spec.name for spec in options.inputs],
                opset_version=options.opset,
                dynamic_shapes=shapes,
                optimize=rewrite,
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        cause = error.__cause__ or error
        raise ModelError(f"PyTorch could not export the module: {type(cause).__name__}: {first_line(cause)}") from error
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    return _named_batch(model) if options.dynamic_batch else model


def compare(
    module: Module, model: onnx.ModelProto, options: BuildOptions, *, tolerance: float = TOLERANCE
) -> ExportEvidence:
    """Run both on several inputs, and on two batch sizes where the batch is dynamic.

    Raises:
        ModelError: an output differs by more than the tolerance, or the exported graph does not run.
    """
    batch_sizes = (1, 3) if options.dynamic_batch else (0,)
    executable = engine().load(model.SerializeToString(), EngineOptions(optimization=Optimization.NONE))
    callable_module = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    worst = 0.0
    for batch in batch_sizes:
        for seed in range(_INPUTS_PER_BATCH_SIZE):
            arguments = tensors(options.inputs, batch or None, options.seed + 1 + seed)
            expected = _expected(callable_module, arguments, options)
            names = [spec.name for spec in executable.inputs]
            got = executable.run(dict(zip(names, (tensor.numpy() for tensor in arguments), strict=True)))
            worst = max(worst, *_errors(expected, list(got.values())))
    executable.close()
    if worst > tolerance:
        raise ModelError(
            f"the exported ONNX disagrees with PyTorch: relative error {worst:.2e}, at most {tolerance:.0e} allowed; "
            "look for data-dependent branches or randomness in forward()"
        )
    shown = batch_sizes if options.dynamic_batch else (options.inputs[0].concrete_shape()[0],)
    return ExportEvidence(
        batch_sizes=shown,
        inputs_tried=len(batch_sizes) * _INPUTS_PER_BATCH_SIZE,
        relative_error=worst,
        tolerance=tolerance,
    )


def _expected(module: torch.nn.Module, arguments: list[torch.Tensor], options: BuildOptions) -> list[Array]:
    try:
        with torch.no_grad():
            return _flat_outputs(module(*arguments))
    except Exception as error:
        shapes = "; ".join(map(str, options.inputs))
        raise ModelError(f"the module does not run on {shapes}: {type(error).__name__}: {first_line(error)}") from error


def tensors(specs: tuple[TensorSpec, ...], batch: int | None, seed: int) -> list[torch.Tensor]:
    """Random arguments that fit ``specs``, with another first axis where ``batch`` is given."""
    sized = [spec if batch is None else spec.model_copy(update={"shape": (batch, *spec.shape[1:])}) for spec in specs]
    return [torch.from_numpy(array) for array in random_feeds(sized, seed=seed).values()]


def _flat_outputs(outputs: Any) -> list[Array]:  # noqa: ANN401 - whatever forward() returns
    leaves, _ = torch.utils._pytree.tree_flatten(outputs)
    return [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _errors(expected: list[Array], got: list[Array]) -> list[float]:
    if len(expected) != len(got):
        raise ModelError(f"the exported ONNX has {len(got)} outputs: PyTorch returns {len(expected)} tensors")
    return [relative_error(np.atleast_1d(x), np.atleast_1d(y)) for x, y in zip(expected, got, strict=True)]


def _named_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Call the dynamic axis ``batch`` everywhere; the exporter invents names such as ``s77``."""
    traced = {value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input} - {""}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in traced:
                dim.dim_param = "batch"
    return model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's chatter off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sink = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
