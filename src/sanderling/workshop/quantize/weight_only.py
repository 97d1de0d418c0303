"""Store the weights of matrix products and embedding tables in 8 or 4 bits, in groups; activations stay float.

For transformers: most of their bytes are such weights, and their activations take eight bits badly.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError, OptionError
from sanderling.core.tensor import Array
from sanderling.model.graph import initializer_array, weight_bytes

BITS = (8, 4)
GROUP_SIZES = (16, 32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 32
_COMPUTE_IN_INT8 = 4  # MatMulNBits' accuracy_level
_DOMAIN = "com.microsoft"
_MOSTLY = 0.5
_PRODUCTS = ("MatMul", "Gemm")


def is_transformer(model: onnx.ModelProto) -> bool:
    """Whether a graph attends, and most of its weights' bytes could be stored in few bits."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    attends = any(
        node.op_type.endswith("Attention")
        or (node.op_type == "MatMul" and constants.keys().isdisjoint(node.input))  # activations times activations
        for node in model.graph.node
    )
    storable = {name for node in model.graph.node for name in _weight(node, constants)}
    total = sum(map(weight_bytes, constants.values()))
    return attends and sum(weight_bytes(constants[name]) for name in storable) > _MOSTLY * total


def to_weight_only(
    model: onnx.ModelProto, *, bits: int, group_size: int = DEFAULT_GROUP_SIZE, embeddings: bool = True
) -> onnx.ModelProto:
    """Store the constant operand of each MatMul and Gemm, and each table of a Gather, in groups of few bits.

    Args:
        model: simplified FP32 graph; it is left alone.
        bits: 8 or 4.
        group_size: neighbours along the reduced axis that share a scale and a zero point.
        embeddings: tables too.

    Raises:
        OptionError: bits or a group size that the kernels do not have.
        ModelError: the graph has no such weight.

    Source: ONNX Runtime operators MatMulNBits and GatherBlockQuantized.
    """
    if bits not in BITS or group_size not in GROUP_SIZES:
        raise OptionError(
            f"weights of {bits} bits in groups of {group_size} cannot be run: bits are {' or '.join(map(str, BITS))}, "
            f"and --group-size is one of {', '.join(map(str, GROUP_SIZES))}"
        )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _split_gemms(copy.graph)
    made = _quantize(copy, "MatMul", bits, group_size)
    if embeddings:
        made = _quantize(made, "Gather", 4, group_size) if bits == 4 else _tables_in_8_bits(made, group_size)
    if not any(node.domain == _DOMAIN for node in made.graph.node):
        raise ModelError("no product and no table has a constant weight that could be stored in few bits")
    return made


def _weight(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> Iterator[str]:
    """The name of the weight that could be stored in few bits, if there is one."""
    place = {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type)
    if place is None:
        return
    tensor = constants.get(node.input[place])
    if tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
        yield tensor.name


def _split_gemms(graph: onnx.GraphProto) -> None:
    """Turn each Gemm of a constant weight into a MatMul and an Add, which is what the quantiser knows."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _split(node, constants, graph) if node.op_type == "Gemm" else [node]
    del graph.node[:]
    graph.node.extend(nodes)


def _split(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    plain = given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0 and not given.get("transA", 0)
    if not plain or not list(_weight(node, constants)):
        return [node]
    weight = node.input[1]
    if given.get("transB", 0):
        turned = f"{weight}_transposed"
        if turned not in constants:
            array = np.ascontiguousarray(initializer_array(constants[weight]).T)  # (in, out)
            constants[turned] = numpy_helper.from_array(array, turned)
            graph.initializer.append(constants[turned])
        weight = turned
    if len(node.input) < 3 or not node.input[2]:
        return [helper.make_node("MatMul", [node.input[0], weight], node.output, node.name)]
    product = f"{node.output[0]}_product"
    return [
        helper.make_node("MatMul", [node.input[0], weight], [product], node.name),
        helper.make_node("Add", [product, node.input[2]], node.output, f"{node.name}_bias"),
    ]


def _quantize(model: onnx.ModelProto, kind: str, bits: int, group_size: int) -> onnx.ModelProto:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            model,
            algo_config=DefaultWeightOnlyQuantConfig(
                block_size=group_size,
                is_symmetric=False,
                accuracy_level=_COMPUTE_IN_INT8,
                op_types_to_quantize=(kind,),
                quant_axes=(("MatMul", 0), ("Gather", 1)),
                bits=bits,
            ),
        )
        quantizer.process()
    finally:
        logging.disable(level)
    made: onnx.ModelProto = quantizer.model.model
    return made


def _tables_in_8_bits(model: onnx.ModelProto, group_size: int) -> onnx.ModelProto:
    """Store tables in bytes, which the quantiser does for 4 bits only."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    stored: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "Gather" or not list(_weight(node, constants)):
            continue
        table = node.input[0]
        if table not in stored:
            stored.add(table)
            parts = _in_groups(initializer_array(constants[table]), group_size)
            names = (f"{table}_Q8", f"{table}_scales", f"{table}_zero_points")
            model.graph.initializer.extend(map(numpy_helper.from_array, parts, names))
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        node.CopyFrom(
            helper.make_node(
                "GatherBlockQuantized",
                [f"{table}_Q8", node.input[1], f"{table}_scales", f"{table}_zero_points"],
                node.output,
                f"{node.name}_Q8",
                domain=_DOMAIN,
                gather_axis=axis,
                quantize_axis=1,
                block_size=group_size,
                bits=8,
            )
        )
    if stored and all(opset.domain != _DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def _in_groups(table: Array, group_size: int) -> tuple[Array, Array, Array]:
    """Codes (rows, width), scales and zero points (rows, groups) of a float table (rows, width)."""
    starts = range(0, table.shape[1], group_size)
    low = np.minimum(np.minimum.reduceat(table, starts, axis=1), 0)
    high = np.maximum(np.maximum.reduceat(table, starts, axis=1), 0)
    scales = ((high - low) / 255).astype(np.float32)
    scales[scales == 0] = 1
    zero_points = np.rint(-low / scales)
    spread = [np.repeat(part, group_size, axis=1)[:, : table.shape[1]] for part in (scales, zero_points)]
    codes = np.clip(np.rint(table / spread[0] + spread[1]), 0, 255)
    return codes.astype(np.uint8), scales, zero_points.astype(np.uint8)
