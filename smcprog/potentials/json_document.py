"""Places in a schema: its subschemas, and what a reference means.

A place is written as its JSON pointer from the root, ``#/properties/a``, whatever ``$id`` or
``$anchor`` led there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from smcprog.potentials.json_refusal import schema_error

_ONE = frozenset(
    ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "not")
    + ("if", "then", "else", "contains", "propertyNames")
)
_SEVERAL = ("prefixItems", "allOf", "anyOf", "oneOf")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_DEFINED = ("$defs", "definitions")

REFERENCES = ("$ref", "$dynamicRef")


def escaped(name: str) -> str:
    """A name as one step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def applied(schema: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """The schemas that a schema applies, to the same value or parts of it, with their places."""
    for key in schema:
        if key in _ONE:
            yield f"{path}/{key}", schema[key]
    for key in _SEVERAL:
        inner = schema.get(key)
        for i, part in enumerate(inner if isinstance(inner, list) else ()):
            yield f"{path}/{key}/{i}", part
    yield from _named(schema, path, _NAMED)


def _named(schema: dict[str, Any], path: str, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        inner = schema.get(key)
        for name, part in inner.items() if isinstance(inner, dict) else ():
            yield f"{path}/{key}/{escaped(name)}", part


class Document:
    """A whole schema, and where its references lead."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._resources: dict[str, str] = {}
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: list[str] = []
        self._base = ""
        if isinstance(root, dict):
            old = root.get("id")
            self._base = _identifier(root, old.rstrip("#") if isinstance(old, str) else "")
        self._resources[self._base] = "#"
        self._index()

    def _index(self) -> None:
        """Find all resources and anchors."""
        stack = [("#", self._base, self.root)]
        while stack:
            path, base, schema = stack.pop()
            if not isinstance(schema, dict):
                continue
            within, base = base, _identifier(schema, base)
            if base != within and self._resources.setdefault(base, path) != path:
                raise schema_error(path, f"another schema has the $id {base!r:.200}")
            for key in ("$anchor", "$dynamicAnchor"):
                name = schema.get(key)
                if isinstance(name, str) and self._anchors.setdefault((base, name), path) != path:
                    raise schema_error(path, f"another schema has the {key} {name!r:.200}")
            if isinstance(schema.get("$dynamicAnchor"), str):
                self._dynamic.append(schema["$dynamicAnchor"])
            inner = [*applied(schema, path), *_named(schema, path, _DEFINED)]
            stack += ((place, base, part) for place, part in inner)

    def at(self, pointer: str) -> Any:
        """What stands at a place.

        Raises:
            LookupError: if nothing does.
        """
        return self._below(self.root, pointer)

    def _below(self, node: Any, pointer: str) -> Any:
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and re.fullmatch("0|[1-9][0-9]{0,8}", step):
                node = node[int(step)]
            elif isinstance(node, dict):
                node = node[step]
            else:
                raise LookupError(pointer)
        return node

    def _base_at(self, path: str) -> str:
        """The URI against which the references of the schema at a place are resolved."""
        base, node = self._base, self.root
        for step in path.split("/")[1:]:
            try:
                node = self._below(node, f"/{step}")
            except LookupError:
                continue  # a step that the reader made up
            if isinstance(node, dict):
                base = _identifier(node, base)
        return base

    def target(self, schema: dict[str, Any], key: str, path: str) -> str:
        """The place that a reference of the schema at ``path`` means.

        Raises:
            GrammarError: if it is not in this document.
        """
        here = f"{path}/{key}"
        reference = schema[key]
        if not isinstance(reference, str):
            raise schema_error(here, f"a reference is a string, not {reference!r:.100}")
        base = self._base_at(path)
        uri, fragment = base, reference[1:]
        if not reference.startswith("#"):
            try:
                uri, fragment = urldefrag(urljoin(base, reference))
            except ValueError as error:
                raise schema_error(here, f"{reference!r:.200} is no URI: {error}") from error
        if uri not in self._resources:
            raise schema_error(
                here, f"{reference!r:.200} is not in this schema; copy what it means into $defs"
            )
        fragment = unquote(fragment)
        if key == "$dynamicRef" and self._dynamic.count(fragment) > 1:
            raise schema_error(
                here,
                f"{reference!r:.200} has several targets, by who refers to it; use $ref",
            )
        if fragment and not fragment.startswith("/"):
            place = self._anchors.get((uri, fragment))
        else:
            place = f"{self._resources[uri]}{fragment}"
        try:
            if place is None:
                raise LookupError(fragment)
            self.at(place)
        except LookupError as error:
            raise schema_error(here, f"{reference!r:.200} leads nowhere") from error
        return place

    def property_names(self, schema: Any, path: str) -> set[str]:
        """All property names of a schema, at any depth and through references."""
        names: set[str] = set()
        seen: set[str] = set()
        stack = [(path, schema)]
        while stack:
            path, schema = stack.pop()
            if not isinstance(schema, dict):
                continue
            listed = [schema.get("required")]
            for key in ("properties", "dependentRequired", "dependentSchemas", "dependencies"):
                if isinstance(schema.get(key), dict):
                    names.update(schema[key])
                    listed += schema[key].values()
            for some in listed:
                names.update(n for n in (some if isinstance(some, list) else ()) if type(n) is str)
            discriminator = schema.get("discriminator")
            if isinstance(discriminator, dict) and type(discriminator.get("propertyName")) is str:
                names.add(discriminator["propertyName"])
            stack += applied(schema, path)
            for key in REFERENCES:
                if key in schema and (place := self.target(schema, key, path)) not in seen:
                    seen.add(place)
                    stack.append((place, self.at(place)))
        return names


def _identifier(schema: dict[str, Any], base: str) -> str:
    """The URI of a schema within that of the schemas around it."""
    identifier = schema.get("$id")
    if not isinstance(identifier, str):
        return base
    try:
        uri, fragment = urldefrag(urljoin(base, identifier))
    except ValueError as error:
        raise schema_error("$id", f"{identifier!r:.200} is no URI: {error}") from error
    return base if fragment else uri  # with a fragment it is the anchor of an old draft
