"""NNCF's accuracy control on an ONNX file, run by `peer.py` in an environment that has NNCF and not Sanderling.

    python nncf_control.py MODEL.onnx SAMPLES.npz OUTPUT --max-drop 0.06 [--backend onnx|openvino]

`SAMPLES.npz` holds `calibration` and `validation`, float32, shape (N, C, H, W), ready for the model. The accuracy
function is agreement with the float model's first class on `validation`. Layers are ranked by the logits with OpenVINO,
which is what NNCF advises for coarse metrics, and sample by sample by the accuracy function with ONNX, for which NNCF
cannot rank by outputs. Writes `OUTPUT`, a Q/DQ model or an IR, and prints one line of JSON: what it did and how long it
took.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

import numpy as np

Arrays = dict[str, Any]
Infer = Callable[[Arrays], Any]
Backend = tuple[Any, str, Callable[[Any], Infer], Callable[[Any, str], None]]


def main() -> None:
    """Quantise, and tell how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("samples")
    parser.add_argument("output")
    parser.add_argument("--max-drop", type=float, required=True, help="of agreement, a share")
    parser.add_argument("--backend", choices=("onnx", "openvino"), default="onnx")
    arguments = parser.parse_args()
    import nncf

    with np.load(arguments.samples) as arrays:
        calibration, validation = arrays["calibration"], arrays["validation"]
    model, name, run, save = _BACKENDS[arguments.backend](arguments.model)
    validate = Agreement(run, by_logits=arguments.backend == "openvino", samples=len(validation))
    start, processor = time.perf_counter(), time.process_time()
    quantized = nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset([{name: row[None]} for row in calibration]),
        nncf.Dataset([{name: row[None]} for row in validation]),
        validate,
        max_drop=arguments.max_drop,
        drop_type=nncf.DropType.ABSOLUTE,
        subset_size=len(calibration),
    )
    seconds = time.perf_counter() - start
    save(quantized, arguments.output)
    value = {
        "seconds": round(seconds, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "validation_calls": validate.calls,
        "validation_samples": validate.seen,
        "drops": validate.drops,
        "versions": {package: metadata.version(package) for package in ("nncf", "onnxruntime", "openvino", "onnx")},
    }
    print(json.dumps(value))


class Agreement:
    """The accuracy function: the share of samples whose first class is that of the first model seen, the float one."""

    def __init__(self, run: Callable[[Any], Infer], *, by_logits: bool, samples: int) -> None:
        self._run, self._by_logits, self._samples = run, by_logits, samples
        self._float: dict[bytes, int] = {}
        self.calls = self.seen = 0
        self.drops: list[float] = []

    def __call__(self, model: object, data: Iterable[Arrays]) -> tuple[float, list[Any]]:
        """Agreement as a share, and what layers are ranked by."""
        infer = self._run(model)
        logits, agreed = [], []
        for sample in data:
            scores = infer(sample)
            best = int(scores.argmax())
            agreed.append(float(self._float.setdefault(next(iter(sample.values())).tobytes(), best) == best))
            logits.append([scores])
        self.calls += 1
        self.seen += len(agreed)
        share = sum(agreed) / len(agreed)
        if len(agreed) == self._samples:
            self.drops.append(round(1 - share, 6))
        return share, logits if self._by_logits else agreed


def _onnx(path: str) -> Backend:
    import onnx
    import onnxruntime

    def run(model: onnx.ModelProto) -> Infer:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return lambda feeds: session.run(None, feeds)[0]

    model = onnx.load(path)
    return model, model.graph.input[0].name, run, onnx.save


def _openvino(path: str) -> Backend:
    import openvino

    def run(model: openvino.CompiledModel) -> Infer:
        return lambda feeds: model(feeds)[0]

    model = openvino.Core().read_model(path)
    return model, model.inputs[0].any_name, run, openvino.save_model


_BACKENDS = {"onnx": _onnx, "openvino": _openvino}


if __name__ == "__main__":
    main()
