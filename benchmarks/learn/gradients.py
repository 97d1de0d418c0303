"""How far the graphs' gradients are from those of PyTorch's eager autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.learn.cases import CASES, DIALECT, prepare_case

LIMIT = 1e-5


def measure(folder: Path) -> list[dict[str, Any]]:
    """Prepare every model three times: its last layer, adapters, and all of it.

    Returns:
        For each the largest difference, over the largest true gradient of the same parameter (at least 1e-3).
    """
    rows = []
    for index, case in enumerate(case for case in CASES if case is not DIALECT):
        for kind, trainable in (("head", "head"), ("lora", case.lora), ("full", "full")):
            spec = prepare_case(case, trainable, folder / f"gradients-{index}-{kind}.sdl")
            print(f"{case.name}, {trainable}: {spec.golden.error:.1e}", flush=True)
            rows.append(
                {
                    "model": case.name,
                    "trainable": kind,
                    "asked": trainable,
                    "parameters": len(spec.parameters),
                    "error": spec.golden.error,
                }
            )
    return rows
