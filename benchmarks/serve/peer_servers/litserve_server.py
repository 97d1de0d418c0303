"""LitServe: `litserve_server.py GRAPH ROW_SHAPE DELAY_US HTTP`; the rows come as a file of a form."""

from __future__ import annotations

import json
import sys
from typing import Any

import litserve
import numpy as np
from fastapi import Response
from onnx_rows import OnnxRows

_PATH, _SHAPE, _DELAY_US, _PORT = sys.argv[1:]


class Rows(litserve.LitAPI):
    """What LitServe calls in its worker."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Load the graph."""
        self._rows = OnnxRows(_PATH)
        self._shape = (-1, *json.loads(_SHAPE))

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - LitServe reads types
        """The rows of one request."""
        return np.frombuffer(request["data"].file.read(), np.float32).reshape(self._shape)

    def batch(self, inputs: list[Any]) -> list[Any]:
        """They are joined by ``predict``."""
        return inputs

    def predict(self, inputs: list[Any]) -> list[Any]:
        """Each request's rows of the output."""
        return self._rows.run(inputs)

    def unbatch(self, output: list[Any]) -> list[Any]:
        """They are apart already."""
        return output

    def encode_response(self, output: np.ndarray[Any, Any]) -> Response:
        """The answer."""
        return Response(output.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    api = Rows(max_batch_size=8, batch_timeout=int(_DELAY_US) / 1e6)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1)
    server.run(host="127.0.0.1", port=int(_PORT), generate_client_file=False, log_level="error")
