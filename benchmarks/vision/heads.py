"""What it costs to make detections of a detector's output: `python -m benchmarks.vision.heads`.

25,200×85, as YOLOv5s gives for 640×640 pixels: of the zoo's network of that shape on a photo, and made, of a street
with a hundred objects. By this package, by OpenCV's suppression behind NumPy, and by NumPy box after box; all take
turns on the same outputs, on one core, and find the same. Writes `heads.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy comes

import cv2
import numpy as np
import torch
from PIL import Image

from benchmarks.zoo.yolov5s import yolov5s
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array, TensorSpec
from sanderling.demo.photos import find_photos
from sanderling.run.vision.detections import EVALUATION_RULES, DetectionRules
from sanderling.run.vision.reading import DetectionReader, find_reader
from sanderling.run.vision.suppression import pairwise_iou

RESULTS = Path(__file__).with_name("heads.json")
LIMIT_MS = 3.0
SIZE_PX, ANCHORS, COLUMNS = 640, 25_200, 85
_PHOTO = "skimage/astronaut.png"
_SHOWN = DetectionRules()
_COPIES = 4  # of each output, so that none lies in a cache
Found = list[tuple[int, int]]  # anchor and class
Way = Callable[[Array, DetectionRules], int]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200, help="of every way and case")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    value = {
        "command": "python -m benchmarks.vision.heads",
        "machine": describe_machine().model_dump(),
        "opencv": cv2.__version__,
        "threads": 1,
        "repeats": arguments.repeats,
        "limit_ms": LIMIT_MS,
        "cases": [measure(*case, arguments.repeats) for case in cases()],
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(value, indent=1))


def cases() -> list[tuple[str, Array, DetectionRules]]:
    """Names, outputs and rules."""
    photo, street = network_output(), street_output()
    return [
        ("street of 100 objects, score ≥ 0.25", street, _SHOWN),
        ("network of YOLOv5s's shape on a photo, score ≥ 0.001", photo, EVALUATION_RULES),
        ("street of 100 objects, for mAP: score ≥ 0.001, 1,000 candidates", street, EVALUATION_RULES),
    ]


def network_output() -> Array:
    """What the network with random weights gives for a photo, float32 (1, 25200, 85)."""
    image = Image.open(find_photos([_PHOTO])[0]).convert("RGB").resize((SIZE_PX, SIZE_PX))
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        output: Array = yolov5s(SIZE_PX)(pixels).numpy()
    return output


def street_output() -> Array:
    """A hundred objects that twelve anchors see each, and weak scores everywhere else, float32 (1, 25200, 85)."""
    generator = np.random.default_rng(0)
    raw = np.empty((ANCHORS, COLUMNS), np.float32)
    raw[:, :2], raw[:, 2:4] = generator.uniform(0, SIZE_PX, (ANCHORS, 2)), generator.uniform(8, 200, (ANCHORS, 2))
    raw[:, 4] = generator.beta(0.5, 60, ANCHORS)
    raw[:, 5:] = generator.beta(0.5, 20, (ANCHORS, COLUMNS - 5))
    seen = generator.permutation(ANCHORS)[:1200].reshape(100, 12)
    for anchors in seen:
        centre, sides = generator.uniform(40, SIZE_PX - 40, 2), generator.uniform(20, 120, 2)
        raw[anchors, :2] = centre + generator.normal(0, 2, (12, 2))
        raw[anchors, 2:4] = sides * generator.uniform(0.95, 1.05, (12, 2))
        raw[anchors, 4] = generator.uniform(0.6, 1, 12)
        raw[anchors, 5 + generator.integers(0, 80)] = generator.uniform(0.5, 1, 12)
    return raw[None]


def measure(name: str, output: Array, rules: DetectionRules, repeats: int) -> dict[str, Any]:
    """Milliseconds of each way in turn, by the clock and of the thread, and how many detections each finds."""
    reader = _reader()
    ways: dict[str, Way] = {
        "Sanderling": lambda raw, rules: len(reader.read({"output": raw}, rules)[0]),
        "NumPy, then OpenCV's NMSBoxesBatched": with_opencv,
        "NumPy, box after box": box_after_box,
    }
    copies = [output.copy() for _ in range(_COPIES)]
    found = {way: run(output, rules) for way, run in ways.items()}
    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    thread_ms: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way, run in ways.items():
            raw = copies[repeat % _COPIES]
            start_s, busy_s = time.perf_counter(), time.thread_time()
            run(raw, rules)
            thread_ms[way].append((time.thread_time() - busy_s) * 1e3)
            times_ms[way].append((time.perf_counter() - start_s) * 1e3)
    candidates = int(((output[0, :, 4:5] * output[0, :, 5:]) >= rules.least_score).sum())
    return {
        "name": name,
        "candidates": candidates,
        "found": found,
        "ms": {way: percentiles(each) for way, each in times_ms.items()},
        "thread_ms": {way: percentiles(each) for way, each in thread_ms.items()},
    }


def with_opencv(raw: Array, rules: DetectionRules) -> int:
    """All scores, those that are high enough, and OpenCV's suppression within classes."""
    boxes, scores, classes = _candidates(raw[0], rules)
    suppress: Any = cv2.dnn.NMSBoxesBatched  # takes arrays, which its stub does not know
    return len(suppress(boxes, scores, classes, rules.least_score, rules.most_overlap)[: rules.most])


def box_after_box(raw: Array, rules: DetectionRules) -> int:
    """The same candidates; suppression as it is mostly written: the best box, and all others held against it."""
    boxes, scores, classes = _candidates(raw[0], rules)
    edges = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1).astype(np.float64)
    waiting, kept = np.argsort(-scores, kind="stable"), 0
    while len(waiting) and kept < rules.most:
        best, waiting = waiting[0], waiting[1:]
        overlap = pairwise_iou(edges[best][None], edges[waiting])[0]
        waiting = waiting[(overlap <= rules.most_overlap) | (classes[waiting] != classes[best])]
        kept += 1
    return kept


def _candidates(raw: Array, rules: DetectionRules) -> tuple[Array, Array, Array]:
    """Left, top, width and height, scores and classes of the best candidates."""
    products = raw[:, 4:5] * raw[:, 5:]
    anchors, classes = np.nonzero(products >= rules.least_score)
    scores = products[anchors, classes]
    order = np.argsort(-scores, kind="stable")[: rules.candidates]
    boxes = raw[anchors[order], :4].copy()
    boxes[:, :2] -= boxes[:, 2:] / 2
    return boxes, scores[order], classes[order]


def _reader() -> DetectionReader:
    picture = TensorSpec(name="images", dtype="float32", shape=(1, 3, SIZE_PX, SIZE_PX))
    output = TensorSpec(name="output", dtype="float32", shape=(1, ANCHORS, COLUMNS))
    reader = find_reader((picture,), (output,))
    assert reader is not None
    return reader


if __name__ == "__main__":
    main()
