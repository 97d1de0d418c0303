"""Mean average precision as COCO's own code counts it, to compare against."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np
import pytest

from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import Detections


def coco_percent(found: Sequence[Detections], objects: Objects) -> tuple[float, float]:
    """mAP50 and mAP50-95 as COCO's own code counts them."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    truth, answers = [], []
    for row, (detections, boxes, classes) in enumerate(zip(found, objects.boxes, objects.classes, strict=True)):
        for box, number in zip(boxes[classes >= 0], classes[classes >= 0], strict=True):
            truth.append(coco_entry(row, box, number) | {"id": len(truth) + 1, "iscrowd": 0})
        for box, score, number in zip(detections.boxes, detections.scores, detections.classes, strict=True):
            answers.append(coco_entry(row, box, number) | {"id": len(answers) + 1, "score": float(score)})
    categories = [{"id": number + 1} for number in np.unique(objects.classes[objects.classes >= 0]).tolist()]
    images = [{"id": row + 1} for row in range(len(found))]
    with contextlib.redirect_stdout(io.StringIO()):
        sides = []
        for annotations in (truth, answers):
            side = coco.COCO()
            side.dataset = {"images": images, "annotations": annotations, "categories": categories}
            side.createIndex()
            sides.append(side)
        evaluation = cocoeval.COCOeval(*sides, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return 100 * evaluation.stats[1], 100 * evaluation.stats[0]


def coco_entry(row: int, box: np.ndarray, number: int) -> dict:
    left, top, right, bottom = map(float, box)
    width, height = right - left, bottom - top
    return {
        "image_id": row + 1,
        "category_id": int(number) + 1,
        "bbox": [left, top, width, height],
        "area": width * height,
    }
