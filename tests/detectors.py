"""Detectors' outputs made from known objects, and decoders written one box at a time, each from its paper or code."""

from __future__ import annotations

import math

import numpy as np

SIZE = (96, 64)  # width, height
STRIDES = (8, 16, 32)
CLASSES = 3
# left, top, right, bottom, class, score
OBJECTS = [
    (8.0, 10.0, 40.0, 42.0, 1, 0.9),
    (50.0, 4.0, 90.0, 30.0, 0, 0.75),
    (20.0, 44.0, 44.0, 60.0, 2, 0.5),
]


def cells(size=SIZE, strides=STRIDES):
    """(column, row, stride) of every cell: levels, rows, columns."""
    return [
        (column, row, stride)
        for stride in strides
        for row in range(math.ceil(size[1] / stride))
        for column in range(math.ceil(size[0] / stride))
    ]


def centred(box):
    left, top, right, bottom = box[:4]
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def yolov5_output(objects=OBJECTS, size=SIZE, classes=CLASSES):
    raw = np.zeros((1, 3 * len(cells(size)), 5 + classes), np.float32)
    for place, (*box, number, score) in enumerate(objects):
        raw[0, 7 * place + 3, :5] = [*centred(box), 0.95]
        raw[0, 7 * place + 3, 5 + number] = score / 0.95
    return {"output": raw}


def yolov8_output(objects=OBJECTS, size=SIZE, classes=CLASSES):
    raw = np.zeros((1, 4 + classes, len(cells(size))), np.float32)
    for place, (*box, number, score) in enumerate(objects):
        raw[0, :4, 5 * place + 2] = centred(box)
        raw[0, 4 + number, 5 * place + 2] = score
    return {"output0": raw}


def yolox_output(objects=OBJECTS, size=SIZE, classes=CLASSES):
    grid = cells(size)
    raw = np.zeros((1, len(grid), 5 + classes), np.float32)
    for *box, number, score in objects:
        x, y, width, height = centred(box)
        place = next(
            i for i, (column, row, stride) in enumerate(grid) if (x // stride, y // stride, 16) == (column, row, stride)
        )
        column, row, stride = grid[place]
        raw[0, place, :4] = [x / stride - column, y / stride - row, math.log(width / stride), math.log(height / stride)]
        raw[0, place, 4], raw[0, place, 5 + number] = 0.95, score / 0.95
    return {"output": raw}


def softmax_logits(number, score, classes, background):
    """Logits whose softmax gives one class its score and leaves the rest to the background."""
    shares = np.full(classes + 1, 1e-9)
    shares[background] = 1 - score
    shares[number + (background == 0)] = score
    return np.log(shares / shares.sum())


def ssd_output(objects=OBJECTS, size=SIZE, classes=CLASSES, priors=1200):
    boxes = np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), (1, priors, 1))
    scores = np.tile(np.float32(softmax_logits(0, 1e-6, classes, 0)), (1, priors, 1))
    for place, (*box, number, score) in enumerate(objects):
        boxes[0, 100 * place] = np.array(box) / [*size, *size]
        scores[0, 100 * place] = softmax_logits(number, score, classes, 0)
    return {"boxes": boxes, "scores": scores}


def detr_output(objects=OBJECTS, size=SIZE, classes=CLASSES, queries=40):
    boxes = np.full((1, queries, 4), 0.5, np.float32)
    scores = np.tile(np.float32(softmax_logits(0, 1e-6, classes, -1)), (1, queries, 1))
    for place, (*box, number, score) in enumerate(objects):
        boxes[0, 7 * place] = np.array(centred(box)) / [*size, *size]
        scores[0, 7 * place] = softmax_logits(number, score, classes, -1)
    return {"pred_logits": scores, "pred_boxes": boxes}


def centernet_output(objects=OBJECTS, size=SIZE, classes=CLASSES, stride=4):
    columns, rows = size[0] // stride, size[1] // stride
    heat = np.full((1, classes, rows, columns), -9, np.float32)
    sides, offsets = np.zeros((1, 2, rows, columns), np.float32), np.zeros((1, 2, rows, columns), np.float32)
    for *box, number, score in objects:
        x, y, width, height = (value / stride for value in centred(box))
        column, row = int(x), int(y)
        heat[0, number, row, column] = math.log(score / (1 - score))
        heat[0, number, row, column + 1] = heat[0, number, row, column] - 0.25  # a slope, no peak of its own
        sides[0, :, row, column], offsets[0, :, row, column] = (width, height), (x - column, y - row)
    return {"hm": heat, "wh": sides, "reg": offsets}


def nms_rows_output(objects=OBJECTS, most=20):
    raw = np.zeros((1, most, 6), np.float32)
    for place, (*box, number, score) in enumerate(objects):
        raw[0, place] = [*box, score, number]
    return {"output0": raw}


def caffe_rows_output(objects=OBJECTS, size=SIZE, most=20):
    raw = np.full((1, 1, most, 7), -1, np.float32)
    for place, (*box, number, score) in enumerate(objects):
        raw[0, 0, place] = [0, number, score, *np.array(box) / [*size, *size]]
    return {"detection_out": raw}


def nms_parts_output(objects=OBJECTS, most=20):
    boxes, scores = np.full((1, most, 4), 7, np.float32), np.full((1, most), 0.99, np.float32)
    classes = np.zeros((1, most), np.int32)
    for place, (*box, number, score) in enumerate(objects):
        boxes[0, place], scores[0, place], classes[0, place] = box, score, number
    count = np.array([[len(objects)]], np.int32)
    return {"num_dets": count, "det_boxes": boxes, "det_scores": scores, "det_classes": classes}


# Decoders, one box at a time: lists of (left, top, right, bottom, class, score), before duplicates are dropped.


def corners(x, y, width, height):
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def decode_yolov5(raw, least):
    found = []
    for row in raw.astype(np.float64):
        for number, score in enumerate(row[5:]):
            if row[4] * score >= least:
                found.append((*corners(*row[:4]), number, row[4] * score))
    return found


def decode_yolov8(raw, least):
    found = []
    for anchor in raw.T.astype(np.float64):
        for number, score in enumerate(anchor[4:]):
            if score >= least:
                found.append((*corners(*anchor[:4]), number, score))
    return found


def decode_yolox(raw, least, size=SIZE, strides=STRIDES):
    found = []
    for row, (column, line, stride) in zip(raw.astype(np.float64), cells(size, strides), strict=True):
        x, y = (row[0] + column) * stride, (row[1] + line) * stride
        width, height = math.exp(row[2]) * stride, math.exp(row[3]) * stride
        for number, score in enumerate(row[5:]):
            if row[4] * score >= least:
                found.append((*corners(x, y, width, height), number, row[4] * score))
    return found


def decode_ssd_priors(offsets, logits, least, priors, variances):
    """Softmax with class 0 for nothing; ``priors`` as centre and sides in pixels."""
    found = []
    for offset, logit, (x, y, width, height) in zip(
        offsets.astype(np.float64), logits.astype(np.float64), priors, strict=True
    ):
        shares = np.exp(logit) / np.exp(logit).sum()
        box = corners(
            x + offset[0] * variances[0] * width,
            y + offset[1] * variances[0] * height,
            width * math.exp(offset[2] * variances[1]),
            height * math.exp(offset[3] * variances[1]),
        )
        found += [(*box, number - 1, share) for number, share in enumerate(shares) if number and share >= least]
    return found


def greedy_suppression(found, most_overlap, *, agnostic=False):
    """The published loop: take the best, drop what overlaps it too much, go on."""
    waiting = sorted(found, key=lambda each: -each[5])
    kept = []
    while waiting:
        best = waiting.pop(0)
        kept.append(best)
        waiting = [
            each for each in waiting if (not agnostic and each[4] != best[4]) or overlap(best, each) <= most_overlap
        ]
    return kept


def overlap(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    union = sum(areas) - common
    return common / union if union > 0 else 0.0


def as_rows(detections):
    """Detections as rows of the same form, float64 (k, 6)."""
    return np.column_stack([detections.boxes, detections.classes, detections.scores])
