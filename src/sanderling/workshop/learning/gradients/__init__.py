"""Backward rules of ONNX operators: a file a family, found by the operator's name."""

from sanderling.workshop.learning.gradients import (  # noqa: F401 - each registers its rules
    convolution,
    elementwise,
    movement,
    normalization,
    pooling,
    products,
    reduction,
)
