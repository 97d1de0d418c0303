"""Families of detectors, one file each: how their outputs become boxes, scores and classes."""

from __future__ import annotations

from sanderling.model.detection import HeadName
from sanderling.run.vision.heads import centernet, db_text, detr, nms_in_graph, ssd, yolov5, yolov8, yolox
from sanderling.run.vision.heads.base import Head

# In the order in which outputs are held against them: the most particular forms first.
HEADS: dict[HeadName, Head] = {
    module.HEAD.name: module.HEAD for module in (yolov5, yolox, nms_in_graph, centernet, detr, ssd, yolov8, db_text)
}
