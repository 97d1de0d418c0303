"""The frozen part of a task, cut off: what depends on the sample alone is computed once and kept.

Where the parameters begin to matter, the values that cross from the frozen part into the rest are the features. The cut
is made in the graphs themselves, so that it holds for any set of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from sanderling.core.tensor import TensorSpec
from sanderling.model.cost import graph_cost
from sanderling.workshop.learning.draft import Draft, extract, needed
from sanderling.workshop.learning.task import Task

_LEAST_MACS_SHARE = 0.3
_MOST_TENSORS = 4
_MOST_BYTES_PER_INPUT_BYTE = 16
_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Cut:
    """A place where a task can be cut.

    Attributes:
        tensors: values that cross, the first axis is the batch.
        macs_share: share of the forward pass's multiply–accumulates before it.
        bytes_per_sample: of the tensors.
    """

    tensors: tuple[TensorSpec, ...]
    macs_share: float
    bytes_per_sample: int


def find_cut(task: Task) -> Cut | str:
    """The cut, or why there is none that pays, in words."""
    draft = task.forward.draft
    frozen = _frozen_values(draft, task)
    if any(spec.name in frozen for spec in task.forward.outputs):
        return "an output of the model does not depend on what is trained"
    rest = [node for node in needed(draft.nodes[: task.forth], _ends(task)) if not frozen.issuperset(node.output)]
    crossing: dict[str, None] = {}
    for node in rest:
        for name in node.input:
            if name in frozen and not _only_sizes(node):
                crossing[name] = None
    tensors = []
    batch = task.label.shape[0]
    for name in crossing:
        shape = draft.shapes.get(name)
        if shape is None or not shape or any(isinstance(size, str) for size in shape[1:]):
            return f"'{name}', which crosses from the frozen part into the rest, has no fixed size"
        if isinstance(batch, int) and shape[0] != batch:
            return f"'{name}', which crosses from the frozen part into the rest, has no batch"
        tensors.append(TensorSpec(name=name, dtype=draft.types.get(name, "float32"), shape=(batch, *shape[1:])))
    if not tensors:
        return "nothing crosses from a frozen part into the rest"
    return _paying(task, tensors, frozen)


def _paying(task: Task, tensors: list[TensorSpec], frozen: set[str]) -> Cut | str:
    if len(tensors) > _MOST_TENSORS:
        return f"{len(tensors)} tensors cross from the frozen part into the rest, more than {_MOST_TENSORS}"
    size = sum(_sample_bytes(spec) for spec in tensors)
    given = sum(_sample_bytes(spec) for spec in task.forward.inputs)
    share = _macs_share(task, frozen)
    if share < _LEAST_MACS_SHARE:
        return f"the frozen part is {100 * share:.0f} % of the forward pass, less than {100 * _LEAST_MACS_SHARE:.0f} %"
    if size > _MOST_BYTES_PER_INPUT_BYTE * given:
        return (
            f"the features of a sample have {size} bytes, more than {_MOST_BYTES_PER_INPUT_BYTE} times its own {given}"
        )
    return Cut(tuple(tensors), share, size)


def _sample_bytes(spec: TensorSpec) -> int:
    elements = int(np.prod([size if isinstance(size, int) else 1 for size in spec.shape[1:]], dtype=np.int64))
    return elements * np.dtype(spec.dtype).itemsize


def _ends(task: Task) -> list[str]:
    outputs = [spec.name for spec in task.forward.outputs]
    return [task.loss.mean, task.loss.weight, *outputs]


def _frozen_values(draft: Draft, task: Task) -> set[str]:
    """Values that depend on the model's inputs, and on no parameter and no label."""
    open_values = {task.label.name, *(f"param.{parameter.name}" for parameter in task.parameters)}
    sampled = {spec.name for spec in task.forward.inputs}
    for node in draft.nodes:
        if open_values.intersection(node.input):
            open_values.update(node.output)
        elif sampled.intersection(node.input):
            sampled.update(node.output)
    return sampled - open_values


def _only_sizes(node: onnx.NodeProto) -> bool:
    return node.op_type in _SHAPES


def _macs_share(task: Task, frozen: set[str]) -> float:
    """Share of the forward pass that is frozen."""
    outputs = [(spec.name, spec) for spec in task.forward.outputs]
    params = [
        TensorSpec(name=f"param.{parameter.name}", dtype="float32", shape=parameter.shape)
        for parameter in task.parameters
    ]
    model = extract(task.forward.draft, "forward", (*task.forward.inputs, *params), outputs)
    for place, node in enumerate(model.graph.node):
        node.name = f"node {place}"
    places = {node.name: set(node.output) for node in model.graph.node}
    cost = graph_cost(model)
    before = sum(node.macs for node in cost.nodes if places.get(node.name, set()) <= frozen and node.name in places)
    return before / cost.macs if cost.macs else 0.0


def on_features(draft: Draft, task: Task, cut: Cut) -> Draft:
    """A draft of the task with the features as inputs: sizes of frozen values are read from the features."""
    draft = draft.copy()
    frozen = _frozen_values(draft, task)
    first = cut.tensors[0].name
    there = {spec.name for spec in cut.tensors}
    beyond = frozen - there  # frozen values that cannot be made of the features
    nodes = []
    for node in draft.nodes:
        if there.issuperset(node.output):
            continue
        if not beyond.intersection(node.input):
            nodes.append(node)
            beyond.difference_update(node.output)
        elif _only_sizes(node):
            nodes += _sizes_again(draft, node, first)
            beyond.difference_update(node.output)
    draft.nodes = nodes
    return draft


def _sizes_again(draft: Draft, node: onnx.NodeProto, feature: str) -> list[onnx.NodeProto]:
    """The nodes that compute a frozen value's shape or size from a feature's batch."""
    shape = draft.shape(node.input[0])
    before, draft.nodes = draft.nodes, []
    bounds = {entry.name: entry.i for entry in node.attribute}
    if node.op_type == "Shape":
        shape = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
    batch = draft.op("Shape", feature, start=0, end=1)
    parts = [batch if isinstance(size, str) else draft.integers([size]) for size in shape]
    whole = parts[0] if len(parts) == 1 else draft.op("Concat", *parts, axis=0)
    if node.op_type == "Size":
        whole = draft.op("ReduceProd", whole, keepdims=0)
    draft.nodes.append(helper.make_node("Identity", [whole], [node.output[0]], name=f"{node.name}.again"))
    written, draft.nodes = draft.nodes, before
    return written


def features_graph(task: Task, cut: Cut) -> onnx.ModelProto:
    """From the model's inputs to the features."""
    return extract(task.forward.draft, "features", task.forward.inputs, [(spec.name, spec) for spec in cut.tensors])
