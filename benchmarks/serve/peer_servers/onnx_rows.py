"""One session of ONNX Runtime with one thread, which runs the rows of several requests in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime


class OnnxRows:
    """Runs a graph with one input and one output."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input = self._session.get_inputs()[0].name
        self.output = self._session.get_outputs()[0].name

    def run(self, parts: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Each request's rows of the output."""
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        (result,) = self._session.run(None, {self.input: joined})
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return [result[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]
