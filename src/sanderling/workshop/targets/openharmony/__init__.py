"""The target `openharmony`: ONNX Runtime on OpenHarmony's boards, built with the OHOS SDK."""

from sanderling.workshop.targets.openharmony.target import TARGET

__all__ = ["TARGET"]
