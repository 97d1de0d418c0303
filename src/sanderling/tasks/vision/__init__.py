"""Classify pictures with a package, and find objects on them: single ones, and those of cameras and videos."""

from __future__ import annotations

from sanderling.tasks.vision.classification import (
    Classifier,
    Label,
    best_labels,
    check_classifier,
    classify,
    to_probabilities,
)
from sanderling.tasks.vision.detection import Detector, Found, best_detections, check_detector
from sanderling.tasks.vision.pictures import check_pictures, picture_feeds, placed_feeds

__all__ = [
    "Classifier",
    "Detector",
    "Found",
    "Label",
    "best_detections",
    "best_labels",
    "check_classifier",
    "check_detector",
    "check_pictures",
    "classify",
    "picture_feeds",
    "placed_feeds",
    "to_probabilities",
]
