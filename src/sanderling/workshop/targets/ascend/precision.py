"""Files that hold single nodes, or kinds of operators, at another precision than the rest of the network."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import onnx

from sanderling.core.precision import Precision
from sanderling.model.manifest import Manifest
from sanderling.workshop.targets.ascend.deploy import integer_nodes


def sensitive_nodes(manifest: Manifest, model: onnx.ModelProto) -> tuple[str, ...]:
    """Float nodes of ``model`` that an INT8 variant left in float, as eight bits would cost most there."""
    left = _float_nodes(manifest, Precision.INT8)
    return _present(left - set(integer_nodes(model)), model)


def overflowing_nodes(manifest: Manifest, model: onnx.ModelProto) -> tuple[str, ...]:
    """Nodes of ``model`` that the FP16 variant left in FP32, as FP16 cannot hold what they read or write."""
    return _present(_float_nodes(manifest, Precision.FP16), model)


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


def _float_nodes(manifest: Manifest, precision: Precision) -> set[str]:
    return {name for variant in manifest.variants if variant.precision == precision for name in variant.float_nodes}


def _present(names: Collection[str], model: onnx.ModelProto) -> tuple[str, ...]:
    return tuple(node.name for node in model.graph.node if node.name in names)
