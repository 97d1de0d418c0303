"""Sanderling: a model trained in PyTorch becomes a verified package and runs on an edge device.

Nothing heavy is imported until it is used: ``import sanderling`` costs a few milliseconds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sanderling import learn
    from sanderling.api import (
        Policy,
        Pool,
        bench,
        bench_on,
        bench_text,
        build,
        build_multimodal,
        build_text,
        check,
        doctor,
        export,
        finetune_quantized,
        inspect,
        leaks,
        learn_apply,
        learn_prepare,
        learn_run,
        load,
        read_policy,
        tune,
        verify,
    )
    from sanderling.core.errors import SanderlingError

# ONNX Runtime reports its use to its maker unless it is told not to before it is imported. We never report anything.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
__all__ = [
    "Policy",
    "Pool",
    "SanderlingError",
    "__version__",
    "bench",
    "bench_on",
    "bench_text",
    "build",
    "build_multimodal",
    "build_text",
    "check",
    "doctor",
    "export",
    "finetune_quantized",
    "inspect",
    "leaks",
    "learn",
    "learn_apply",
    "learn_prepare",
    "learn_run",
    "load",
    "read_policy",
    "tune",
    "verify",
]

_ROOMS = ("learn",)
_HOME = {"SanderlingError": "sanderling.core.errors"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute of any type
    if name not in __all__:
        raise AttributeError(f"module 'sanderling' has no attribute '{name}': available are {', '.join(__all__)}")
    import importlib

    if name in _ROOMS:
        return importlib.import_module(f"sanderling.{name}")
    return getattr(importlib.import_module(_HOME.get(name, "sanderling.api")), name)
