"""A schema, rewritten into the part of JSON Schema that the automaton library enforces exactly.

What is not enforced is refused by name (`json_refusal`). Of the rest,

- a further property of an open object could spell a declared name with an escape (``"\\u0061"``);
  further names come from a pattern instead, which excludes the declared ones as they read;
- schemas that are merged (``allOf``, keywords beside ``$ref`` or ``anyOf``) are given the same
  such pattern, since the merge forgets ``additionalProperties: false`` where patterns differ;
- exclusive bounds of floats become inclusive ones a little further in, since a long decimal
  fraction rounds to the bound itself (`json_numbers`);
- patterns, formats and classes of characters are made safe (`json_strings`);
- ``not``, ``if`` and ``dependent...`` become alternatives, and so does ``oneOf`` (`json_cases`),
  a plain ``anyOf`` where the branches are proved disjoint (`json_disjoint`);
- a ``$ref`` that no finite instance satisfies becomes ``false`` (`json_emitted`).
"""

from __future__ import annotations

import re
from typing import Any

from smcprog.errors import GrammarError
from smcprog.potentials import json_emitted
from smcprog.potentials.json_assertions import ASSERTIONS, AssertionReader, Group, Trail
from smcprog.potentials.json_cases import TYPES, effective, opposite, other_values
from smcprog.potentials.json_disjoint import Disjointness
from smcprog.potentials.json_document import REFERENCES, Document, escaped
from smcprog.potentials.json_emitted import Emitted, all_of, any_of
from smcprog.potentials.json_refusal import Refusals, schema_error
from smcprog.potentials.json_strings import other_strings

_MAX_DEPTH = 40
_MAX_REFERENCES = 500
_MAX_READ = 50_000
_MOST_BRANCHES = 100
_MOST_OVERLAPPING = 10

_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
_CASES = ("not", "if", *_DEPENDENT)
_IN_PLACE = (*REFERENCES, "allOf", "anyOf", "oneOf", *_CASES)
_ENFORCED = frozenset((*ASSERTIONS, *_IN_PLACE, "then", "else"))
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly")
    + ("writeOnly", "$comment", "$defs", "definitions", "$schema", "$id", "$anchor")
    + ("contentEncoding", "contentMediaType", "contentSchema", "discriminator", "$dynamicAnchor")
)
_KNOWN = frozenset(
    ("contains", "minContains", "maxContains", "additionalItems", "nullable", "extends", "disallow")
)
_DIALECT = re.compile(
    r"https?://json-schema\.org/(?:draft-0[467]|draft/2019-09|draft/2020-12)/schema#?"
)


class Reader(AssertionReader):
    """One schema, rewritten. `emitted` does all; the rest reads one schema or keyword each.

    Args:
        root: the whole schema.
        strict: see `json_schema`.
        closed: objects have no further properties than those they declare.
    """

    def __init__(self, root: Any, strict: bool, closed: bool) -> None:
        super().__init__(Document(root), Refusals(strict), closed)
        self._disjointness = Disjointness(self._document)
        self._definitions: dict[tuple[str, Group], str] = {}
        self._pending: list[tuple[str, Group]] = []
        self._emitted: dict[str, Emitted] = {}
        self._read_so_far = 0

    def emitted(self) -> dict[str, Any]:
        """The whole schema with its definitions.

        Raises:
            GrammarError: see `json_schema`.
        """
        root = self._read(self._document.root, "#", None)
        for place, group in self._pending:  # grows
            name = self._definitions[place, group]
            self._emitted[name] = self._read(self._document.at(place), place, group)
        if (circle := json_emitted.circular(self._emitted)) is not None:
            place = next(place for (place, _), n in self._definitions.items() if n == circle)
            raise schema_error(place, "a $ref leads back to itself without a base")
        # The library follows references by recursion, and would overflow its stack.
        if json_emitted.depth(root, self._emitted) > _MAX_REFERENCES:
            raise GrammarError("json_schema: the references lead too deep")
        alive = json_emitted.alive_names(self._emitted)
        if not json_emitted.alive(root, alive):
            raise GrammarError(
                "json_schema: the schema has no instance" + (" that ends" if self._emitted else "")
            )
        definitions = {
            name: json_emitted.without_dead(schema, alive)
            for name, schema in self._emitted.items()
            if name in alive
        }
        whole = json_emitted.without_dead(root, alive)
        assert whole is not False
        return {**({} if whole is True else whole), "$defs": definitions}

    def _read(self, schema: Any, path: str, group: Group, trail: Trail | None = None) -> Emitted:
        """One schema; with a trail where it is merged with others."""
        if isinstance(schema, bool):
            return schema
        schema = self._enforced(schema, path, trail)
        base = {key: value for key, value in schema.items() if key in ASSERTIONS}
        in_place = [key for key in schema if key in _IN_PLACE]
        overlap = self._overlap(schema, path) if "oneOf" in schema else None
        if trail is None and self._merges(schema, path, base, in_place, overlap):
            trail = ()
            group = self._names(schema, path) if group is None else group
        parts = self._assertions(base, path, group) if base else []
        for key in in_place:
            parts += self._in_place(key, schema, path, group, trail, overlap)
        return all_of(parts)

    def _enforced(self, schema: Any, path: str, trail: Trail | None) -> dict[str, Any]:
        """The keywords of a schema that are enforced; the others are refused or say nothing."""
        if not isinstance(schema, dict):
            raise schema_error(path, f"a schema is an object or a bool, not {schema!r:.100}")
        if path.count("/") > 2 * _MAX_DEPTH or len(trail or ()) > _MAX_DEPTH:
            raise schema_error(path, f"the schema is nested more than {_MAX_DEPTH} deep; use $ref")
        self._read_so_far += 1
        if self._read_so_far > _MAX_READ:
            raise schema_error(path, f"more than {_MAX_READ} schemas to read, with repetitions")
        self._check_identity(schema, path)
        beside = next((key for key in schema if key in _IN_PLACE or key == "contains"), None)
        schema = effective(schema)
        ignored = set()
        for key in schema:
            if key in _ANNOTATIONS or key.startswith("x-") or (key == "id" and path == "#"):
                continue
            if key not in _ENFORCED:
                known = key in _KNOWN or key.startswith("$")
                ignored.add(key)
                self.refusals.unsupported(
                    path, key, "is not supported" if known else "is not known"
                )
            elif key in _UNEVALUATED and beside:
                ignored.add(key)
                self.refusals.unsupported(path, key, f"beside {beside} is not supported")
            elif key in _CASES and self._closed:
                ignored.add(key)
                self.refusals.unsupported(path, key, "is not supported in the schema of a class")
        return {key: value for key, value in schema.items() if key not in ignored}

    def _check_identity(self, schema: dict[str, Any], path: str) -> None:
        dialect = schema.get("$schema")
        if dialect is not None and not (
            isinstance(dialect, str) and _DIALECT.fullmatch(dialect) and path == "#"
        ):
            self.refusals.unsupported(
                path, "$schema", f"names an unknown dialect: {dialect!r:.100}"
            )
        identifier = schema.get("$id", "")
        if not isinstance(identifier, str) or identifier.partition("#")[2]:
            raise schema_error(path, f"$id is a URI without a fragment, not {identifier!r:.100}")

    def _merges(
        self,
        schema: dict[str, Any],
        path: str,
        base: dict[str, Any],
        in_place: list[str],
        overlap: tuple[int, int] | None,
    ) -> bool:
        """Whether schemas are merged here, rather than one of them used."""
        if not in_place:
            return False
        several = len(in_place) > 1 or in_place[0] in _CASES or overlap is not None
        several = several or "discriminator" in schema or bool(base)
        return several or ("allOf" in schema and len(self._branches(schema, "allOf", path)) > 1)

    def _names(self, schema: dict[str, Any], path: str) -> frozenset[str]:
        return frozenset(self._document.property_names(schema, path))

    # Keywords that apply schemas to the same value ----------------------------------------------

    def _in_place(
        self,
        key: str,
        schema: dict[str, Any],
        path: str,
        group: Group,
        trail: Trail | None,
        overlap: tuple[int, int] | None,
    ) -> list[Emitted]:
        value, here = schema[key], f"{path}/{key}"
        if key in REFERENCES:
            return [self._reference(key, schema, path, group, trail)]
        if key in _DEPENDENT:
            return self._dependent(value, here, group, trail)
        try:
            if key == "not":
                return [self._denied(value, here, group, trail or ())]
            if key == "if":
                then = self._read(schema.get("then", True), f"{path}/then", group, trail)
                other = self._read(schema.get("else", True), f"{path}/else", group, trail)
                yes = self._read(value, here, group, trail)
                no = self._denied(value, here, group, trail or ())
                return [any_of([all_of([yes, then]), all_of([no, other])])]
        except _NoOpposite as error:
            self.refusals.unsupported(path, key, f"is not supported around {error}")
            return []
        branches = self._branches(schema, key, path)
        read = [
            self._read(branch, f"{here}/{i}", group, trail) for i, branch in enumerate(branches)
        ]
        if key == "allOf":
            return read
        if key == "oneOf" and overlap is not None:
            read = self._apart(read, branches, overlap, path, group, trail or ())
        return [any_of(read)]

    def _apart(
        self,
        read: list[Emitted],
        branches: list[Any],
        overlap: tuple[int, int],
        path: str,
        group: Group,
        trail: Trail,
    ) -> list[Emitted]:
        """The branches of a oneOf, each without the others."""
        try:
            if len(branches) > _MOST_OVERLAPPING:
                raise _NoOpposite
            denied = [
                self._denied(branch, f"{path}/oneOf/{i}", group, trail)
                for i, branch in enumerate(branches)
            ]
        except (_NoOpposite, GrammarError):
            self.refusals.unsupported(
                path,
                "oneOf",
                "cannot be enforced, since its branches {} and {} are not seen to exclude each "
                "other; use anyOf, or a required property of different const".format(*overlap),
            )
            return read
        return [all_of([*denied[:i], one, *denied[i + 1 :]]) for i, one in enumerate(read)]

    def _branches(self, schema: dict[str, Any], key: str, path: str) -> list[Any]:
        branches = schema[key]
        if not isinstance(branches, list) or not branches:
            raise schema_error(f"{path}/{key}", "a list of schemas is needed")
        if key == "oneOf" and (tag := _tag(schema)) is not None:
            return [{"allOf": [branch, {"required": [tag]}]} for branch in branches]
        return branches

    def _overlap(self, schema: dict[str, Any], path: str) -> tuple[int, int] | None:
        """Two branches of a oneOf that may overlap, where that matters."""
        branches = self._branches(schema, "oneOf", path)
        if len(branches) > _MOST_BRANCHES:
            self.refusals.unsupported(path, "oneOf", f"has more than {_MOST_BRANCHES} branches")
            return None
        return self._disjointness.overlap(branches, f"{path}/oneOf")

    def _dependent(self, value: Any, here: str, group: Group, trail: Trail | None) -> list[Emitted]:
        """For each name: it is absent, or what depends on it holds."""
        if not isinstance(value, dict):
            raise schema_error(here, "an object of lists or schemas is needed")
        parts = []
        for name, needed in value.items():
            if isinstance(needed, list):
                needed = {"required": needed}
            absent = {"properties": {name: False}, "additionalProperties": True}
            present = [{"required": [name]}, needed]
            read = [self._read(part, f"{here}/{escaped(name)}", group, trail) for part in present]
            parts.append(any_of([self._read(absent, here, group, trail), all_of(read)]))
        return parts

    def _denied(self, schema: Any, path: str, group: Group, trail: Trail) -> Emitted:
        """What is no instance of a schema: where some keyword does not hold.

        Raises:
            _NoOpposite: if no schema says that.
        """
        if isinstance(schema, bool):
            return not schema
        ignored = len(self.refusals.ignored)
        schema = self._enforced(schema, path, trail)
        if len(self.refusals.ignored) > ignored or "$id" in schema:
            raise _NoOpposite(path)
        ways: list[Emitted] = []
        for key, value in schema.items():
            here = f"{path}/{key}"
            if key not in _ENFORCED:
                continue
            if key in REFERENCES:
                place, further = self._followed(key, schema, path, trail)
                ways.append(self._denied(self._document.at(place), place, group, further))
            elif key == "not":
                ways.append(self._read(value, here, group, trail))
            elif key in ("allOf", "anyOf"):
                some = [
                    self._denied(branch, f"{here}/{i}", group, trail)
                    for i, branch in enumerate(self._branches(schema, key, path))
                ]
                ways.append(any_of(some) if key == "allOf" else all_of(some))
            elif key in ("enum", "const"):
                ways.append(self._other_values({key: value}, path, group, trail))
            else:
                ways.append(self._opposite(key, value, path, group, trail))
        return any_of(ways)

    def _opposite(self, key: str, value: Any, path: str, group: Group, trail: Trail) -> Emitted:
        if key == "properties":
            if not isinstance(value, dict):
                raise schema_error(f"{path}/{key}", "an object of schemas is needed")
        elif key in ASSERTIONS:
            self._assertions({key: value}, path, group)  # it must be well-formed
        schemas = opposite(key, value)
        if schemas is None:
            raise _NoOpposite(f"{path}/{key}")
        return any_of([self._read(schema, path, group, trail) for schema in schemas])

    def _other_values(self, base: dict[str, Any], path: str, group: Group, trail: Trail) -> Emitted:
        values = self._enumerated(base, path, set(TYPES))
        strings = [value for value in values if isinstance(value, str)]
        schemas, pattern = other_values(values), other_strings(strings)
        if schemas is None or pattern is None:
            raise _NoOpposite(path)
        ways = [self._read(schema, path, group, trail) for schema in schemas]
        return any_of([*ways, {"type": ["string"], **({"pattern": pattern} if strings else {})}])

    def _only(self, schema: Any, path: str, trail: Trail) -> tuple[bool | dict[str, Any], str]:
        while not isinstance(schema, bool):
            schema = self._enforced(schema, path, trail)
            says = {key: value for key, value in schema.items() if key in _ENFORCED}
            if list(says) != ["$ref"]:
                return says, path
            path, trail = self._followed("$ref", schema, path, trail)
            schema = self._document.at(path)
        return schema, path

    # References ---------------------------------------------------------------------------------

    def _reference(
        self, key: str, schema: dict[str, Any], path: str, group: Group, trail: Trail | None
    ) -> Emitted:
        beside = [k for k in schema if k in ASSERTIONS or k in _IN_PLACE]
        beside += [k for k in schema if k == "$id" and path != "#"]
        old = isinstance(self._document.root, dict) and self._document.root.get("$schema")
        if len(beside) > 1 and "draft-0" in str(old):
            raise schema_error(path, "keywords beside $ref are ignored in old drafts; remove them")
        if trail is None:
            place = self._document.target(schema, key, path)
            if (place, group) not in self._definitions:
                self._definitions[place, group] = f"d{len(self._definitions)}"
                self._pending.append((place, group))
            return json_emitted.reference(self._definitions[place, group])
        place, trail = self._followed(key, schema, path, trail)
        return self._read(self._document.at(place), place, group, trail)

    def _followed(
        self, key: str, schema: dict[str, Any], path: str, trail: Trail
    ) -> tuple[str, Trail]:
        """Where a reference leads, and the trail from there."""
        place = self._document.target(schema, key, path)
        if place in trail:
            raise schema_error(
                f"{path}/{key}",
                f"{place} refers to itself where it is merged with other keywords; that is not "
                "supported",
            )
        return place, (*trail, place)


class _NoOpposite(Exception):
    """A keyword that no schema negates."""


def _tag(schema: dict[str, Any]) -> str | None:
    """The property that tells the branches of a oneOf apart."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    return name if isinstance(name, str) else None
