"""What the protocol's routes, and those beside them, take and give: the OpenAPI document is made of this."""

from __future__ import annotations

from typing import Any

from sanderling.serve.http.openapi import BYTES, JSON, TEXT, Description, Operation, Schema, ref
from sanderling.serve.tensors import datatypes

_OCTETS = "application/octet-stream"
_WHOLE: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_NAMES: Schema = {"type": "array", "items": TEXT}
_KEY: Schema = {"type": "string", "pattern": "^/[^/]+$"}
_PARAMETERS: Schema = {"type": "object"}
_MEMORY: dict[str, Schema] = {
    "shared_memory_region": TEXT,
    "shared_memory_offset": _WHOLE,
    "shared_memory_byte_size": _WHOLE,
}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _list(items: Schema, **limits: Any) -> Schema:  # noqa: ANN401 - a schema's keywords
    return {"type": "array", "items": items, **limits}


_DATATYPE: Schema = {"type": "string", "enum": list(datatypes())}
_SHAPE: Schema = _list(_WHOLE, maxItems=32)
_DURATION = ref("Duration")
_SPEC = _object({"name": TEXT, "datatype": _DATATYPE, "shape": _list({"type": "integer"})})
_SCHEMAS: dict[str, Schema] = {
    "Duration": _object({"count": _WHOLE, "ns": _WHOLE}),
    "Server": _object({"name": TEXT, "version": TEXT, "extensions": _NAMES}),
    "Model": _object(
        {"name": TEXT, "versions": _NAMES, "platform": TEXT, "inputs": _list(_SPEC), "outputs": _list(_SPEC)}
    ),
    "Configuration": _object(
        {"name": TEXT, "platform": TEXT, "backend": TEXT, "max_batch_size": _WHOLE, "input": _list(ref("Axes"))},
        {"output": _list(ref("Axes"))},
    ),
    "Axes": _object({"name": TEXT, "data_type": TEXT, "dims": _list({"type": "integer"})}),
    "Statistics": _object({"model_stats": _list(ref("ModelStatistics"))}),
    "ModelStatistics": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "last_inference": _WHOLE,
            "inference_count": _WHOLE,
            "execution_count": _WHOLE,
            "inference_stats": {"type": "object", "additionalProperties": _DURATION},
            "batch_stats": _list({"type": "object"}),
        }
    ),
    "Entry": _object(
        {
            "name": TEXT,
            "version": TEXT,
            "state": {"type": "string", "enum": ["READY", "LOADING", "UNAVAILABLE"]},
            "reason": TEXT,
        }
    ),
    "Region": _object({"name": TEXT, "key": TEXT, "offset": _WHOLE, "byte_size": _WHOLE}),
    "InferRequest": _object(
        {"inputs": _list(ref("InferInput"), minItems=1, maxItems=1024)},
        {
            "id": TEXT,
            "parameters": {
                "type": "object",
                "properties": {"timeout": _WHOLE, "priority": _WHOLE, "binary_data_output": _FLAG},
            },
            "outputs": _list(ref("WantedOutput"), maxItems=1024),
        },
    ),
    "InferInput": _object(
        {"name": TEXT, "datatype": _DATATYPE, "shape": _SHAPE},
        {
            "data": {"type": "array", "description": "nested or flat; strings for BYTES"},
            "parameters": {"type": "object", "properties": {"binary_data_size": _WHOLE, **_MEMORY}},
        },
    ),
    "WantedOutput": _object(
        {"name": TEXT},
        {
            "parameters": {
                "type": "object",
                "properties": {"binary_data": _FLAG, "classification": _WHOLE, **_MEMORY},
            }
        },
    ),
    "InferAnswer": _object(
        {"model_name": TEXT, "model_version": TEXT, "outputs": _list(ref("InferOutput"))},
        {"id": TEXT, "parameters": _PARAMETERS},
    ),
    "InferOutput": _object(
        {"name": TEXT, "datatype": _DATATYPE, "shape": _SHAPE}, {"data": {"type": "array"}, "parameters": _PARAMETERS}
    ),
    "Labels": _object(
        {
            "model": TEXT,
            "version": TEXT,
            "labels": _list(_object({"index": _WHOLE, "label": TEXT, "probability": {"type": "number"}})),
        }
    ),
    "Objects": _object(
        {
            "model": TEXT,
            "version": TEXT,
            "objects": _list({"type": "object"}),
            "boxes_in": _object({"width": _WHOLE, "height": _WHOLE}),
        }
    ),
    "Turned": _object({"name": TEXT, "version": TEXT}),
}
_PICTURE: dict[str, Schema] = {"image/*": BYTES, _OCTETS: BYTES}
_QUERY: dict[str, Schema] = {"model": TEXT, "version": TEXT}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_INFER = {
    "answers": {JSON: ref("InferAnswer"), _OCTETS: BYTES},
    "body": {JSON: ref("InferRequest"), _OCTETS: BYTES},
    "needs_body": True,
    "headers": {"Inference-Header-Content-Length": _WHOLE, "timeout": _WHOLE, "X-Request-Id": TEXT},
    "errors": (501, 504),
}


def _of_model(tail: str, summary: str, schema: Schema) -> tuple[Operation, ...]:
    return tuple(
        Operation("GET", f"/v2/models/{{name}}{version}{tail}", summary, {JSON: schema})
        for version in ("", "/versions/{version}")
    )


def _command(path: str, summary: str, *, body: Schema | None = None) -> Operation:
    return Operation(
        "POST",
        path,
        summary,
        body={} if body is None else {JSON: body},
        errors=(409, 422),
        needs_token=True,
    )


PROTOCOL = Description(
    "protocol",
    (
        Operation("GET", "/v2", "Name, version and extensions of the server", {JSON: ref("Server")}),
        Operation("GET", "/v2/health/live", "Whether the server runs", {JSON: _object({"live": _FLAG})}),
        Operation("GET", "/v2/health/ready", "Whether requests would be run", {JSON: _object({"ready": _FLAG})}),
        *_of_model("", "Tensors and versions of a model", ref("Model")),
        *_of_model("/ready", "Whether requests of a model would be run", _object({"name": TEXT, "ready": _FLAG})),
        *_of_model("/config", "The configuration of a model", ref("Configuration")),
        *_of_model("/stats", "What a model did so far", ref("Statistics")),
        Operation("GET", "/v2/models/stats", "What all models did so far", {JSON: ref("Statistics")}),
        *(
            Operation("POST", f"/v2/models/{{name}}{version}/infer", "Run a model", **_INFER)  # type: ignore[arg-type]
            for version in ("", "/versions/{version}")
        ),
        Operation(
            "POST",
            "/v2/repository/index",
            "Every version that is loaded or could be",
            {JSON: _list(ref("Entry"))},
            body={JSON: _object({}, {"ready": _FLAG})},
        ),
        _command("/v2/repository/models/{name}/load", "Load a model", body=_object({}, {"parameters": _PARAMETERS})),
        _command(
            "/v2/repository/models/{name}/unload", "Unload a model", body=_object({}, {"parameters": _PARAMETERS})
        ),
        Operation("GET", "/v2/systemsharedmemory/status", "Regions that are registered", {JSON: _list(ref("Region"))}),
        Operation("GET", "/v2/systemsharedmemory/region/{region}/status", "One region", {JSON: _list(ref("Region"))}),
        Operation(
            "POST",
            "/v2/systemsharedmemory/region/{region}/register",
            "Map shared memory",
            body={JSON: _object({"key": _KEY, "byte_size": {"type": "integer", "minimum": 1}}, {"offset": _WHOLE})},
            needs_body=True,
            errors=(409, 501),
        ),
        Operation("POST", "/v2/systemsharedmemory/region/{region}/unregister", "Forget a region"),
        Operation("POST", "/v2/systemsharedmemory/unregister", "Forget all regions"),
    ),
    _SCHEMAS,
)
PICTURES = Description(
    "pictures",
    (
        Operation(
            "POST",
            "/v1/classify",
            "The likeliest classes of a picture",
            {JSON: ref("Labels")},
            body=_PICTURE,
            needs_body=True,
            query={**_QUERY, "top": {"type": "number", "minimum": 1, "maximum": 1000}},
            errors=(404, 504),
        ),
        Operation(
            "POST",
            "/v1/detect",
            "Objects in a picture, and their boxes",
            {JSON: ref("Objects")},
            body=_PICTURE,
            needs_body=True,
            query={**_QUERY, "score": _SHARE, "overlap": _SHARE},
            errors=(404, 504),
        ),
    ),
)
VERSIONS = Description(
    "repository",
    tuple(
        Operation(
            "POST",
            f"/v2/repository/models/{{name}}/{verb}",
            summary,
            {JSON: ref("Turned")},
            errors=(409,),
            needs_token=True,
        )
        for verb, summary in (
            ("rollback", "Go back to the version before"),
            ("promote", "Let the canary get all requests"),
        )
    ),
)
