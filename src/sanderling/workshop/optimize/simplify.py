"""Run the passes, compare the outputs after each, and undo a pass that changes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import first_line
from sanderling.core.progress import Event, Progress
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, Feeds
from sanderling.model.graph import input_specs, output_specs
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.workshop.optimize.passes import PASSES, Pass

TOLERANCE = 1e-4


class PassRecord(BaseModel):
    """What a pass did.

    Attributes:
        kept: False when it was undone.
        relative_error: largest over the inputs tried, against the graph as it came; None when the pass failed.
        nodes_before: count.
        nodes_after: count, of the pass's own result even when it was undone.
        operators: change in count by operator, without those that stayed the same.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kept: bool
    relative_error: float | None
    nodes_before: int
    nodes_after: int
    operators: dict[str, int]
    reason: str = ""


def simplify(
    model: onnx.ModelProto, probes: Sequence[Feeds], progress: Progress, *, passes: Sequence[Pass] = PASSES
) -> tuple[onnx.ModelProto, list[PassRecord]]:
    """Run ``passes`` in order.

    Args:
        model: a checked graph; it is left alone.
        probes: inputs to compare the outputs on.
        progress: is told about a pass that was undone.
        passes: the rewrites.

    Returns:
        The simplified graph, and a record of each pass.
    """
    reference = _outputs(model, probes)
    records = []
    progress.stage("simplify", len(passes))
    for rewrite in passes:
        candidate, record = _try(rewrite, model, probes, reference)
        records.append(record)
        if record.kept and candidate is not None:
            model = candidate
        else:
            progress.event(Event(kind="pass-undone", subject=rewrite.name, reason=record.reason))
        progress.advance()
    return model, records


def _try(
    rewrite: Pass, model: onnx.ModelProto, probes: Sequence[Feeds], reference: list[dict[str, Array]]
) -> tuple[onnx.ModelProto | None, PassRecord]:
    before = Counter(node.op_type for node in model.graph.node)
    candidate, error, reason = None, None, ""
    try:
        candidate = rewrite.run(model)
        onnx.checker.check_model(candidate)
        reason = _changed_interface(model, candidate)
        if not reason:
            error = _error(candidate, probes, reference)
            if error > TOLERANCE:
                reason = f"outputs changed: relative error {error:.2e}, at most {TOLERANCE:.0e} allowed"
    except Exception as failure:  # noqa: BLE001 - a pass is foreign code, and its failure must not end the build
        reason = f"{type(failure).__name__}: {first_line(failure)}"
    after = Counter(node.op_type for node in candidate.graph.node) if candidate else before
    changes = {name: after[name] - before[name] for name in sorted(before | after) if after[name] != before[name]}
    record = PassRecord(
        name=rewrite.name,
        kept=not reason,
        relative_error=error,
        nodes_before=before.total(),
        nodes_after=after.total(),
        operators=changes,
        reason=reason,
    )
    return candidate, record


def _changed_interface(model: onnx.ModelProto, candidate: onnx.ModelProto) -> str:
    if input_specs(candidate) != input_specs(model):
        return "inputs changed"
    if [spec.name for spec in output_specs(candidate)] != [spec.name for spec in output_specs(model)]:
        return "outputs changed their names"
    own = {node.domain for node in model.graph.node} | {"", "ai.onnx"}
    foreign = {node.domain for node in candidate.graph.node} - own
    return f"it brought operators of {', '.join(sorted(foreign))}" if foreign else ""


def _outputs(model: onnx.ModelProto, probes: Sequence[Feeds]) -> list[dict[str, Array]]:
    executable = engine().load(model.SerializeToString(), EngineOptions(optimization=Optimization.NONE))
    results = [executable.run(feeds) for feeds in probes]
    executable.close()
    return results


def _error(candidate: onnx.ModelProto, probes: Sequence[Feeds], reference: list[dict[str, Array]]) -> float:
    results = _outputs(candidate, probes)
    scales = {name: max(_largest(expected[name]) for expected in reference) for name in reference[0]}
    return max(
        relative_error(expected[name], got[name], scale=scales[name])
        for expected, got in zip(reference, results, strict=True)
        for name in expected
    )


def _largest(array: Array) -> float:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array.ravel()
    return float(np.abs(finite.astype(np.float64)).max()) if finite.size else 0.0
