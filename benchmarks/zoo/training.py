"""What the trainings of the zoo have in common: how weights decay, where they are kept, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
RECORDS = WEIGHTS_FOLDER / "training.json"


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What ``weights/training.json`` says about a network, besides how good it is."""

    parameters: int
    epochs: int
    seed: int
    threads: int
    torch_version: str
    seconds: float
    command: str


def read_records() -> dict[str, Any]:
    """What is told of all networks, by name."""
    records: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return records


def write_record(name: str, record: TrainingRecord) -> None:
    """Tell of a network in the place of what was told before."""
    RECORDS.write_text(json.dumps(read_records() | {name: asdict(record)}, indent=2, sort_keys=True) + "\n")


def write_weights(name: str, state: Mapping[str, Tensor]) -> None:
    """Keep weights as ``weights/NAME.safetensors``."""
    WEIGHTS_FOLDER.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in state.items()}, WEIGHTS_FOLDER / f"{name}.safetensors")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """What an optimiser takes: decay would pull BatchNorm gains and biases to zero, which costs accuracy."""
    kernels = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [{"params": kernels, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
