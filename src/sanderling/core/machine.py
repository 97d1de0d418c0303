"""What the machine is that a measurement was made on."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

_PACKAGES = (
    "sanderling", "onnxruntime", "openvino", "ncnn", "ai-edge-litert", "onnx", "onnx-ir", "onnxslim", "numpy", "torch"
)  # fmt: skip
_INT8_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")


class Machine(BaseModel):
    """Processor, memory and versions, as kept beside every measurement."""

    model_config = ConfigDict(frozen=True)

    system: str
    architecture: str
    processor: str
    cores: int
    memory_bytes: int
    cpu_features: tuple[str, ...]
    python: str
    versions: dict[str, str]


def describe_machine() -> Machine:
    """Read this machine's processor, usable cores, memory, INT8 instruction sets and package versions."""
    model, features = _processor()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        processor=model,
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        cpu_features=features,
        python=platform.python_version(),
        versions=_versions(),
    )


def fingerprint() -> str:
    """Name of this kind of device: measurements carry over between machines of one fingerprint."""
    model, features = _processor()
    parts = (platform.machine(), model, str(usable_cores()), *features)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def usable_cores() -> int:
    """Number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> tuple[str, tuple[str, ...]]:
    cpuinfo = Path("/proc/cpuinfo")
    fields: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, tuple(flag for flag in _INT8_FLAGS if flag in flags)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
