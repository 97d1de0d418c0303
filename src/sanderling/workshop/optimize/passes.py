"""Simplification passes, each by a kept library, each from graph to graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx


@dataclass(frozen=True)
class Pass:
    """A rewrite with its name; ``run`` leaves its argument alone and returns a new graph."""

    name: str
    run: Callable[[onnx.ModelProto], onnx.ModelProto]


def deduplicate(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make constants initialisers, drop what is dead or an identity, share equal initialisers and sub-expressions."""
    import onnx_ir as ir
    from onnx_ir.passes import common

    passes = ir.passes.Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=1),
        common.IdentityEliminationPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
    )
    return ir.to_proto(passes(ir.from_proto(model)).model)


def clear_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop what exporters note about each node for debugging: it can be larger than eight-bit weights."""
    import onnx_ir as ir
    from onnx_ir.passes import common

    return ir.to_proto(common.ClearMetadataAndDocStringPass()(ir.from_proto(model)).model)


def slim(model: onnx.ModelProto) -> onnx.ModelProto:
    """Fold constants and shapes, and fuse patterns such as Pad+Conv and Conv+BatchNormalization."""
    import onnxslim

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    result: onnx.ModelProto = onnxslim.slim(copy)
    return result


def fuse(model: onnx.ModelProto) -> onnx.ModelProto:
    """Fuse and fold with ONNX Runtime's offline optimiser at its basic level, which stays in standard ONNX."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "fused.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        fused = onnx.load(target)
    used = {node.domain for node in fused.graph.node} | {""}
    kept = [entry for entry in fused.opset_import if entry.domain in used]
    del fused.opset_import[:]
    fused.opset_import.extend(kept)
    return fused


PASSES = (
    Pass("onnx-ir: duplicates and dead nodes", deduplicate),
    Pass("onnxslim: constant folding and fusion", slim),
    Pass("onnxruntime: basic fusion", fuse),
)
