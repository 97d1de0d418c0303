"""Bring an old graph to the opset that per-channel quantisation needs."""

from __future__ import annotations

import onnx

from sanderling.model.graph import opset_of
from sanderling.workshop.optimize.passes import Pass

LEAST_OPSET = 17


def raise_opset_passes(model: onnx.ModelProto) -> tuple[Pass, ...]:
    """The pass that converts ``model`` to opset 17, or none when it is there already."""
    if opset_of(model) >= LEAST_OPSET:
        return ()
    return (Pass(f"onnx: opset {opset_of(model)} to {LEAST_OPSET}", _converted),)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.version_converter.convert_version(model, LEAST_OPSET)
