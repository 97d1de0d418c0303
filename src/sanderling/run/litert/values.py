"""A tensor of the ONNX graph, with the TFLite tensors that hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.layout import Layout
from sanderling.run.litert.quantization import Quantization


@dataclass(eq=False)
class Value:
    """What the graph calls by one name.

    Attributes:
        name: in the ONNX graph.
        shape: as the ONNX graph has it.
        dtype: NumPy's name; that of the codes where there is a quantization.
        constant: elements that are known, int8 codes where there is a quantization.
        quantization: how its codes stand for real numbers.
        forms: TFLite tensors that hold it, by layout.
        real: the same as float32, once something asked for it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: Array | None = None
    quantization: Quantization | None = None
    forms: dict[Layout, Tensor] = field(default_factory=dict)
    real: Value | None = None
