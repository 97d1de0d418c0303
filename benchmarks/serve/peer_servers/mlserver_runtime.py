"""A runtime of MLServer."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from onnx_rows import OnnxRows


class Rows(MLModel):
    """What MLServer calls."""

    async def load(self) -> bool:
        """Load the graph that the settings name."""
        self._rows = OnnxRows(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch, which MLServer has joined."""
        result = self._rows.run([NumpyCodec.decode_input(payload.inputs[0])])[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output(self._rows.output, result)])
