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
from sanderling.model.graph import initializer_array, used_names, weight_bytes

BITS = (8, 4)
GROUP_SIZES = (16, 32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 32
_COMPUTE_IN_INT8 = 4  # MatMulNBits' accuracy_level
_DOMAIN = "com.microsoft"
_MOSTLY = 0.5


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
        group_size: neighbours along the reduced axis that share a scale and a zero point; in tables the largest size
            up to this that divides a row, and a row that none divides stays in float.
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
    made = _store_products(copy, bits, group_size)
    if embeddings:
        _store_tables(made, bits, group_size)
    _drop_unused(made.graph)
    if not any(node.domain == _DOMAIN for node in made.graph.node):
        raise ModelError("no product and no table has a constant weight that could be stored in few bits")
    return made


def _weight(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> Iterator[str]:
    """The name of the weight that could be stored in few bits, if there is one."""
    place = {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type)
    if place is None:
        return
    if node.op_type == "Gather" and any(attribute.name == "axis" and attribute.i for attribute in node.attribute):
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
    for known in [value for value in graph.value_info if value.name == node.output[0]]:
        graph.value_info.add().CopyFrom(known)
        graph.value_info[-1].name = product
    return [
        helper.make_node("MatMul", [node.input[0], weight], [product], node.name),
        helper.make_node("Add", [product, node.input[2]], node.output, f"{node.name}_bias"),
    ]


def _store_products(model: onnx.ModelProto, bits: int, group_size: int) -> onnx.ModelProto:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    others = [node.name for node in model.graph.node if node.op_type == "MatMul" and not list(_weight(node, constants))]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            model,
            nodes_to_exclude=others,
            algo_config=DefaultWeightOnlyQuantConfig(
                block_size=group_size, is_symmetric=False, accuracy_level=_COMPUTE_IN_INT8, bits=bits
            ),
        )
        quantizer.process()
    finally:
        logging.disable(level)
    made: onnx.ModelProto = quantizer.model.model
    return made


def _store_tables(model: onnx.ModelProto, bits: int, group_size: int) -> None:
    """Store tables in bytes; the quantiser does it for 4 bits only, and takes tables of integers for floats."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    stored: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "Gather" or not list(_weight(node, constants)):
            continue
        table = node.input[0]
        group = _dividing(group_size, constants[table].dims[1])
        if group is None:
            continue
        names = [f"{table}_{part}" for part in (f"Q{bits}", "scales", "zero_points")]
        if table not in stored:
            stored.add(table)
            parts = _in_groups(initializer_array(constants[table]), bits, group)
            model.graph.initializer.extend(map(numpy_helper.from_array, parts, names))
        node.CopyFrom(
            helper.make_node(
                "GatherBlockQuantized",
                [names[0], node.input[1], *names[1:]],
                node.output,
                node.name,
                domain=_DOMAIN,
                gather_axis=0,
                quantize_axis=1,
                block_size=group,
                bits=bits,
            )
        )
    if stored and all(opset.domain != _DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))


def _dividing(group_size: int, width: int) -> int | None:
    """The largest group that divides a table's rows: OpenVINO takes no other, and 4 bits need an even width."""
    return max((size for size in GROUP_SIZES if size <= group_size and width % size == 0), default=None)


def _in_groups(table: Array, bits: int, group_size: int) -> tuple[Array, Array, Array]:
    """Codes and zero points in bytes, and scales (rows, groups), of a float table (rows, width)."""
    levels = 2**bits - 1
    groups = table.reshape(len(table), -1, group_size)
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    scales = ((high - low) / levels).astype(np.float32)
    scales[scales == 0] = 1
    zero_points = np.rint(-low / scales)
    codes = np.clip(np.rint(groups / scales[..., None] + zero_points[..., None]), 0, levels)
    return _packed(codes.reshape(table.shape), bits), scales, _packed(zero_points, bits)


def _packed(codes: Array, bits: int) -> Array:
    """Bytes of codes along the last axis; of 4 bits the first is the lower half."""
    whole = codes.astype(np.uint8)
    if bits == 8:
        return whole
    even = np.pad(whole, ((0, 0), (0, whole.shape[1] % 2)))
    return even[:, ::2] | even[:, 1::2] << 4


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = used_names(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
