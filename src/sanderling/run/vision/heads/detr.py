"""DETR and its kind: a set of queries, each with a box and a score for each class, of which no two are alike.

Source: Carion et al. 2020, "End-to-End Object Detection with Transformers": softmax, the last class is no object. Its
followers (Deformable DETR, DINO, RT-DETR) have a sigmoid and no such class: ``{"head": "detr", "scores": "sigmoid"}``.
"""

from __future__ import annotations

from sanderling.core.tensor import TensorSpec
from sanderling.model.detection import DetectionSpec, family_spec
from sanderling.run.vision.heads import ssd
from sanderling.run.vision.heads.base import Head, Size, fixed

_MOST_QUERIES = 999


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:  # noqa: ARG001 - a head's form
    """Two outputs of rank 3, with at most 999 queries."""
    spec = family_spec("detr")
    found = ssd.roles(outputs, spec)
    queries = fixed(found["boxes"].shape[1]) if found is not None else None
    return spec if queries is not None and queries <= _MOST_QUERIES else None


HEAD = Head(
    "detr",
    "float outputs boxes (N, queries, 4) and scores (N, queries, classes)",
    recognise,
    ssd.roles,
    ssd.classes,
    ssd.candidates,
    suppresses=False,
)
