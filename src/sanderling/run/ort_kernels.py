"""Which nodes ONNX Runtime has no kernel for: all of them, where loading a graph names the first alone."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import onnx

from sanderling.model.graph import all_nodes

_OWN = ("", "ai.onnx")


def nodes_without_kernel(model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Operator to the names of its nodes that the installed ONNX Runtime cannot run in the graph's opset.

    Dtypes are not looked at. An operator that ONNX defines by others needs no kernel of its own.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    missing: dict[str, list[str]] = defaultdict(list)
    local = {(function.domain, function.name) for function in model.functions}
    for node in all_nodes(model.graph):
        domain = "" if node.domain in _OWN else node.domain
        if (node.domain, node.op_type) not in local and not _runs(node.op_type, domain, opsets.get(node.domain, 1)):
            missing[node.op_type].append(node.name or node.output[0])
    return {operator: tuple(names) for operator, names in missing.items()}


def _runs(operator: str, domain: str, opset: int) -> bool:
    ranges = _kernels().get((domain, operator), ())
    try:
        schema: Any = onnx.defs.get_schema(operator, opset, domain)  # its stub lacks what is asked for
    except onnx.defs.SchemaError:
        return bool(ranges) and domain != ""
    if schema.has_function or schema.has_context_dependent_function:
        return True
    return any(first <= schema.since_version <= last for first, last in ranges)


@functools.cache
def _kernels() -> Mapping[tuple[str, str], tuple[tuple[int, int], ...]]:
    """Versions of each operator that the processor has kernels for."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for kernel in get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            found[kernel.domain, kernel.op_name].append(kernel.version_range)
    return {key: tuple(ranges) for key, ranges in found.items()}
