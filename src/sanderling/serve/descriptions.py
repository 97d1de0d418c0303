"""What the protocol tells about the server and its models, as JSON; the messages of gRPC have the same fields.

Source: Open Inference Protocol, "Server Metadata" and "Model Metadata"; Triton's extensions "Model Configuration" and
"Model Repository".
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Any

from sanderling.core.tensor import TensorSpec
from sanderling.serve.data_plane import DataPlane, ServedModel
from sanderling.serve.tensors import datatype_of

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
)


def describe_server() -> dict[str, Any]:
    """Name, version and extensions of the server."""
    return {"name": "sanderling", "version": version_of("sanderling"), "extensions": list(EXTENSIONS)}


def describe_model(plane: DataPlane, model: ServedModel) -> dict[str, Any]:
    """A model's tensors, and its versions; -1 stands for an axis of any size."""
    versions = [each.version for each in plane.models if each.name == model.name]
    return {
        "name": model.name,
        "versions": versions,
        "platform": f"sanderling_{model.session.engine}",
        "inputs": list(map(_describe_tensor, model.session.accepted)),
        "outputs": list(map(_describe_tensor, model.session.returned)),
    }


def describe_config(model: ServedModel) -> dict[str, Any]:
    """A model's configuration: tensors without their rows where rows of several requests may share a call."""
    session = model.session
    rows = _most_rows(model)
    config: dict[str, Any] = {
        "name": model.name,
        "platform": f"sanderling_{session.engine}",
        "backend": session.engine,
        "max_batch_size": rows,
        "input": [_configure_tensor(spec, rows) for spec in session.accepted],
        "output": [_configure_tensor(spec, rows) for spec in session.returned],
        "model_transaction_policy": {"decoupled": False},
        "parameters": {
            "device": {"string_value": session.device},
            "variant": {"string_value": session.variant.id},
        },
    }
    if rows:
        config["dynamic_batching"] = {}
    return config


def describe_repository(plane: DataPlane, *, ready_only: bool = False) -> list[dict[str, str]]:
    """All versions of all models with their states."""
    index = [
        {"name": model.name, "version": model.version, "state": "READY", "reason": ""}
        if model.is_ready
        else {
            "name": model.name,
            "version": model.version,
            "state": "UNAVAILABLE",
            "reason": "its last requests failed",
        }
        for model in plane.models
    ]
    return [entry for entry in index if entry["state"] == "READY" or not ready_only]


def _most_rows(model: ServedModel) -> int:
    """Rows that a call may have; 0 where rows are not told apart."""
    specs: Sequence[TensorSpec] = (*model.session.accepted, *model.session.returned)
    if not specs or any(spec.dynamic_axes != (0,) for spec in specs):
        return 0
    return model.session.policy.batch_tuning.max_batch_size


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "datatype": datatype_of(spec.dtype), "shape": shape}


def _configure_tensor(spec: TensorSpec, rows: int) -> dict[str, Any]:
    tensor = _describe_tensor(spec)
    datatype = tensor["datatype"]
    return {
        "name": spec.name,
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": tensor["shape"][1:] if rows else tensor["shape"],
    }
