"""Files that hold single nodes, or kinds of operators, at another precision than the rest of the network."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import onnx

from sanderling.core.precision import Precision
from sanderling.model.manifest import Manifest


def sensitive_nodes(manifest: Manifest, model: onnx.ModelProto) -> tuple[str, ...]:
    """Nodes of ``model`` that an INT8 variant keeps in float: what eight bits would cost most there was measured."""
    kept = {name for variant in manifest.variants if variant.precision == Precision.INT8 for name in variant.float_nodes}
    return _present(kept, model)


def overflowing_nodes(manifest: Manifest, model: onnx.ModelProto) -> tuple[str, ...]:
    """Nodes of ``model`` that the FP16 variant keeps in FP32, as FP16 cannot hold what they read or write."""
    kept = {name for variant in manifest.variants if variant.precision == Precision.FP16 for name in variant.float_nodes}
    return _present(kept, model)


def precision_file(high_precision: Sequence[str]) -> str:
    """The file for ``--op_precision_mode``."""
    return "\n".join(["[ByNodeName]", *(f"{name}=high_precision" for name in high_precision), ""])


def keep_dtype_file(nodes: Sequence[str]) -> str:
    """The file for ``--keep_dtype``."""
    return "\n".join([*nodes, ""])


def mix_list_file(black: Sequence[str], white: Sequence[str]) -> str:
    """The file for ``--modify_mixlist``: types of operators that never, or always, compute in less than FP32."""
    lists = {"black-list": {"to-add": list(black)}, "white-list": {"to-add": list(white)}}
    return json.dumps({name: value for name, value in lists.items() if value["to-add"]}, indent=1) + "\n"


def _present(names: Collection[str], model: onnx.ModelProto) -> tuple[str, ...]:
    return tuple(node.name for node in model.graph.node if node.name in names)
