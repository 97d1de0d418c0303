"""Tensors inside a graph, watched by nodes that reduce each row to its extremes and its absolute sum."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sanderling.core.errors import OptionError, OutputError
from sanderling.core.files import cache_folder, replacing, sha256_of
from sanderling.core.tensor import Array
from sanderling.model.manifest import Variant
from sanderling.model.package import Package

if TYPE_CHECKING:
    import onnx

_FORMAT = 1  # of the graphs in the cache
_MODEL = "model.onnx"
_HASHES = "hashes.json"
_MARK = "__watched_"
_REDUCTIONS = {"low": "ReduceMin", "high": "ReduceMax", "l1": "ReduceSum"}  # of the values, and of their absolutes
_AXES_ARE_INPUTS = {"ReduceMin": 18, "ReduceMax": 18, "ReduceSum": 13}  # from this opset on
_NAMED = 10


class Extremes(NamedTuple):
    """Of one tensor inside the graph, each of shape (rows,), float32.

    Attributes:
        low: lowest value of each row; +inf in rows without values.
        high: highest value; -inf in rows without values.
        l1: sum of the absolute values; NaN where a value is.
    """

    low: Array
    high: Array
    l1: Array


def watched_model(package: Package, variant: Variant, names: Sequence[str]) -> Path:
    """A copy of a variant's graph that also returns what ``split`` reads; made once, then taken from the cache.

    A tensor that is only rounded to eight bits is watched as its readers see it, after rounding. An engine then still
    fuses its node with the rounding; with the tensor itself as an output it would have to compute that node in float.
    Other fusions across a watched tensor are given up, so that outputs may differ from the plain graph's by rounding.
    Values are watched as float32: what a double holds beyond that counts as infinite. Rounding to eight bits makes a
    number of NaN, and so do some engines' ReLUs: it is seen in a tensor before that.

    Args:
        package: that runs.
        variant: of it.
        names: of outputs of the graph's nodes.

    Raises:
        OptionError: the graph has no such tensor, or it is inside a subgraph, an input, or text.
        ModelError: the graph is unreadable.
        OutputError: the cache cannot be written.
    """
    files = [variant.file] + ([variant.external_data] if variant.external_data else [])
    unique = list(dict.fromkeys(names))
    key = json.dumps([_FORMAT, [package.manifest.files[name].sha256 for name in files], unique])
    folder = cache_folder() / "guarded" / hashlib.sha256(key.encode()).hexdigest()[:32]
    if _is_intact(folder):
        return folder / _MODEL
    from sanderling.model.graph import read_graph

    model = read_graph(package.file(variant.file))
    _watch(model, unique, variant.id)
    _write(model, folder)
    return folder / _MODEL


def split(outputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Extremes]]:
    """The model's own outputs, and what was watched, by the tensor's name."""
    own: dict[str, Array] = {}
    watched: dict[str, dict[str, Array]] = {}
    for name, array in outputs.items():
        tensor, mark, part = name.rpartition(_MARK)
        if mark and part in _REDUCTIONS:
            watched.setdefault(tensor, {})[part] = array
        else:
            own[name] = array
    return own, {name: Extremes(**parts) for name, parts in watched.items()}


def rows_of(inner: Mapping[str, Extremes], first: int, count: int, *, batch: int) -> dict[str, Extremes]:
    """What was watched of ``count`` rows of a batch, from row ``first`` on.

    A tensor whose first axis does not count the ``batch`` rows of the call is given as a whole: it cannot be told
    whose its values are.
    """
    return {
        name: Extremes(*(part[first : first + count] for part in extremes)) if len(extremes.l1) == batch else extremes
        for name, extremes in inner.items()
    }


def _watch(model: onnx.ModelProto, names: Sequence[str], variant: str) -> None:
    """Add the nodes and outputs to the graph, in place.

    With operators that many engines have: Flatten, and reductions of its second axis. Abs and ReduceSum are ReduceL1.
    """
    import onnx
    from onnx import helper, numpy_helper

    from sanderling.model.graph import opset_of
    from sanderling.model.shapes import infer_shapes

    _check_names(model, names, variant)
    shapes, opset = infer_shapes(model), opset_of(model)
    graph = model.graph
    axes, matrix = f"{_MARK}axes", f"{_MARK}matrix"
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), axes))
    graph.initializer.append(numpy_helper.from_array(np.array([1, 1], np.int64), matrix))
    for name in names:
        source = _as_read(graph, name)
        shape = shapes.get(source, ("",))
        floats, rows, sizes = (f"{name}{_MARK}{part}" for part in ("float", "rows", "sizes"))
        graph.node.append(helper.make_node("Cast", [source], [floats], floats, to=onnx.TensorProto.FLOAT))
        if shape == ():
            graph.node.append(helper.make_node("Reshape", [floats, matrix], [rows], rows))
        else:
            graph.node.append(helper.make_node("Flatten", [floats], [rows], rows, axis=1))
        graph.node.append(helper.make_node("Abs", [rows], [sizes], sizes))
        count = shape[0] or None if shape else 1
        for part, operator in _REDUCTIONS.items():
            output, reduced = f"{name}{_MARK}{part}", sizes if part == "l1" else rows
            if opset >= _AXES_ARE_INPUTS[operator]:
                node = helper.make_node(operator, [reduced, axes], [output], output, keepdims=0)
            else:
                node = helper.make_node(operator, [reduced], [output], output, axes=[1], keepdims=0)
            graph.node.append(node)
            graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [count]))


def _as_read(graph: onnx.GraphProto, name: str) -> str:
    """The tensor itself, or what its readers get of it where all of them read it rounded to eight bits."""
    from sanderling.model.graph import subgraph_names

    if name in {value.name for value in graph.output} or name in subgraph_names(graph):
        return name
    readers = [node for node in graph.node if name in node.input]
    if not readers or any(node.op_type != "QuantizeLinear" for node in readers):
        return name
    rounded = {node.output[0] for node in readers}
    reads = (node.output[0] for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in rounded)
    return next(reads, name)


def _check_names(model: onnx.ModelProto, names: Sequence[str], variant: str) -> None:
    import onnx

    from sanderling.model.graph import all_nodes

    made = {name: None for node in model.graph.node for name in node.output if name}
    inside = {name for node in all_nodes(model.graph) for name in node.output} - made.keys()
    given = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    described = (*model.graph.value_info, *model.graph.output)
    text = {value.name for value in described if value.type.tensor_type.elem_type == onnx.TensorProto.STRING}
    for name in names:
        if name in made and name not in text:
            continue
        problem = f"guard.innerTensors names '{name}', which in variant {variant}"
        if name in inside:
            raise OptionError(f"{problem} is inside a subgraph (If, Loop, Scan): only tensors of the graph itself are")
        if name in given or name in text:
            raise OptionError(f"{problem} is {'text' if name in text else 'no result'}: name the output of a node")
        near = difflib.get_close_matches(name, made, n=3)
        some = ", ".join(list(made)[:_NAMED]) + (" …" if len(made) > _NAMED else "")
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"available are {some}"
        raise OptionError(f"{problem} is no tensor; {hint}")


def _write(model: onnx.ModelProto, folder: Path) -> None:
    """Write the graph with its hashes; another process may do the same at the same time."""
    from sanderling.model.graph import write_graph

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as target:
            target.mkdir()
            write_graph(model, target / _MODEL)
            hashes = {path.name: sha256_of(path) for path in target.iterdir()}
            (target / _HASHES).write_text(json.dumps(hashes), encoding="utf-8")
    except (OSError, OutputError) as error:
        if _is_intact(folder):
            return
        reason = f"cannot keep the graph with watched tensors in {folder}: {error}; set SANDERLING_CACHE"
        raise OutputError(reason) from error


def _is_intact(folder: Path) -> bool:
    """Whether all files are there and unchanged."""
    try:
        hashes = json.loads((folder / _HASHES).read_text(encoding="utf-8"))
        return _MODEL in hashes and all(sha256_of(folder / name) == digest for name, digest in hashes.items())
    except (OSError, ValueError):
        return False
