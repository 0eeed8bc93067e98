"""What an emitted schema says: one of the part of JSON Schema that is enforced exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smcprog.potentials.json_cases import TYPES
from smcprog.potentials.json_document import applied

Emitted = dict[str, Any] | bool

_DEFINITION = "#/$defs/"


def reference(name: str) -> Emitted:
    """A reference to a definition."""
    return {"$ref": f"{_DEFINITION}{name}"}


def all_of(parts: Sequence[Emitted]) -> Emitted:
    """The schema of what satisfies all parts."""
    parts = [part for part in parts if part is not True]
    if any(part is False for part in parts):
        return False
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def any_of(parts: Sequence[Emitted]) -> Emitted:
    """The schema of what satisfies some part."""
    parts = [part for part in parts if part is not False]
    if any(part is True for part in parts):
        return True
    return {"anyOf": parts} if len(parts) > 1 else parts[0] if parts else False


def alive_names(definitions: Mapping[str, Emitted]) -> set[str]:
    """The definitions with a finite instance: the least fixed point."""
    users: dict[str, list[str]] = {}
    for name, schema in definitions.items():
        for target, _ in _references(schema):
            users.setdefault(target, []).append(name)
    found: set[str] = set()
    queue = list(definitions)
    while queue:
        name = queue.pop()
        if name not in found and alive(definitions[name], found):
            found.add(name)
            queue += users.get(name, ())
    return found


def alive(schema: Emitted, names: set[str]) -> bool:
    """Whether the schema can have an instance, of definitions in ``names`` only."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema["$ref"].removeprefix(_DEFINITION) in names
    if "anyOf" in schema:
        return any(alive(part, names) for part in schema["anyOf"])
    if "allOf" in schema:
        return all(alive(part, names) for part in schema["allOf"])
    types = set(schema.get("type", TYPES))
    if "enum" in schema or types - {"array", "object"}:
        return True
    return ("array" in types and _alive_array(schema, names)) or (
        "object" in types and _alive_object(schema, names)
    )


def _alive_array(schema: dict[str, Any], names: set[str]) -> bool:
    count = schema.get("minItems", 0)
    first = schema.get("prefixItems", [])
    return all(alive(item, names) for item in first[:count]) and (
        count <= len(first) or alive(schema.get("items", True), names)
    )


def _alive_object(schema: dict[str, Any], names: set[str]) -> bool:
    properties = schema.get("properties", {})
    # A required name that is not listed is left to a pattern, and those of a group say false.
    unlisted = any(part is not False for part in schema.get("patternProperties", {}).values())
    unlisted = unlisted or schema.get("additionalProperties", True) is not False
    return all(alive(properties.get(name, unlisted), names) for name in schema.get("required", ()))


def without_dead(schema: Emitted, names: set[str]) -> Emitted:
    """The schema with ``false`` for each reference to a definition not in ``names``."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema if schema["$ref"].removeprefix(_DEFINITION) in names else False
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("items", "additionalProperties"):
            value = without_dead(value, names)
        elif key in ("anyOf", "allOf", "prefixItems"):
            value = [without_dead(part, names) for part in value]
        elif key in ("properties", "patternProperties"):
            value = {name: without_dead(part, names) for name, part in value.items()}
        result[key] = value
    if "anyOf" in result:
        return any_of(result["anyOf"])
    return all_of(result["allOf"]) if "allOf" in result else result


def circular(definitions: Mapping[str, Emitted]) -> str | None:
    """A definition that applies itself to the same value, which says nothing, if there is one."""
    done: set[str] = set()
    for start in definitions:
        stack = [(start, _in_place(definitions[start]))]
        open_names = {start}
        while stack and start not in done:
            name, inner = stack[-1]
            target = next(inner, None)
            if target is None:
                done.add(name)
                open_names.discard(name)
                stack.pop()
            elif target in open_names:
                return target
            elif target not in done:
                open_names.add(target)
                stack.append((target, _in_place(definitions[target])))
    return None


def _in_place(schema: Emitted) -> Iterator[str]:
    """The definitions that apply to the same value as the schema itself."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_DEFINITION)
        for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
            yield from _in_place(part)


def depth(root: Emitted, definitions: Mapping[str, Emitted]) -> int:
    """How deep one gets by following each reference when it is first met."""
    deepest = 0
    seen: set[str] = set()
    stack = [(0, _references(root))]
    while stack:
        level, inner = stack[-1]
        name, further = next(inner, ("", 0))
        deepest = max(deepest, level + further)
        if not name:
            stack.pop()
        elif name not in seen:
            seen.add(name)
            stack.append((level + further, _references(definitions[name])))
    return deepest


def _references(schema: Emitted, level: int = 1) -> Iterator[tuple[str, int]]:
    """All definitions that are referred to, each with its depth in the schema."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_DEFINITION), level
        for _, inner in applied(schema, ""):
            yield from _references(inner, level + 1)
