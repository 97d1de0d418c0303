"""One small function for each ONNX operator, in one table."""

from __future__ import annotations

from collections.abc import Mapping

from sanderling.run.litert.lowering import Writer
from sanderling.run.litert.operators import (
    activations,
    convolution,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    quantized,
    reduction,
    resize,
    slicing,
)

WRITERS: Mapping[str, Writer] = {
    **activations.WRITERS,
    **convolution.WRITERS,
    **elementwise.WRITERS,
    **matmul.WRITERS,
    **movement.WRITERS,
    **normalization.WRITERS,
    **pooling.WRITERS,
    **quantized.WRITERS,
    **reduction.WRITERS,
    **resize.WRITERS,
    **slicing.WRITERS,
}
