"""The keywords of a schema that assert something of their own, rewritten (see `json_reader`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from smcprog.potentials.json_cases import TYPES
from smcprog.potentials.json_disjoint import canonical, type_of
from smcprog.potentials.json_document import Document, escaped
from smcprog.potentials.json_emitted import Emitted
from smcprog.potentials.json_numbers import BOUNDS, count, numbers, plain
from smcprog.potentials.json_refusal import Refusals, schema_error
from smcprog.potentials.json_strings import FORMATS, found_pattern, other_strings

_MAX_VALUES = 200_000

_OBJECT = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties", "propertyNames")
    + ("minProperties", "maxProperties", "unevaluatedProperties")
)
ASSERTIONS = _OBJECT | frozenset(
    ("type", "enum", "const", "multipleOf", *BOUNDS)
    + ("minLength", "maxLength", "pattern", "format")
    + ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems")
)
_A_STRING = ("type", "string")

Group = frozenset[str] | None
"""The property names of all schemas that will be merged with one another, at any depth. Within a
group each open object lists all of the names, so that the pattern of the further names is the same
in all of them. None where nothing is merged."""

Trail = tuple[str, ...]
"""Where schemas are merged: the references that led here."""


class AssertionReader(ABC):
    """Reads assertions; their subschemas, and what they refer to, are its subclass's."""

    def __init__(self, document: Document, refusals: Refusals, closed: bool) -> None:
        self._document = document
        self.refusals = refusals
        self._closed = closed
        self._values = 0

    @abstractmethod
    def _read(self, schema: Any, path: str, group: Group, trail: Trail | None = None) -> Emitted:
        """One schema; with a trail where it is merged with others."""

    @abstractmethod
    def _only(self, schema: Any, path: str, trail: Trail) -> tuple[bool | dict[str, Any], str]:
        """The enforced keywords of a schema, or of what it merely refers to, and its place."""

    def _assertions(self, base: dict[str, Any], path: str, group: Group) -> list[Emitted]:
        """The keywords of one schema that assert something of their own."""
        types = self._types(base, path)
        others = {key: base[key] for key in base if key not in ("type", "enum", "const")}
        if "enum" in base or "const" in base:
            values = self._enumerated(base, path, types)
            if not values:
                return [False]
            if (others or group is not None) and any(map(_holds_object, values)):
                where = "enum" if "enum" in base else "const"
                raise schema_error(
                    f"{path}/{where}", "objects among the values exclude keywords beside them"
                )
            return [{"enum": values}, *(self._assertions(others, path, group) if others else [])]
        types, numeric = numbers(base, path, types, self.refusals)
        if not types:
            return [False]
        emitted: dict[str, Any] = {"type": [name for name in TYPES if name in types], **numeric}
        emitted |= self._string(base, path)
        emitted |= self._array(base, path, group)
        emitted |= self._object(base, path, group)
        parts: list[Emitted] = [emitted]
        if "format" in base:
            parts.append(self._format(base["format"], path))
        return parts

    def _types(self, base: dict[str, Any], path: str) -> set[str]:
        named = base.get("type", list(TYPES))
        types = [named] if isinstance(named, str) else named
        if not isinstance(types, list) or not types or not all(t in TYPES for t in types):
            raise schema_error(f"{path}/type", f"{named!r:.100} is none of {', '.join(TYPES)}")
        return set(types)

    def _enumerated(self, base: dict[str, Any], path: str, types: set[str]) -> list[Any]:
        values = base["enum"] if "enum" in base else [base["const"]]
        if not isinstance(values, list):
            raise schema_error(f"{path}/enum", "a list of values is needed")
        self._values += sum(map(_weight, values))
        if self._values > _MAX_VALUES:
            raise schema_error(f"{path}/enum", f"more than {_MAX_VALUES} values are too many")
        if "enum" in base and "const" in base:
            wanted = canonical(base["const"])
            values = [value for value in values if canonical(value) == wanted]
        where = f"{path}/enum" if "enum" in base else f"{path}/const"
        values = [plain(value, where) for value in values]
        if "number" in types:
            types = types | {"integer"}
        return [value for value in values if type_of(value) in types]

    def _string(self, base: dict[str, Any], path: str) -> dict[str, Any]:
        emitted: dict[str, Any] = count(base, "minLength", path) | count(base, "maxLength", path)
        if "pattern" in base:
            emitted["pattern"] = found_pattern(base["pattern"], f"{path}/pattern")
        return emitted

    def _format(self, name: Any, path: str) -> Emitted:
        if not isinstance(name, str) or name not in FORMATS:
            self.refusals.unsupported(path, "format", f"{name!r:.100} is not supported")
            return True
        return dict(FORMATS[name])

    def _array(self, base: dict[str, Any], path: str, group: Group) -> dict[str, Any]:
        emitted: dict[str, Any] = {}
        if "prefixItems" in base:
            schemas = base["prefixItems"]
            if not isinstance(schemas, list):
                raise schema_error(f"{path}/prefixItems", "a list of schemas is needed")
            emitted["prefixItems"] = [
                self._read(schema, f"{path}/prefixItems/{i}", group)
                for i, schema in enumerate(schemas)
            ]
        if (key := _first_of(base, "items", "unevaluatedItems")) is not None:
            if isinstance(base[key], list):
                raise schema_error(f"{path}/{key}", "a list is of an old draft; use prefixItems")
            emitted["items"] = self._read(base[key], f"{path}/{key}", group)
        emitted |= count(base, "minItems", path) | count(base, "maxItems", path)
        unique = base.get("uniqueItems", False)
        if not isinstance(unique, bool):
            raise schema_error(f"{path}/uniqueItems", "a bool is needed")
        if unique and emitted.get("maxItems", 2) > 1:
            self.refusals.unsupported(path, "uniqueItems")
        return emitted

    def _object(self, base: dict[str, Any], path: str, group: Group) -> dict[str, Any]:
        if not base.keys() & _OBJECT:
            # Where it is merged, an object that says nothing merges rightly with all.
            return {}
        properties = self._schemas(base, "properties", path, group)
        patterns = {
            found_pattern(pattern, f"{path}/patternProperties/{escaped(pattern)}"): schema
            for pattern, schema in self._schemas(base, "patternProperties", path, group).items()
        }
        required = base.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise schema_error(f"{path}/required", "a list of names is needed")
        further: Emitted = not (self._closed and "properties" in base)
        key = _first_of(base, "additionalProperties", "unevaluatedProperties")
        if key is not None:
            further = self._read(base[key], f"{path}/{key}", group)
        emitted: dict[str, Any] = self._property_count(base, path, required)
        allowed = self._allowed_names(base, path, group)
        if allowed is not None:
            if isinstance(allowed, str):
                patterns = {allowed: further}
            else:
                properties = {name: properties.get(name, further) for name in allowed}
            further = False
        elif patterns:
            if group is not None:
                self.refusals.unsupported(
                    path, "patternProperties", "merged with others is not supported"
                )
            if further is not False:
                self.refusals.unsupported(
                    path, "patternProperties", "is supported with additionalProperties: false only"
                )
                further = False
        elif further is not False or group is not None:
            listed = [*required, *sorted(group or ())] if further is not False else []
            for name in listed:
                properties.setdefault(name, further)
            names = group if group is not None else frozenset(properties)
            if names or further is False:
                patterns = {self._further_names(names | frozenset(properties), path): further}
                further = False
        if properties:
            emitted["properties"] = properties
        if patterns:
            emitted["patternProperties"] = patterns
        if required:
            emitted["required"] = list(dict.fromkeys(required))
        emitted["additionalProperties"] = further
        return emitted

    def _schemas(
        self, base: Mapping[str, Any], key: str, path: str, group: Group
    ) -> dict[str, Emitted]:
        schemas = base.get(key, {})
        if not isinstance(schemas, dict):
            raise schema_error(f"{path}/{key}", "an object of schemas is needed")
        return {
            name: self._read(schema, f"{path}/{key}/{escaped(name)}", group)
            for name, schema in schemas.items()
        }

    def _allowed_names(
        self, base: Mapping[str, Any], path: str, group: Group
    ) -> list[str] | str | None:
        """What ``propertyNames`` allows: some names, those of a pattern, or None for all."""
        schema, place = self._only(base.get("propertyNames", True), f"{path}/propertyNames", ())
        if schema is False:
            schema = {"enum": []}
        says = {} if schema is True else {k: v for k, v in schema.items() if (k, v) != _A_STRING}
        if not says:
            return None
        merged = group is not None or "patternProperties" in base
        if says.keys() <= {"enum", "const"} and not merged:
            return list(dict.fromkeys(self._enumerated(says, place, {"string"})))
        if list(says) == ["pattern"] and not (merged or base.keys() & {"properties", "required"}):
            return found_pattern(says["pattern"], f"{place}/pattern")
        self.refusals.unsupported(
            path, "propertyNames", "is supported with one enum, or with one pattern for all names"
        )
        return None

    def _property_count(
        self, base: Mapping[str, Any], path: str, required: list[str]
    ) -> dict[str, Any]:
        low = count(base, "minProperties", path)
        if low and low["minProperties"] <= len(set(required)):
            low = {}
        if low and low["minProperties"] > 1:
            # A further name may be repeated, which would count twice.
            self.refusals.unsupported(
                path, "minProperties", "above 1 is not supported; use required"
            )
            low = {}
        return low | count(base, "maxProperties", path)

    def _further_names(self, names: Iterable[str], path: str) -> str:
        pattern = other_strings(names)
        if pattern is None:
            raise schema_error(
                path,
                "too many properties to keep further ones apart; use additionalProperties: false",
            )
        return pattern


def _first_of(base: Mapping[str, Any], *keys: str) -> str | None:
    return next((key for key in keys if key in base), None)


def _weight(value: Any) -> int:
    """How many plain values an enumerated one takes as much room as."""
    if not isinstance(value, dict | list):
        return 1
    parts = value.values() if isinstance(value, dict) else value
    return 10 + 10 * sum(map(_weight, parts))


def _holds_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_holds_object, value)))
