"""On the board: run the golden vectors through the net, compare, time it, and write `benchmark.json`.

    python3 run_on_device.py [--repeats 100]

Needs Rockchip's rknn-toolkit-lite2 and NumPy. Exit code 1 when an output is further from the expected one than allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run, compare, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="timed calls")
    repeats = parser.parse_args().repeats
    expected = json.loads((HERE / "golden.json").read_text("utf-8"))
    arrays = np.load(HERE / "golden.npz")
    net = _loaded(HERE / expected["net"])
    feeds = [[_on_device(arrays[f"input/{name}"][call]) for name in expected["inputs"]] for call in _calls(arrays)]
    cosines = dict.fromkeys(expected["outputs"], 1.0)
    for call, inputs in enumerate(feeds):
        for name, got in zip(expected["outputs"], _run(net, inputs), strict=True):
            cosines[name] = min(cosines[name], _cosine(arrays[f"output/{name}"][call], got))
    result = {
        "net": expected["net"],
        "cosine": cosines,
        "cosine_limit": expected["cosine_limit"],
        "passed": all(value >= expected["cosine_limit"] for value in cosines.values()),
        "samples_ms": _timed(net, feeds[0], repeats),
    }
    (HERE / "benchmark.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    times = sorted(result["samples_ms"])
    sys.stdout.write(f"cosine {min(cosines.values()):.5f}, p50 {times[len(times) // 2]:.2f} ms: benchmark.json\n")
    return 0 if result["passed"] else 1


def _loaded(file: Path) -> Any:  # noqa: ANN401 - the vendor's
    from rknnlite.api import RKNNLite

    net = RKNNLite()
    if net.load_rknn(str(file)) or net.init_runtime():
        sys.exit(f"{file.name} does not load here: was it exported for this chip?")
    return net


def _calls(arrays: Any) -> range:  # noqa: ANN401 - an open .npz
    return range(len(arrays[arrays.files[0]]))


def _on_device(array: Any) -> Any:  # noqa: ANN401 - an array
    """Four axes are given as (N, H, W, C) there."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array


def _run(net: Any, inputs: list[Any]) -> list[Any]:  # noqa: ANN401 - the vendor's
    outputs = net.inference(inputs=inputs)
    if outputs is None:
        sys.exit("the net did not run")
    return list(outputs)


def _cosine(expected: Any, got: Any) -> float:  # noqa: ANN401 - arrays
    x, y = np.ravel(expected).astype(np.float64), np.ravel(got).astype(np.float64)
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / length if length else float(np.array_equal(x, y))


def _timed(net: Any, inputs: list[Any], repeats: int) -> list[float]:  # noqa: ANN401 - the vendor's
    for _ in range(10):
        _run(net, inputs)
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        _run(net, inputs)
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


if __name__ == "__main__":
    sys.exit(main())
