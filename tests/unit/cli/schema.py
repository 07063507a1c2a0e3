# SPDX-License-Identifier: MIT
"""The part of JSON Schema that docs/reference/*.schema.json use; a keyword it does not know is an error."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[3] / "docs/reference"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_SILENT = {"$schema", "$defs", "title", "description"}
_KNOWN = {
    "$ref",
    "type",
    "const",
    "enum",
    "minimum",
    "maximum",
    "required",
    "additionalProperties",
    "unevaluatedProperties",
    "properties",
    "items",
}


class Invalid(Exception):
    """Where, and what was expected."""


@cache
def load(name: str) -> dict[str, Any]:
    """One of docs/reference, by its name before .schema.json."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    return found


def referred(ref: str, root: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What a $ref means, and the document that it is in."""
    file, _, path = ref.partition("#/")
    root = load(file.removesuffix(".schema.json")) if file else root
    found: Any = root
    for part in path.split("/"):
        found = found[part]
    return found, root


def properties(schema: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """The names that it knows, by itself and by what it refers to."""
    more = properties(*referred(schema["$ref"], root)) if "$ref" in schema else set()
    return set(schema.get("properties", {})) | more


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def validate(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, where: str = "$") -> None:
    """Raise Invalid unless the value fits."""
    root = root or schema
    unknown = set(schema) - _KNOWN - _SILENT
    if unknown:
        raise Invalid(f"{where}: this checker does not know {sorted(unknown)}")
    if "$ref" in schema:
        validate(value, *referred(schema["$ref"], root), where)
    names = schema.get("type", list(_TYPES))
    names = [names] if isinstance(names, str) else names
    if not any(_is(value, name) for name in names):
        raise Invalid(f"{where}: {value!r} is none of {names}")
    if ("const" in schema and value != schema["const"]) or ("enum" in schema and value not in schema["enum"]):
        raise Invalid(f"{where}: {value!r} is not {schema.get('const', schema.get('enum'))}")
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise Invalid(f"{where}: {value!r} is out of range")
    if isinstance(value, dict):
        _validate_object(value, schema, root, where)
    for number, item in enumerate(value if isinstance(value, list) else ()):
        validate(item, schema.get("items", {}), root, f"{where}[{number}]")


def _validate_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], where: str) -> None:
    known = schema.get("properties", {})
    missing = set(schema.get("required", ())) - set(value)
    closed = False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
    more = set(value) - properties(schema, root) if closed else set()
    if missing or more:
        raise Invalid(f"{where}: missing {sorted(missing)}, unknown {sorted(more)}")
    for name in set(known) & set(value):
        validate(value[name], known[name], root, f"{where}.{name}")
