"""The part of JSON Schema that the policy's schema uses: a check that needs no package."""

import math
import re

KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "default", "type", "anyOf", "enum", "pattern"),
    *("properties", "additionalProperties", "propertyNames", "items", "prefixItems", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"),
}


def violations(value, schema, root=None, place="$"):
    """Where ``value`` breaks ``schema``, one line each; empty when it is valid."""
    root = root or schema
    assert schema.keys() <= KNOWN, f"this check does not know {schema.keys() - KNOWN}"
    found = []
    if "$ref" in schema:
        found += violations(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, place)
    if "anyOf" in schema and all(violations(value, option, root, place) for option in schema["anyOf"]):
        found.append(f"{place}: none of the options fits")
    if value not in schema.get("enum", [value]):
        found.append(f"{place}: not one of {schema['enum']}")
    if "type" in schema and not _is(value, schema["type"]):
        return [*found, f"{place}: not of type {schema['type']}"]
    inner = {dict: _object, list: _array}.get(type(value))
    found += inner(value, schema, root, place) if inner else []
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        found.append(f"{place}: does not match {schema['pattern']}")
    if _is(value, "number") and not _in_range(value, schema):
        found.append(f"{place}: out of range")
    return found


def _is(value, kind):
    if kind in ("number", "integer"):
        numbers = int if kind == "integer" else int | float
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, KINDS[kind])


def _in_range(value, schema):
    inside = schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf)
    return inside and schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)


def _object(value, schema, root, place):
    found, rest = [], schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in schema.get("properties", {}):
            found += violations(item, schema["properties"][key], root, f"{place}.{key}")
        elif rest is False:
            found.append(f"{place}: unknown key {key}")
        elif isinstance(rest, dict):
            found += violations(item, rest, root, f"{place}.{key}")
    return found


def _array(value, schema, root, place):
    found = [] if schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf) else [f"{place}: length"]
    first = schema.get("prefixItems", [])
    for at, item in enumerate(value):
        wanted = first[at] if at < len(first) else schema.get("items", {})
        found += violations(item, wanted, root, f"{place}[{at}]")
    return found
