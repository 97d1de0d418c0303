"""The decoder graph that the model builder writes: its products, its embedding, and its scores after every token."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError, first_line
from sanderling.core.tensor import Array
from sanderling.workshop.text.storage import Form, has_levels

GRAPH = "model.onnx"
DATA = "model.onnx.data"
SCORING = "scoring.onnx"
HEAD = "/lm_head/MatMul"
_PRUNING = "/lm_head/prune/"


@dataclass(frozen=True)
class Product:
    """A matrix product with a constant weight of shape (depth, width)."""

    name: str
    input: str
    weight: str
    depth: int
    width: int

    @property
    def is_head(self) -> bool:
        """Whether it makes the scores of the next token."""
        return self.name == HEAD


@dataclass(frozen=True)
class Lookup:
    """Where tokens become vectors of ``width`` values; ``tied`` where the table is the head's weight, turned around."""

    node: onnx.NodeProto
    table: str
    width: int
    tied: bool


class Decoder:
    """The float graph in a folder; weights stay on disk until they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.model = onnx.load(folder / GRAPH, load_external_data=False)
        except Exception as error:
            raise ModelError(
                f"{folder / GRAPH} cannot be read: the model builder wrote no graph: {first_line(error)}"
            ) from error
        self._constants = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.products = tuple(
            Product(node.name, node.input[0], node.input[1], *self._constants[node.input[1]].dims)
            for node in self.model.graph.node
            if node.op_type == "MatMul" and self._is_table(node.input[1])
        )

    @property
    def parameters(self) -> int:
        """Numbers in the tables, each counted once."""
        return sum(math.prod(tensor.dims) for tensor in self._constants.values())

    @property
    def head_size(self) -> int:
        """Width of one attention head, as the engine's configuration has it."""
        config = json.loads((self.folder / "genai_config.json").read_text(encoding="utf-8"))
        return int(config["model"]["decoder"]["head_size"])

    @cached_property
    def on_levels(self) -> frozenset[str]:
        """Names of products whose weights come from few bits: see ``has_levels``."""
        return frozenset(product.name for product in self.products if has_levels(self.weight(product.weight)))

    def form_of(self, product: Product, form: Form) -> Form:
        """A form for one product: four bits keep to its levels where it has some."""
        on_levels = form in (Form.BLOCKS_4, Form.BLOCKS_4_WIDE) and product.name in self.on_levels
        return Form.OFFSETS_4 if on_levels else form

    def weight(self, name: str) -> Array:
        """One initialiser, read only."""
        tensor = self._constants[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        path = self.folder / entries["location"]
        return np.memmap(path, dtype, "r", int(entries.get("offset", 0)), tuple(tensor.dims))

    def embedding(self) -> Lookup | None:
        """The lookup of the tokens' vectors; None where the graph has another kind."""
        makers = {name: node for node in self.model.graph.node for name in node.output}
        for node in self.model.graph.node:
            if node.op_type != "Gather" or node.input[1] != "input_ids":
                continue
            maker = makers.get(node.input[0])
            tied = maker is not None and maker.op_type == "Transpose"
            table = maker.input[0] if tied and maker is not None else node.input[0]
            if self._is_table(table):
                return Lookup(node, table, self._constants[table].dims[0 if tied else 1], tied)
        return None

    def _is_table(self, name: str) -> bool:
        tensor = self._constants.get(name)
        return tensor is not None and len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.FLOAT


def unpruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with scores after every token; the builder's keeps those after the last one."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    pruning = [node for node in made.graph.node if node.name.startswith(_PRUNING)]
    if not pruning:
        return made
    before, after = pruning[0].input[0], pruning[-1].output[0]
    for node in made.graph.node:
        for place, name in enumerate(node.input):
            if name == after:
                node.input[place] = before
    for node in pruning:
        made.graph.node.remove(node)
    for value in made.graph.output:
        if value.name == "logits":
            value.type.tensor_type.shape.dim[1].Clear()
            value.type.tensor_type.shape.dim[1].dim_param = "sequence_length"
    return made
