"""KServe's SDK: `kserve_server.py GRAPH NAME HTTP GRPC`."""

from __future__ import annotations

import sys

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from onnx_rows import OnnxRows


class Rows(Model):
    """What KServe calls."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self._rows = OnnxRows(path)
        self.ready = True

    async def predict(self, payload: InferRequest, headers: object = None, response_headers: object = None) -> object:  # noqa: ARG002
        """Answer a request; there are no batches."""
        result = self._rows.run([payload.inputs[0].as_numpy()])[0]
        output = InferOutput(self._rows.output, list(result.shape), "FP32")
        output.set_data_from_numpy(result, binary_data=True)
        return InferResponse(payload.id, self.name, [output])


if __name__ == "__main__":
    _path, _name, _http, _grpc = sys.argv[1:]
    server = ModelServer(http_port=int(_http), grpc_port=int(_grpc), workers=1, enable_latency_logging=False)
    server.start([Rows(_name, _path)])
