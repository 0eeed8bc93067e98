"""Whether the branches of a ``oneOf`` exclude each other, so that it is an ``anyOf``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from smcprog.errors import GrammarError
from smcprog.potentials.json_cases import TYPES
from smcprog.potentials.json_document import REFERENCES, Document

_Conjunct = tuple[str, dict[str, Any]]
"""One of some schemas that all hold, with its place."""

_DEEP = 6
_MOST_STEPS = 20_000


class Disjointness:
    """Proofs about the schemas of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._steps = 0

    def overlap(self, branches: list[Any], path: str) -> tuple[int, int] | None:
        """Two branches that are not seen to exclude each other, or None."""
        self._steps = 0
        split = [list(self._conjuncts(b, f"{path}/{i}")) for i, b in enumerate(branches)]
        for i, one in enumerate(split):
            for j, other in enumerate(split[:i]):
                if not self._disjoint(one, other, _DEEP):
                    return j, i
        return None

    def _conjuncts(self, schema: Any, path: str, deep: int = 8) -> Iterator[_Conjunct]:
        """Schemas that all hold where this one holds."""
        if schema is False:
            yield path, {"enum": []}
        self._steps += 1
        if not isinstance(schema, dict) or not deep or self._steps > _MOST_STEPS:
            return
        yield path, schema
        for key in REFERENCES:
            if key in schema:
                place = self._document.target(schema, key, path)
                yield from self._conjuncts(self._document.at(place), place, deep - 1)
        inner = schema.get("allOf")
        for i, part in enumerate(inner if isinstance(inner, list) else ()):
            yield from self._conjuncts(part, f"{path}/allOf/{i}", deep - 1)

    def _disjoint(self, one: list[_Conjunct], other: list[_Conjunct], deep: int) -> bool:
        """Whether no value satisfies both conjunctions: proved, or False."""
        self._steps += 1
        if not deep or self._steps > _MOST_STEPS:
            return False
        for first, second in ((one, other), (other, one)):
            for path, schema in first:
                for key in ("anyOf", "oneOf"):
                    branches = schema.get(key)
                    if isinstance(branches, list) and branches:
                        ways = enumerate(branches)
                        split = (list(self._conjuncts(b, f"{path}/{key}/{i}")) for i, b in ways)
                        if all(self._disjoint(some, second, deep - 1) for some in split):
                            return True
        types, other_types = _types_of(one), _types_of(other)
        if not types & other_types:
            return True
        values, other_values = _values_of(one), _values_of(other)
        if values is not None and other_values is not None:
            spelled = {canonical(value) for value in other_values}
            return not any(canonical(value) in spelled for value in values)
        if types & other_types == {"object"}:
            return self._disjoint_objects(one, other, deep)
        return False

    def _disjoint_objects(self, one: list[_Conjunct], other: list[_Conjunct], deep: int) -> bool:
        for name in sorted(_required_of(one) | _required_of(other)):
            mine = [c for place, p in _property(one, name) for c in self._conjuncts(p, place)]
            theirs = [c for place, p in _property(other, name) for c in self._conjuncts(p, place)]
            if self._disjoint(mine, theirs, deep - 1):
                return True
        return False


def type_of(value: Any) -> str:
    """The type of a JSON value; of a number, the narrower one."""
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, list) else "object"


def canonical(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0, objects in any order; not 1 and true."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        if isinstance(value, float) and isfinite(value) and value == int(value):
            return int(value)
        return value

    try:
        return json.dumps(plain(value), sort_keys=True)
    except RecursionError as error:
        raise GrammarError("json_schema: a value is nested too deeply") from error


def _types_of(conjuncts: list[_Conjunct]) -> set[str]:
    """The types of the values that satisfy all; integers count as numbers."""
    types = set(TYPES) - {"integer"}
    for conjunct in conjuncts:
        named = conjunct[1].get("type")
        listed = [named] if isinstance(named, str) else named
        if isinstance(listed, list):
            types &= {"number" if name == "integer" else name for name in map(str, listed)}
        values = _values_of([conjunct])
        if values is not None:
            found = {type_of(value) for value in values}
            types &= {"number" if name == "integer" else name for name in found}
    return types


def _values_of(conjuncts: list[_Conjunct]) -> list[Any] | None:
    for _, schema in conjuncts:
        if "const" in schema:
            return [schema["const"]]
    for _, schema in conjuncts:
        if isinstance(schema.get("enum"), list):
            return list(schema["enum"])
    return None


def _required_of(conjuncts: list[_Conjunct]) -> set[str]:
    names: set[str] = set()
    for _, schema in conjuncts:
        listed = schema.get("required")
        names.update(n for n in (listed if isinstance(listed, list) else ()) if isinstance(n, str))
    return names


def _property(conjuncts: list[_Conjunct], name: str) -> Iterator[_Conjunct]:
    """The schemas that a property of the name satisfies."""
    for path, schema in conjuncts:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            yield f"{path}/properties/{name}", properties[name]
        elif "additionalProperties" in schema and "patternProperties" not in schema:
            yield f"{path}/additionalProperties", schema["additionalProperties"]
