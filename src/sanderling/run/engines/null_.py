"""The null engine: takes any ONNX graph, computes nothing, returns zeros of the right shapes.

It measures what the rest of the house costs, and lets tests run without an engine; it is never chosen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError, first_line
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.copies import check_shape
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Fidelity,
    Placement,
    choose_device,
)


class Null:
    """Loads only a graph's inputs and outputs."""

    name = "null"

    def availability(self) -> Availability:
        """Always here."""
        return Availability(True, version="1")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """One device that is no hardware."""
        description = "computes nothing, for tests and overhead"
        return (DeviceInfo(self.name, "null", DeviceKind.CPU, Fidelity.SIMULATOR, description, None, tuple(Precision)),)

    def load(self, model: Path | bytes, options: EngineOptions) -> NullExecutable:
        """Read the graph's inputs and outputs.

        Raises:
            ModelError: no ONNX graph.
        """
        import onnx

        from sanderling.model.graph import input_specs, output_specs

        device = choose_device(self.devices(), options)
        try:
            data = model.read_bytes() if isinstance(model, Path) else model
            graph = onnx.load_from_string(data)
        except Exception as error:
            raise ModelError(f"null does not take the model: {first_line(error)}") from error
        if not graph.graph.output:
            raise ModelError("null does not take the model: it has no outputs")
        return NullExecutable(input_specs(graph), output_specs(graph), Placement(device.device, {DeviceKind.CPU: 1.0}))


class NullExecutable:
    """Returns zeros."""

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], placement: Placement) -> None:
        self.placement = placement
        self.inputs = inputs
        self.outputs = outputs
        self._closed = False

    @property
    def copied_bytes(self) -> int:
        """Always 0: inputs are not read, and zeros are written in place."""
        return 0

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Return zeros; dynamic axes take the size that the inputs give them by name, else 1.

        Raises:
            EngineError: an output does not fit its array, or the executable is closed.
        """
        if self._closed:
            raise EngineError("null: the graph is closed; load the package again")
        sizes = {
            axis: size for spec in self.inputs for axis, size in zip(spec.shape, feeds[spec.name].shape, strict=True)
        }
        shapes = {
            spec.name: tuple(size if isinstance(size, int) else sizes.get(size, 1) for size in spec.shape)
            for spec in self.outputs
        }
        if outputs is None:
            return {spec.name: np.zeros(shapes[spec.name], spec.dtype) for spec in self.outputs}
        for name, shape in shapes.items():
            check_shape(name, shape, outputs[name], "null")
            outputs[name].fill(0)
        return {name: outputs[name] for name in shapes}

    def close(self) -> None:
        """Close; a second call does nothing."""
        self._closed = True


ENGINE = Null()
