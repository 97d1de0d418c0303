"""ONNX Runtime's own format `.ort`, which its minimal builds read instead of ONNX."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sanderling.core.errors import EngineError, first_line
from sanderling.model.plan import OptimizationName


def write_ort(source: Path, file: Path, device: str, level: OptimizationName, style: str = "fixed") -> None:
    """Let ONNX Runtime optimise a graph for ``arm64`` or ``amd64`` and save it in its own format.

    Raises:
        EngineError: it could not.
    """
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # errors come back as exceptions
    settings.graph_optimization_level = {
        "none": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "all": levels.ORT_ENABLE_ALL,
    }[level]
    settings.optimized_model_filepath = str(file)
    settings.add_session_config_entry("session.save_model_format", "ORT")
    settings.add_session_config_entry("session.qdqisint8allowed", "1" if device == "arm64" else "0")
    if style == "runtime":
        settings.add_session_config_entry("optimization.minimal_build_optimizations", "save")
    blocked = ["NchwcTransformer"] if device != "amd64" else []  # its blocks are those of x86-64's registers
    try:
        onnxruntime.InferenceSession(
            str(source), settings, providers=["CPUExecutionProvider"], disabled_optimizers=blocked
        )
    except Exception as error:
        raise EngineError(f"onnxruntime could not write {file.name}: {first_line(error)}") from error


def list_operators(files: Sequence[Path], target: Path, *, types: bool = True) -> None:
    """Write the list of operators that any of the `.ort` files needs, with their types where that is asked for."""
    from onnxruntime.tools.ort_format_model import create_config_from_models

    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    create_config_from_models(files, target, types)
    lines = [line for line in target.read_text("utf-8").splitlines() if not line.startswith("#")]  # they name our files
    target.write_text("\n".join([f"# Operators of {files[0].name}", *lines, ""]), encoding="utf-8")
