"""pytriton: `pytriton_server.py GRAPH NAME ROW_SHAPE OUTPUT_SIZE DELAY_US HTTP GRPC`."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from onnx_rows import OnnxRows
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def main() -> None:
    """Serve until a signal comes."""
    path, name, shape, output_size, delay_us, http, grpc = sys.argv[1:]
    rows = OnnxRows(path)

    @batch
    def infer(**inputs: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        return {rows.output: rows.run([inputs[rows.input]])[0]}

    config = TritonConfig(
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        http_port=int(http),
        grpc_port=int(grpc),
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=name,
            infer_func=infer,
            inputs=[Tensor(name=rows.input, dtype=np.float32, shape=tuple(json.loads(shape)))],
            outputs=[Tensor(name=rows.output, dtype=np.float32, shape=(int(output_size),))],
            config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=int(delay_us))),
            strict=False,
        )
        triton.serve()


if __name__ == "__main__":
    main()
