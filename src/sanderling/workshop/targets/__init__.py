"""Targets: a package becomes something that the software of other devices reads. One module each, imported on use."""

from __future__ import annotations

import importlib

from sanderling.core.errors import OptionError
from sanderling.workshop.targets.base import Target

TARGETS = {
    "harmonyos": "harmonyos",
    "ascend": "ascend",
    "openharmony": "openharmony",
    "openvino": "openvino_",
    "onnx": "onnx_",
    "ort": "ort_",
    "rknn": "rknn_",
}


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        OptionError: there is no such target.
    """
    if name not in TARGETS:
        raise OptionError(f"unknown target '{name}': available are {', '.join(TARGETS)}")
    found: Target = importlib.import_module(f"{__name__}.{TARGETS[name]}").TARGET
    return found


def choose_device(found: Target, device: str | None) -> str:
    """The device of that name, or the target's first.

    Raises:
        OptionError: the target has no such device.
    """
    if device is not None and device not in found.devices:
        raise OptionError(f"target '{found.name}' has no device '{device}': available are {', '.join(found.devices)}")
    return device or found.devices[0]
