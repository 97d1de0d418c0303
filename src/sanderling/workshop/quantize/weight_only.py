"""Store the weights of matrix products in 8 or 4 bits, in groups; activations stay float.

For transformers: most of their bytes are such weights, and their activations take eight bits badly.
"""

from __future__ import annotations

import logging

import onnx

from sanderling.core.errors import OptionError

BITS = (8, 4)
GROUP_SIZES = (16, 32, 64, 128, 256)
DEFAULT_GROUP_SIZE = 32
_COMPUTE_IN_INT8 = 4  # MatMulNBits' accuracy_level


def to_weight_only(model: onnx.ModelProto, *, bits: int, group_size: int = DEFAULT_GROUP_SIZE) -> onnx.ModelProto:
    """Store the constant operand of each MatMul, and with 4 bits that of each Gather, in groups of few bits.

    Args:
        model: simplified FP32 graph; it is left alone.
        bits: 8 or 4.
        group_size: neighbours along the reduced axis that share a scale and a zero point.

    Raises:
        OptionError: bits or a group size that the kernels do not have.

    Source: ONNX Runtime operators MatMulNBits and GatherBlockQuantized.
    """
    if bits not in BITS or group_size not in GROUP_SIZES:
        raise OptionError(
            f"weights of {bits} bits in groups of {group_size} cannot be run: bits are {' or '.join(map(str, BITS))}, "
            f"and --group-size is one of {', '.join(map(str, GROUP_SIZES))}"
        )
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        kinds = {"MatMul": 0, "Gather": 1} if bits == 4 else {"MatMul": 0}  # the quantiser takes no 8-bit Gather
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        quantizer = MatMulNBitsQuantizer(
            copy,
            algo_config=DefaultWeightOnlyQuantConfig(
                block_size=group_size,
                is_symmetric=False,
                accuracy_level=_COMPUTE_IN_INT8,
                op_types_to_quantize=tuple(kinds),
                quant_axes=tuple(kinds.items()),
                bits=bits,
            ),
        )
        quantizer.process()
    finally:
        logging.disable(level)
    made: onnx.ModelProto = quantizer.model.model
    return made
