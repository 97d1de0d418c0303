"""A model of Triton's Python backend."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as backend
from onnx_rows import OnnxRows


class TritonPythonModel:
    """What the backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph that the configuration names."""
        self._rows = OnnxRows(json.loads(args["model_config"])["parameters"]["path"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch."""
        parts = [backend.get_input_tensor_by_name(request, self._rows.input).as_numpy() for request in requests]
        return [
            backend.InferenceResponse([backend.Tensor(self._rows.output, result)]) for result in self._rows.run(parts)
        ]
