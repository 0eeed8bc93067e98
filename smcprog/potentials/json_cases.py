"""What a keyword does not say: the opposite of single keywords of JSON Schema.

With it ``not``, ``if`` and an overlapping ``oneOf`` become alternatives, which can be enforced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_BEYOND = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_LENGTHS = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}


def effective(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the keywords that say nothing where they stand."""
    idle = set()
    if "if" not in schema:
        idle |= {"then", "else"}
    elif "then" not in schema and "else" not in schema:
        idle.add("if")
    if "contains" not in schema:
        idle |= {"minContains", "maxContains"}
    for part, others in (("Items", "items"), ("Properties", "additionalProperties")):
        key = f"unevaluated{part}"
        if schema.get(key) is True or others in schema:
            idle.add(key)
    if idle.isdisjoint(schema):
        return schema
    return {key: value for key, value in schema.items() if key not in idle}


def opposite(keyword: str, value: Any) -> list[dict[str, Any]] | None:
    """Schemas one of which holds where a well-formed keyword does not; None if none can say it."""
    if keyword == "type":
        return _other_types([value] if isinstance(value, str) else value)
    if keyword == "required":
        return [_with_properties({name: False}) for name in value]
    if keyword == "properties":
        return [
            {**_with_properties({name: {"not": inner}}), "required": [name]}
            for name, inner in value.items()
        ]
    if keyword in _BEYOND:
        return [{"type": "number", _BEYOND[keyword]: value}]
    if keyword in _LENGTHS:
        kind, other, step = _LENGTHS[keyword]
        return [{"type": kind, other: value + step}] if value + step >= 0 else []
    return None


def _with_properties(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": True}


def _other_types(types: Sequence[str]) -> list[dict[str, Any]] | None:
    if "number" in types:
        types = [*types, "integer"]
    elif "integer" in types:
        return None  # the numbers with a fraction have no schema
    others = [name for name in TYPES if name not in types]
    return [{"type": others}] if others else []


def other_values(values: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Schemas of all that is none of some values but strings; None if none can say it."""
    kinds = {type(value) for value in values}
    if kinds & {list, dict}:
        return None
    ways: list[dict[str, Any]] = [{"type": ["array", "object"]}]
    singles: tuple[Any, ...] = (None, True, False)
    ways += [{"const": one} for one in singles if not any(one is value for value in values)]
    numbers = sorted({v for v in values if type(v) in (int, float)})
    if not numbers:
        ways.append({"type": "number"})
    else:
        ways.append({"type": "number", "exclusiveMaximum": numbers[0]})
        ways.append({"type": "number", "exclusiveMinimum": numbers[-1]})
        for low, high in zip(numbers, numbers[1:], strict=False):
            ways.append({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    return ways
