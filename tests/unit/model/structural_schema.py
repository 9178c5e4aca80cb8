"""Judges values as a Kubernetes API server judges them by a structural schema (without CEL)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

_KINDS: dict[str, Any] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_ALLOWED = {
    "type", "format", "description", "default", "enum", "pattern", "properties", "required",
    "items", "additionalProperties", "minLength", "maxLength", "minimum", "maximum", "minItems",
    "maxItems", "maxProperties", "x-kubernetes-validations", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
}  # fmt: skip


def refusals(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """A line for each thing the server would refuse, or drop without a word."""
    kind = schema["type"]
    if not isinstance(value, _KINDS[kind]) or (kind == "integer" and isinstance(value, bool)):
        yield f"{path}: {value!r} is no {kind}"
        return
    yield from _bounds(schema, value, path)
    if kind == "object":
        yield from _members(schema, value, path)
    elif kind == "array":
        for position, item in enumerate(value):
            yield from refusals(schema["items"], item, f"{path}[{position}]")
        keys = schema.get("x-kubernetes-list-map-keys")
        if keys and len({tuple(item[key] for key in keys) for item in value}) < len(value):
            yield f"{path}: two items with the same {keys}"


def _members(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    others = schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: required"
    for name, item in value.items():
        inner = schema.get("properties", {}).get(name, others)
        if inner is None:
            yield f"{path}.{name}: would be pruned"
        else:
            yield from refusals(inner, item, f"{path}.{name}")


def _bounds(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    size = len(value) if isinstance(value, str | list | dict) else value
    for low in ("minLength", "minItems", "minimum"):
        if low in schema and size < schema[low]:
            yield f"{path}: below {low}"
    for high in ("maxLength", "maxItems", "maxProperties", "maximum"):
        if high in schema and size > schema[high]:
            yield f"{path}: above {high}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} not in {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        yield f"{path}: {value!r} does not match"
    if schema.get("format") == "int64" and not -(2**63) <= value < 2**63:
        yield f"{path}: no int64"
    if schema.get("format") == "date-time" and not _is_time(value):
        yield f"{path}: {value!r} is no date-time"


def _is_time(value: str) -> bool:
    if not _RFC3339.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def not_structural(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """A line for each thing an API server refuses in the schema itself."""
    if strange := set(schema) - _ALLOWED:
        yield f"{path}: {sorted(strange)}"
    if schema.get("type") not in _KINDS:
        yield f"{path}: type {schema.get('type')!r}"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties"
    if ("items" in schema) != (schema.get("type") == "array"):
        yield f"{path}: items"
    if "default" in schema:
        yield from (f"default of {line}" for line in refusals(schema, schema["default"], path))
    if (default := schema.get("x-kubernetes-list-map-keys")) is not None:
        inner = schema["items"]
        yield from (f"{path}: key {k} optional" for k in default if k not in inner["required"])
    for name, inner in schema.get("properties", {}).items():
        yield from not_structural(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from not_structural(schema[name], f"{path}.{name}")
