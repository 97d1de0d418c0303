"""Graphs of one decoder, each product in a form of its own, on a common file of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.tensor import Array
from sanderling.model.graph import used_names
from sanderling.workshop.text.decoder import DATA, GRAPH, HEAD, Decoder, Product, unpruned
from sanderling.workshop.text.offsets import BlockMeans
from sanderling.workshop.text.residual import Residuals
from sanderling.workshop.text.storage import BITS, Form, block_of, fits, store

_DOMAIN = "com.microsoft"
_COMPUTE_IN_INT8 = 4  # MatMulNBits' accuracy_level
_PAGE_BYTES = 4096
_INLINE_BYTES = 1024

Tensors = dict[str, onnx.TensorProto]


class WeightFile:
    """A file of weights beside graphs; what is stored twice is written once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("wb")
        self._places: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, key: tuple[str, str], array: Array, name: str) -> onnx.TensorProto:
        """An initialiser of that name for an array; the bytes are those of an earlier one with that key."""
        if array.nbytes < _INLINE_BYTES:
            return numpy_helper.from_array(np.ascontiguousarray(array), name)
        if key not in self._places:
            self._stream.write(b"\0" * (-self._stream.tell() % _PAGE_BYTES))
            self._places[key] = (self._stream.tell(), array.nbytes)
            self._stream.write(np.ascontiguousarray(array).data)
        offset, length = self._places[key]
        tensor = onnx.TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=array.shape,
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for entry, value in (("location", self._path.name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=entry, value=value)
        return tensor

    def flush(self) -> None:
        """Make what was added readable to others."""
        self._stream.flush()

    def close(self) -> None:
        """End the file."""
        self._stream.close()


class Mixer:
    """Writes graphs; a weight is stored once in each form that one of them asks for."""

    def __init__(self, decoder: Decoder, folder: Path) -> None:
        self._decoder = decoder
        self._folder = folder
        self._file = WeightFile(folder / DATA)
        self._stored: dict[tuple[str, Form], Tensors] = {}

    def write(
        self, forms: Mapping[str, Form], name: str = GRAPH, *, rest: Form = Form.FLOAT, scoring: str | None = None
    ) -> None:
        """Write a graph.

        Args:
            forms: of products by name; the embedding takes the head's, where that is one of blocks.
            name: of the graph's file.
            rest: of all other tables, FLOAT or HALF.
            scoring: of a second file, for the graph that keeps the scores after every token.
        """
        model = _rewritten(self._decoder, forms, rest, self._tensors)
        self._file.flush()
        (self._folder / name).write_bytes(model.SerializeToString(deterministic=True))
        if scoring:
            (self._folder / scoring).write_bytes(unpruned(model).SerializeToString(deterministic=True))

    def close(self) -> None:
        """End the file of weights."""
        self._file.close()

    def _tensors(self, weight: str, form: Form, *, is_table: bool = False) -> Tensors:
        """Initialisers of a weight in a form; a table has a row for every token, a product's weight a column."""
        key = (weight, form)
        if key in self._stored:
            return self._stored[key]
        array = self._decoder.weight(weight)
        if form in (Form.FLOAT, Form.HALF):
            name = weight if form == Form.FLOAT else f"{weight}.half"
            made = {"values": self._file.add((weight, form), array.astype(_DTYPES[form]), name)}
        else:
            stored = store(array.T if is_table else array, form)
            parts = {"codes": stored.codes, "scales": stored.scales, "zero_points": stored.zero_points}
            if form in _OF_LOOKUPS:
                parts["rows"] = stored.codes.reshape(len(stored.codes), -1)
            made = {
                part: self._file.add(
                    (weight, f"{form}.{_SAME_BYTES.get(part, part)}"), values, f"{weight}.{form}.{part}"
                )
                for part, values in parts.items()
                if values is not None
            }
        self._stored[key] = made
        return made


_DTYPES = {Form.FLOAT: np.float32, Form.HALF: np.float16}
_SAME_BYTES = {"rows": "codes"}
_OF_LOOKUPS = (Form.BLOCKS_8, Form.RESIDUAL_8)  # that an embedding can have


def _rewritten(
    decoder: Decoder, forms: Mapping[str, Form], rest: Form, tensors: Callable[..., Tensors]
) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(decoder.model)
    products = {product.name: product for product in decoder.products}
    lookup = decoder.embedding()
    used: dict[str, onnx.TensorProto] = {}
    nodes: list[onnx.NodeProto] = []
    head = forms.get(HEAD, Form.FLOAT)
    around = {
        Form.RESIDUAL_8: Residuals(block_of(Form.RESIDUAL_8, 0)),
        Form.OFFSETS_4: BlockMeans(block_of(Form.OFFSETS_4, 0)),
    }
    for node in model.graph.node:
        product = products.get(node.name)
        form = forms.get(node.name, Form.FLOAT)
        if product is not None and form != Form.FLOAT and fits(form, product.depth):
            parts = tensors(product.weight, form)
            made = _product(node, product, form, parts)
            nodes += around[form].of_product(product, made) if form in around else [made]
        elif lookup is not None and node.name == lookup.node.name and head in _OF_LOOKUPS and fits(head, lookup.width):
            parts = tensors(lookup.table, head, is_table=not lookup.tied)
            nodes.append(_lookup(node, parts, block_of(head, lookup.width)))
        else:
            nodes.append(node)
            continue
        used |= {tensor.name: tensor for tensor in parts.values()}
    for each in around.values():
        used |= each.constants
    _finish(model, nodes, used, decoder, rest, tensors)
    return model


def _product(node: onnx.NodeProto, product: Product, form: Form, parts: Tensors) -> onnx.NodeProto:
    names = [product.input, parts["codes"].name, parts["scales"].name]
    if form == Form.DYNAMIC:
        return helper.make_node("DynamicQuantizeMatMul", names, node.output, node.name, domain=_DOMAIN)
    if "zero_points" in parts:
        names.append(parts["zero_points"].name)
    return helper.make_node(
        "MatMulNBits",
        names,
        node.output,
        node.name,
        domain=_DOMAIN,
        K=product.depth,
        N=product.width,
        bits=BITS[form],
        block_size=block_of(form, product.depth),
        accuracy_level=_COMPUTE_IN_INT8,
    )


def _lookup(node: onnx.NodeProto, parts: Tensors, block: int) -> onnx.NodeProto:
    names = [parts["rows"].name, node.input[1], parts["scales"].name]
    if "zero_points" in parts:
        names.append(parts["zero_points"].name)
    return helper.make_node(
        "GatherBlockQuantized",
        names,
        node.output,
        node.name,
        domain=_DOMAIN,
        gather_axis=0,
        quantize_axis=1,
        block_size=block,
        bits=8,
    )


def _finish(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    used: Tensors,
    decoder: Decoder,
    rest: Form,
    tensors: Callable[..., Tensors],
) -> None:
    """Leave out what nothing reads any more, and bring the weights of what is left."""
    graph = model.graph
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_dead(graph)
    read = used_names(graph)
    kept = [tensor for name, tensor in used.items() if name in read]
    casts = []
    for tensor in graph.initializer:
        if tensor.name not in read:
            continue
        if tensor.data_type != onnx.TensorProto.FLOAT:
            kept.append(numpy_helper.from_array(decoder.weight(tensor.name), tensor.name))
            continue
        form = rest if len(tensor.dims) == 2 else Form.FLOAT
        stored = tensors(tensor.name, form)["values"]
        kept.append(stored)
        if form == Form.HALF:
            casts.append(helper.make_node("Cast", [stored.name], [tensor.name], to=onnx.TensorProto.FLOAT))
    for cast in reversed(casts):
        graph.node.insert(0, cast)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    if all(opset.domain != _DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))


def _drop_dead(graph: onnx.GraphProto) -> None:
    """Remove nodes whose results nothing reads, last first."""
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if read.isdisjoint(node.output):
            continue
        read.update(name for name in node.input if name)
        kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
