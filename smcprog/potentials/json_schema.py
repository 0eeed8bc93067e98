"""Constrain a text to JSON instances of a schema.

The masks come from llguidance's compiler of JSON Schema. It is good, but it was measured (against
the JSON-Schema-Test-Suite, with the ``jsonschema`` library as the judge) to let some invalid
instances through. So a schema is first read here: what is not enforced is refused by name, and the
rest is rewritten into the part that is enforced exactly:

- a further property of an open object could spell a declared name with an escape (``"\\u0061"``);
  further names come from a pattern instead, which excludes the declared ones as they read;
- schemas that are merged (``allOf``, keywords beside ``$ref`` or ``anyOf``) are given the same
  such pattern, since the merge forgets ``additionalProperties: false`` where patterns differ;
- exclusive bounds of floats become inclusive ones a little further in, since a long decimal
  fraction rounds to the bound itself;
- a class of characters must not hold all control characters, or it would hold ``"`` as well;
- a ``pattern`` becomes one that ECMA 262 and Python read alike; ``oneOf`` becomes ``anyOf`` where
  the branches are proved disjoint; a ``$ref`` that no finite instance satisfies becomes ``false``.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from math import ceil, floor, isfinite
from typing import Any
from urllib.parse import unquote

from smcprog.errors import GrammarError
from smcprog.potentials.base import Matcher
from smcprog.potentials.matcher import ANYTHING, CompiledConstraint
from smcprog.potentials.pattern import _CLASS, _characters, _Translation, literal
from smcprog.vocabulary import BYTES, Vocabulary, unpack

Emitted = dict[str, Any] | bool
"""A schema in the part of JSON Schema that llguidance enforces."""

_WHITESPACE = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
_MAX_DEPTH = 40
_MAX_REFERENCES = 500
_MAX_VALUES = 200_000
_MAX_NAMES_PATTERN = 100_000
_EXACT = 2**53
_TINY = 1e-12
# A class of characters that holds all control characters is taken by llguidance to hold " and \
# as well. So one of them, which no one writes, is taken out of each class.
_REFUSED_CHAR = r"\x{0}"

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OBJECT = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties")
    + ("minProperties", "maxProperties")
)
_ASSERTIONS = _OBJECT | frozenset(
    ("type", "enum", "const", "multipleOf", *_BOUNDS)
    + ("minLength", "maxLength", "pattern", "format")
    + ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")
)
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly")
    + ("writeOnly", "$comment", "$defs", "definitions", "$schema", "$id", "$anchor")
    + ("contentEncoding", "contentMediaType", "contentSchema", "discriminator")
)
_DIALECT = re.compile(
    r"https?://json-schema\.org/(?:draft-0[467]|draft/2019-09|draft/2020-12)/schema#?"
)

_REMEDIES = {
    "not": "condition(...) on the parsed value says it",
    "if": "write the cases as anyOf",
    "then": "write the cases as anyOf",
    "else": "write the cases as anyOf",
    "dependentRequired": "write the cases as anyOf",
    "dependentSchemas": "write the cases as anyOf",
    "dependencies": "write the cases as anyOf",
    "contains": "condition(...) on the parsed value says it",
    "propertyNames": "use patternProperties with additionalProperties: false",
    "unevaluatedProperties": "list all properties and use additionalProperties: false",
    "unevaluatedItems": "use prefixItems and items",
    "additionalItems": "use prefixItems and items",
    "nullable": 'use "type": [..., "null"]',
}

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_FORMATS: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^(?:{_DATE})$"},
    "time": {"pattern": f"^(?:{_TIME})$"},
    "date-time": {"pattern": f"^(?:{_DATE}T{_TIME})$"},
    "hostname": {"pattern": f"^(?:{_HOSTNAME})$", "maxLength": 63},
    "email": {"pattern": rf"^(?:{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME})$", "maxLength": 64},
    **{name: {"format": name} for name in ("duration", "ipv4", "ipv6", "uuid", "uri")},
}
"""The formats that are enforced: no text passes that the format forbids."""


@dataclass(frozen=True)
class JsonSchema(CompiledConstraint):
    """JSON instances of a schema. Build it with `json_schema`.

    ``text`` is the schema as JSON. The order of its keys counts: it is the order of the properties
    in the instances. ``model`` is the class that the schema came from, or None.
    """

    text: str
    model: Any = None
    strict: bool = True
    _emitted: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = _loaded(self.text)
        reader = _Reader(schema, strict=self.strict, closed=self.model is not None)
        try:
            object.__setattr__(self, "_emitted", json.dumps(reader.emitted()))
        except RecursionError as error:
            raise GrammarError("json_schema: the schema is nested too deeply") from error

    def __repr__(self) -> str:
        shown = (
            self.text if self.model is None else str(getattr(self.model, "__name__", self.model))
        )
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return f"json_schema({shown}{'' if self.strict else ', strict=False'})"

    def start(self, vocabulary: Vocabulary, followed_by: tuple[str, ...] = ()) -> Matcher:
        """See `Constraint.start`. Compiled once per vocabulary, schema and stop strings.

        Raises:
            GrammarError: if the schema has no instance or needs too large an automaton; if it
                allows a number and a stop string begins with what could continue one.
        """
        if any(not stop or stop[0] in "0123456789.eE" for stop in followed_by):
            self._refuse_after_number(followed_by)
        try:
            return super().start(vocabulary, followed_by)
        except GrammarError as error:
            raise self._reworded(error) from None

    def _reworded(self, error: GrammarError) -> GrammarError:
        """Without the library's picture of the grammar, which the user has not written."""
        reason = str(error).split("\n")[0]
        if "Unsatisfiable schema: " in reason:
            return GrammarError(
                f"{self!r} has no instance: {reason.split('Unsatisfiable schema: ', 1)[1]}"
            )
        if "failed to compile JSON schema: " in reason:
            reason = reason.split("failed to compile JSON schema: ", 1)[1]
            return GrammarError(f"{self!r} cannot be compiled: {reason}")
        return error

    def _refuse_after_number(self, followed_by: tuple[str, ...]) -> None:
        """A number is read as far as it goes, so a digit after it cannot begin a stop string."""
        allowed = unpack(self.start(BYTES).mask(), BYTES.size)
        if allowed[list(b"-0123456789")].any():
            raise GrammarError(
                f"{self!r} allows a number, and a stop string among {list(followed_by)} could "
                "continue it; use stop=LEAVE or stop=EOS, or other stop strings"
            )

    def compiled(self, followed_by: tuple[str, ...]) -> str:
        """The value, then the stop strings as one terminal.

        A value is read greedily, so the composition is exact where no value can go on with the
        first character of a stop string: always, but for numbers.
        """
        schema = {"x-guidance": _WHITESPACE, **json.loads(self._emitted)}
        stops = ""
        if followed_by:
            texts = "|".join(literal(stop) for stop in followed_by)
            stops = f" STOP\nSTOP: /(?:{texts})/ {ANYTHING}"
        return f"start: value{stops}\nvalue: %json {json.dumps(schema)}"

    def parse(self, text: str) -> Any:
        """The value of a complete text: what ``json.loads`` gives, or an instance of the model.

        Where a key is repeated, the last one counts.

        Raises:
            ValueError: if the text is no JSON (it was cut), or the model's own validators refuse
                the value (``pydantic.ValidationError`` is a ``ValueError``).
        """
        if self.model is None:
            return json.loads(text)
        return _adapter(self.model).validate_json(text)


def json_schema(
    schema: Mapping[str, Any] | str | bool | type | Any, *, strict: bool = True
) -> JsonSchema:
    """Constrain the text to JSON instances of a schema, draft 2020-12 or what older ones share.

    Args:
        schema: a dict, its JSON text, a bool, or a class: a pydantic model, a ``TypedDict``, a
            dataclass, or any type that pydantic can read (classes need ``pip install pydantic``).
        strict: False turns the refusal of an unsupported keyword into a warning; the keyword is
            then not enforced.

    Every text that is generated is an instance. The converse is narrower, to keep models on track:

    - one line, with at most one space after ``,`` and ``:``, none elsewhere;
    - properties come in the order of the schema, further ones (``additionalProperties``, true by
      default as in JSON Schema, but false for classes, which name all their fields) after them;
      a further name may come twice, and then the last one counts, as for ``json.loads``;
    - numbers under a bound have no exponent; integers no fraction; strings escape only what must
      be escaped; in a ``pattern``, ``\\d``, ``\\w`` and ``\\s`` are ASCII;
    - ``date``, ``time``, ``date-time``, ``duration``, ``email``, ``hostname``, ``ipv4``, ``ipv6``,
      ``uuid`` and ``uri`` are enforced, in their plain forms.

    Raises:
        GrammarError: for a keyword that is not enforced, with its path in the schema; for a
            malformed schema, an unknown or remote or circular ``$ref``, a schema without an
            instance, one that is too large.
        TypeError: if ``schema`` is none of those.

    >>> json_schema({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3})
    json_schema({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3})
    >>> json_schema({"type": "object", "properties": {"a": {"not": {"type": "null"}}}})
    Traceback (most recent call last):
    ...
    smcprog.errors.GrammarError: json_schema: #/properties/a: the keyword "not" is not supported; \
condition(...) on the parsed value says it
    """
    model = None
    if isinstance(schema, str):
        text = schema
    elif isinstance(schema, Mapping | bool):
        text = _dumped(dict(schema) if isinstance(schema, Mapping) else schema)
    elif schema is None or isinstance(schema, int | float | list | tuple | bytes):
        raise TypeError(
            f"json_schema() takes a schema (dict, JSON text or bool) or a class, not {schema!r}"
        )
    else:
        model = schema
        text = _dumped(_model_schema(schema))
    return JsonSchema(_dumped(_loaded(text)), model, strict)


def _model_schema(model: Any) -> Any:
    try:
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        raise TypeError(
            f"a schema from the class {model!r} needs pydantic: pip install pydantic"
        ) from error
    try:
        return _adapter(model).json_schema()
    except PydanticUserError as error:
        raise GrammarError(
            f"json_schema: pydantic makes no schema of {model!r}: {error}"
        ) from error


@lru_cache(maxsize=256)
def _adapter(model: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(model)


def _dumped(schema: Any) -> str:
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        text.encode()
        return text
    except UnicodeEncodeError as error:
        raise GrammarError("json_schema: the schema holds a lone surrogate") from error
    except ValueError as error:
        raise GrammarError(f"json_schema: {error}") from error
    except TypeError as error:
        raise TypeError(f"json_schema: the schema is no JSON value: {error}") from error
    except RecursionError as error:
        raise GrammarError("json_schema: the schema is nested too deeply") from error


def _loaded(text: str) -> Any:
    def refused(constant: str) -> Any:
        raise GrammarError(f"json_schema: {constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refused)
    except json.JSONDecodeError as error:
        raise GrammarError(
            f"json_schema, line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise GrammarError("json_schema: the schema is nested too deeply") from error


class _Reader:
    """One schema, rewritten. `emitted` does all; the rest reads one schema or keyword each.

    A *group* is a set of property names: of all schemas that will be merged with one another, at
    any depth. Within a group each open object lists all of the names, so that the pattern of the
    further names is the same in all of them.
    """

    def __init__(self, root: Any, strict: bool, closed: bool) -> None:
        self._root = root
        self._strict = strict
        self._closed = closed
        self._definitions: dict[tuple[str, frozenset[str] | None], str] = {}
        self._emitted: dict[str, Emitted] = {}
        self._values = 0

    def emitted(self) -> dict[str, Any]:
        """The whole schema with its definitions."""
        root = self._read(self._root, "#", None)
        while pending := [
            key for key, name in self._definitions.items() if name not in self._emitted
        ]:
            for pointer, group in pending:
                name = self._definitions[pointer, group]
                self._emitted[name] = self._read(self._resolve(pointer), pointer, group)
        self._refuse_circles(root)
        self._refuse_depth(root)
        alive = _alive_names(self._emitted)
        if not _alive(root, alive):
            raise GrammarError(
                "json_schema: the schema has no instance" + (" that ends" if self._emitted else "")
            )
        definitions = {
            name: _without_dead(schema, alive)
            for name, schema in self._emitted.items()
            if name in alive
        }
        whole = _without_dead(root, alive)
        assert whole is not False
        return {**({} if whole is True else whole), "$defs": definitions}

    def _error(self, path: str, reason: str) -> GrammarError:
        return GrammarError(f"json_schema: {path}: {reason}")

    def _unsupported(self, path: str, keyword: str, reason: str = "is not supported") -> None:
        remedy = _REMEDIES.get(keyword)
        message = f'json_schema: {path}: the keyword "{keyword}" {reason}' + (
            f"; {remedy}" if remedy else ""
        )
        if self._strict:
            raise GrammarError(message)
        warnings.warn(f"{message}; it is not enforced", UserWarning, stacklevel=6)

    def _read(
        self,
        schema: Any,
        path: str,
        group: frozenset[str] | None,
        merged: tuple[str, ...] | None = None,
    ) -> Emitted:
        """One schema. ``merged`` where it is merged with others: the references that led here."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._error(path, f"a schema is an object or a bool, not {schema!r}")
        if path.count("/") > 2 * _MAX_DEPTH or len(merged or ()) > _MAX_DEPTH:
            raise self._error(path, f"the schema is nested more than {_MAX_DEPTH} deep; use $ref")
        self._refuse_keywords(schema, path)
        base = {key: value for key, value in schema.items() if key in _ASSERTIONS}
        in_place = [key for key in schema if key in _IN_PLACE]
        if merged is None and self._merges(schema, base, in_place):
            merged = ()
            group = frozenset(self._names(schema, path)) if group is None else group
        parts = self._assertions(base, path, group) if base else []
        for key in in_place:
            here = f"{path}/{key}"
            if key == "$ref":
                parts.append(self._reference(schema, path, group, merged))
                continue
            branches = schema[key]
            if not isinstance(branches, list) or not branches:
                raise self._error(here, "a list of schemas is needed")
            if key == "oneOf":
                branches = self._disjoint_branches(schema, here)
            read = [
                self._read(branch, f"{here}/{i}", group, merged)
                for i, branch in enumerate(branches)
            ]
            parts += read if key == "allOf" else [_any_of(read)]
        return _all_of(parts)

    def _refuse_keywords(self, schema: dict[str, Any], path: str) -> None:
        for key in schema:
            if key in _ASSERTIONS or key in _IN_PLACE or key.startswith("x-"):
                continue
            if key == "id" and isinstance(schema[key], str) and path == "#":
                continue
            if key not in _ANNOTATIONS:
                known = key in _REMEDIES or key.startswith("$") or key in ("minContains",)
                known = known or key in ("maxContains", "extends", "disallow")
                self._unsupported(path, key, "is not supported" if known else "is not known")
        if "$id" in schema and path != "#":
            self._unsupported(path, "$id", "inside a schema is not supported")
        dialect = schema.get("$schema")
        if dialect is not None and not (
            isinstance(dialect, str) and _DIALECT.fullmatch(dialect) and path == "#"
        ):
            self._unsupported(path, "$schema", f"names an unknown dialect: {dialect!r}")

    def _merges(self, schema: dict[str, Any], base: dict[str, Any], in_place: list[str]) -> bool:
        if not in_place:
            return False
        several = len(in_place) > 1 or len(schema.get("allOf", ())) > 1 or "discriminator" in schema
        return several or bool(base)

    # References ---------------------------------------------------------------------------------

    def _reference(
        self,
        schema: dict[str, Any],
        path: str,
        group: frozenset[str] | None,
        merged: tuple[str, ...] | None,
    ) -> Emitted:
        pointer = self._pointer(schema["$ref"], path)
        beside = [key for key in schema if key in _ASSERTIONS or key in _IN_PLACE]
        if len(beside) > 1 and "draft-0" in str(self._root.get("$schema")):
            raise self._error(path, "keywords beside $ref are ignored in old drafts; remove them")
        if merged is None:
            name = f"d{len(self._definitions)}"
            return {"$ref": f"#/$defs/{self._definitions.setdefault((pointer, group), name)}"}
        if pointer in merged:
            raise self._error(
                f"{path}/$ref",
                f"{pointer} refers to itself where it is merged with other keywords; that is not "
                "supported",
            )
        return self._read(self._resolve(pointer), pointer, group, (*merged, pointer))

    def _pointer(self, reference: Any, path: str) -> str:
        """The JSON pointer that a $ref means, in one spelling."""
        here = f"{path}/$ref"
        if not isinstance(reference, str):
            raise self._error(here, f"a reference is a string, not {reference!r}")
        base = self._root.get("$id", self._root.get("id")) if isinstance(self._root, dict) else None
        if isinstance(base, str) and base.rstrip("#") and reference.startswith(base.rstrip("#")):
            reference = reference[len(base.rstrip("#")) :] or "#"
        if not reference.startswith("#"):
            raise self._error(
                here, f"{reference!r} is not in this schema; copy what it means into $defs"
            )
        pointer = unquote(reference)
        if pointer != "#" and not pointer.startswith("#/"):
            raise self._error(
                here, f"{reference!r} is an anchor; write the path, as in '#/$defs/name'"
            )
        try:
            self._resolve(pointer)
        except LookupError as error:
            raise self._error(here, f"{reference!r} leads nowhere") from error
        return pointer

    def _resolve(self, pointer: str) -> Any:
        at = self._root
        for token in pointer.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and re.fullmatch("0|[1-9][0-9]*", token):
                at = at[int(token)]
            elif isinstance(at, dict):
                if "$id" in at and at is not self._root:
                    raise self._error(pointer, "a path through another $id is not supported")
                at = at[token]
            else:
                raise LookupError(pointer)
        return at

    def _refuse_circles(self, root: Emitted) -> None:
        """A schema that applies itself to the same value says nothing that can be enforced."""
        done: set[str] = set()
        for start in self._emitted:
            stack = [(start, iter(_in_place_names(self._emitted[start])))]
            while stack and start not in done:
                name, inner = stack[-1]
                target = next(inner, None)
                if target is None:
                    done.add(name)
                    stack.pop()
                elif any(target == open_name for open_name, _ in stack):
                    pointer = next(p for (p, _), n in self._definitions.items() if n == target)
                    raise self._error(pointer, "a $ref leads back to itself without a base")
                elif target not in done:
                    stack.append((target, iter(_in_place_names(self._emitted[target]))))

    def _refuse_depth(self, root: Emitted) -> None:
        """llguidance follows references by recursion, and would overflow its stack."""
        seen: set[str] = set()
        stack = [(0, _references(root))]
        while stack:
            level, inner = stack[-1]
            name, further = next(inner, ("", 0))
            if not name:
                stack.pop()
            elif name not in seen:
                if level + further > _MAX_REFERENCES:
                    raise GrammarError("json_schema: the references lead too deep")
                seen.add(name)
                stack.append((level + further, _references(self._emitted[name])))

    def _names(self, schema: Any, path: str) -> set[str]:
        """All property names of a schema, at any depth and through references."""
        names: set[str] = set()
        seen: set[str] = set()
        stack = [schema]
        while stack:
            schema = stack.pop()
            if not isinstance(schema, dict):
                continue
            properties = schema.get("properties", {})
            required = schema.get("required", [])
            names.update(properties if isinstance(properties, dict) else ())
            names.update(name for name in required if isinstance(name, str))
            if isinstance(schema.get("discriminator"), dict):
                names.add(schema["discriminator"].get("propertyName", ""))
            stack += _subschemas(schema)
            if "$ref" in schema:
                pointer = self._pointer(schema["$ref"], path)
                if pointer not in seen:
                    seen.add(pointer)
                    stack.append(self._resolve(pointer))
        return names

    # oneOf --------------------------------------------------------------------------------------

    def _disjoint_branches(self, schema: dict[str, Any], here: str) -> list[Any]:
        branches: list[Any] = schema["oneOf"]
        discriminator = schema.get("discriminator")
        if isinstance(discriminator, dict) and isinstance(discriminator.get("propertyName"), str):
            tag = {"required": [discriminator["propertyName"]]}
            branches = [{"allOf": [branch, tag]} for branch in branches]
        if len(branches) > 100:
            self._unsupported(here.removesuffix("/oneOf"), "oneOf", "has more than 100 branches")
        conjuncts = [list(self._conjuncts(branch, here, 8)) for branch in branches]
        for i, one in enumerate(conjuncts[:100]):
            for j, other in enumerate(conjuncts[:i]):
                if not self._disjoint(one, other, here, 6):
                    self._unsupported(
                        here.removesuffix("/oneOf"),
                        "oneOf",
                        f"cannot be enforced, since its branches {j} and {i} are not seen to "
                        "exclude each other; use anyOf, or a required property of different const",
                    )
                    return branches
        return branches

    def _conjuncts(self, schema: Any, path: str, depth: int) -> Iterator[dict[str, Any]]:
        """Schemas that all hold where this one holds."""
        if schema is False:
            yield {"enum": []}
        if not isinstance(schema, dict) or not depth:
            return
        yield schema
        if "$ref" in schema:
            target = self._resolve(self._pointer(schema["$ref"], path))
            yield from self._conjuncts(target, path, depth - 1)
        inner = schema.get("allOf")
        for part in inner if isinstance(inner, list) else ():
            yield from self._conjuncts(part, path, depth - 1)

    def _disjoint(
        self, one: list[dict[str, Any]], other: list[dict[str, Any]], path: str, depth: int
    ) -> bool:
        """Whether no value satisfies both conjunctions: proved, or False."""
        if not depth:
            return False
        for first, second in ((one, other), (other, one)):
            for schema in first:
                for key in ("anyOf", "oneOf"):
                    branches = schema.get(key)
                    if isinstance(branches, list) and branches:
                        split = [list(self._conjuncts(b, path, 8)) for b in branches]
                        if all(self._disjoint(s, second, path, depth - 1) for s in split):
                            return True
        types, other_types = _types_of(one), _types_of(other)
        if not types & other_types:
            return True
        values, other_values = _values_of(one), _values_of(other)
        if values is not None and other_values is not None:
            spelled = {_canonical(value) for value in other_values}
            return not any(_canonical(value) in spelled for value in values)
        if types & other_types == {"object"}:
            return self._disjoint_objects(one, other, path, depth)
        return False

    def _disjoint_objects(
        self, one: list[dict[str, Any]], other: list[dict[str, Any]], path: str, depth: int
    ) -> bool:
        required, other_required = _required_of(one), _required_of(other)
        for name in required | other_required:
            mine = [c for p in _property(one, name) for c in self._conjuncts(p, path, 8)]
            theirs = [c for p in _property(other, name) for c in self._conjuncts(p, path, 8)]
            if self._disjoint(mine, theirs, path, depth - 1):
                return True
        return False

    # Assertions ---------------------------------------------------------------------------------

    def _assertions(
        self, base: dict[str, Any], path: str, group: frozenset[str] | None
    ) -> list[Emitted]:
        """The keywords of one schema that assert something of their own."""
        types = self._types(base, path)
        others = {key: base[key] for key in base if key not in ("type", "enum", "const")}
        if "enum" in base or "const" in base:
            values = self._enumerated(base, path, types)
            if not values:
                return [False]
            if (others or group is not None) and any(map(_holds_object, values)):
                where = "enum" if "enum" in base else "const"
                raise self._error(
                    f"{path}/{where}", "objects among the values exclude keywords beside them"
                )
            return [{"enum": values}, *(self._assertions(others, path, group) if others else [])]
        emitted: dict[str, Any] = {}
        number = self._number(base, path, types)
        types = number.pop("type")
        if not types:
            return [False]
        if types != set(_TYPES):
            emitted["type"] = [name for name in _TYPES if name in types]
        emitted |= number
        emitted |= self._string(base, path)
        emitted |= self._array(base, path, group)
        emitted |= self._object(base, path, group)
        parts: list[Emitted] = [emitted] if emitted else [True]
        if "format" in base:
            parts.append(self._format(base["format"], path))
        return parts

    def _types(self, base: dict[str, Any], path: str) -> set[str]:
        named = base.get("type", list(_TYPES))
        types = [named] if isinstance(named, str) else named
        if not isinstance(types, list) or not types or not all(t in _TYPES for t in types):
            raise self._error(f"{path}/type", f"{named!r} is none of {', '.join(_TYPES)}")
        return set(types)

    def _enumerated(self, base: dict[str, Any], path: str, types: set[str]) -> list[Any]:
        values = base["enum"] if "enum" in base else [base["const"]]
        if not isinstance(values, list):
            raise self._error(f"{path}/enum", "a list of values is needed")
        self._values += len(values)
        if self._values > _MAX_VALUES:
            raise self._error(f"{path}/enum", f"more than {_MAX_VALUES} values are too many")
        if "enum" in base and "const" in base:
            wanted = _canonical(base["const"])
            values = [value for value in values if _canonical(value) == wanted]
        where = f"{path}/enum" if "enum" in base else f"{path}/const"
        values = [self._plain(value, where, 0) for value in values]
        if "number" in types:
            types = types | {"integer"}
        return [value for value in values if _type_of(value) in types]

    def _plain(self, value: Any, path: str, depth: int) -> Any:
        """A value with its numbers spelled plainly: 1.0 as 1."""
        if depth > _MAX_DEPTH:
            raise self._error(path, f"the value is nested more than {_MAX_DEPTH} deep")
        if isinstance(value, dict):
            return {k: self._plain(v, path, depth + 1) for k, v in value.items()}
        if isinstance(value, list):
            return [self._plain(item, path, depth + 1) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._exact_value(value, path)
        return value

    def _exact(self, value: Any, path: str) -> int | float:
        """A number that double precision holds and that is written in few digits."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self._error(path, f"a finite number is needed, not {value!r}")
        if value == int(value):
            value = int(value)
        if abs(value) > _EXACT:
            raise self._error(path, f"{value!r} is beyond 2**53, where numbers are not exact")
        if value and abs(value) < _TINY:
            raise self._error(path, f"{value!r} has too many decimals")
        return value

    def _exact_value(self, value: Any, path: str) -> int | float:
        """A number that can be spelled out: llguidance reads 15 digits of a fraction."""
        value = self._exact(value, path)
        if isinstance(value, float) and Decimal(repr(value)) != Context(prec=15).create_decimal(
            repr(value)
        ):
            raise self._error(path, f"{value!r} has more than 15 digits")
        return value

    def _number(self, base: dict[str, Any], path: str, types: set[str]) -> dict[str, Any]:
        """The bounds and multiples, and the types that are left."""
        emitted: dict[str, Any] = {}
        bounds = {key: self._exact(base[key], f"{path}/{key}") for key in _BOUNDS if key in base}
        lows: list[int | float] = []
        highs: list[int | float] = []
        step = self._multiple_of(base, path)
        if "number" in types:
            types = types - {"integer"}
            if step:  # a multiple of an integer is an integer, and has a spelling without a point
                types = types - {"number"} | {"integer"}
        if step and "integer" in types:
            emitted["multipleOf"] = step
        if bounds and "integer" in types:
            lows = [ceil(bounds[key]) for key in ("minimum",) if key in bounds]
            lows += [floor(bounds[key]) + 1 for key in ("exclusiveMinimum",) if key in bounds]
            highs = [floor(bounds[key]) for key in ("maximum",) if key in bounds]
            highs += [ceil(bounds[key]) - 1 for key in ("exclusiveMaximum",) if key in bounds]
            first = step or 1
            if lows and highs and -(-max(lows) // first) * first > min(highs):
                types = types - {"integer"}
        elif bounds and "number" in types:
            for key, bound in bounds.items():
                at_least = key in ("minimum", "exclusiveMinimum")
                inner = _inward(bound, at_least, exclusive=key.startswith("exclusive"))
                (lows if at_least else highs).append(inner)
            if lows and highs and max(lows) > min(highs):
                types = types - {"number"}
        emitted |= {"minimum": max(lows)} if lows else {}
        emitted |= {"maximum": min(highs)} if highs else {}
        if not types & {"integer", "number"}:
            emitted = {}
        return {"type": types, **emitted}

    def _multiple_of(self, base: dict[str, Any], path: str) -> int | None:
        if "multipleOf" not in base:
            return None
        step = base["multipleOf"]
        if isinstance(step, bool) or not isinstance(step, int | float) or not step > 0:
            raise self._error(f"{path}/multipleOf", f"a number > 0 is needed, not {step!r}")
        if step != int(step) or step > 1_000_000:
            self._unsupported(path, "multipleOf", "is supported for integers up to a million")
            return None
        return int(step)

    def _count(self, base: dict[str, Any], key: str, path: str) -> dict[str, Any]:
        if key not in base:
            return {}
        count = base[key]
        whole = isinstance(count, int | float) and not isinstance(count, bool)
        if not whole or count < 0 or count != int(count):
            raise self._error(f"{path}/{key}", f"a whole number is needed, not {count!r}")
        if count > 1_000_000_000:
            raise self._error(f"{path}/{key}", f"{count} is too large")
        return {key: int(count)}

    def _string(self, base: dict[str, Any], path: str) -> dict[str, Any]:
        emitted = self._count(base, "minLength", path) | self._count(base, "maxLength", path)
        if "pattern" in base:
            emitted["pattern"] = self._pattern(base["pattern"], f"{path}/pattern")
        return emitted

    def _pattern(self, pattern: Any, path: str) -> str:
        if not isinstance(pattern, str):
            raise self._error(path, f"a pattern is a string, not {pattern!r}")
        try:
            return f"^{_search_pattern(pattern)}$"
        except GrammarError as error:
            raise self._error(path, str(error)) from error

    def _format(self, name: Any, path: str) -> Emitted:
        if not isinstance(name, str) or name not in _FORMATS:
            self._unsupported(path, "format", f"{name!r} is not supported")
            return True
        return dict(_FORMATS[name])

    def _array(
        self, base: dict[str, Any], path: str, group: frozenset[str] | None
    ) -> dict[str, Any]:
        emitted: dict[str, Any] = {}
        if "prefixItems" in base:
            schemas = base["prefixItems"]
            if not isinstance(schemas, list):
                raise self._error(f"{path}/prefixItems", "a list of schemas is needed")
            emitted["prefixItems"] = [
                self._read(schema, f"{path}/prefixItems/{i}", group)
                for i, schema in enumerate(schemas)
            ]
        if "items" in base:
            if isinstance(base["items"], list):
                raise self._error(f"{path}/items", "a list is of an old draft; use prefixItems")
            emitted["items"] = self._read(base["items"], f"{path}/items", group)
        emitted |= self._count(base, "minItems", path) | self._count(base, "maxItems", path)
        unique = base.get("uniqueItems", False)
        if not isinstance(unique, bool):
            raise self._error(f"{path}/uniqueItems", "a bool is needed")
        if unique and emitted.get("maxItems", 2) > 1:
            self._unsupported(path, "uniqueItems")
        return emitted

    def _object(
        self, base: dict[str, Any], path: str, group: frozenset[str] | None
    ) -> dict[str, Any]:
        if not base.keys() & _OBJECT:
            # Where it is merged, an object that says nothing merges rightly with all.
            return {}
        properties = self._schemas(base, "properties", path, group)
        patterns = self._schemas(base, "patternProperties", path, group)
        patterns = {
            self._pattern(pattern, f"{path}/patternProperties/{_escaped(pattern)}"): schema
            for pattern, schema in patterns.items()
        }
        required = base.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._error(f"{path}/required", "a list of names is needed")
        further: Emitted = not (self._closed and "properties" in base)
        if "additionalProperties" in base:
            here = f"{path}/additionalProperties"
            further = self._read(base["additionalProperties"], here, group)
        emitted: dict[str, Any] = self._property_count(base, path, required)
        if patterns:
            if group is not None:
                self._unsupported(path, "patternProperties", "merged with others is not supported")
            if further is not False:
                self._unsupported(
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
        self, base: dict[str, Any], key: str, path: str, group: frozenset[str] | None
    ) -> dict[str, Emitted]:
        schemas = base.get(key, {})
        if not isinstance(schemas, dict):
            raise self._error(f"{path}/{key}", "an object of schemas is needed")
        return {
            name: self._read(schema, f"{path}/{key}/{_escaped(name)}", group)
            for name, schema in schemas.items()
        }

    def _property_count(
        self, base: dict[str, Any], path: str, required: list[str]
    ) -> dict[str, Any]:
        low = self._count(base, "minProperties", path)
        if low and low["minProperties"] <= len(set(required)):
            low = {}
        if low and low["minProperties"] > 1:
            # A further name may be repeated, which would count twice.
            self._unsupported(path, "minProperties", "above 1 is not supported; use required")
            low = {}
        return low | self._count(base, "maxProperties", path)

    def _further_names(self, names: Iterable[str], path: str) -> str:
        pattern = _all_but(names)
        if len(pattern) > _MAX_NAMES_PATTERN:
            raise self._error(
                path,
                "too many properties to keep further ones apart; use additionalProperties: false",
            )
        return pattern


# What an emitted schema says ----------------------------------------------------------------------


def _all_of(parts: list[Emitted]) -> Emitted:
    parts = [part for part in parts if part is not True]
    if any(part is False for part in parts):
        return False
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def _any_of(parts: list[Emitted]) -> Emitted:
    parts = [part for part in parts if part is not False]
    if any(part is True for part in parts):
        return True
    return {"anyOf": parts} if len(parts) > 1 else parts[0] if parts else False


def _alive_names(definitions: dict[str, Emitted]) -> set[str]:
    """The definitions with a finite instance: the least fixed point."""
    alive: set[str] = set()
    while True:
        more = {
            name
            for name, schema in definitions.items()
            if name not in alive and _alive(schema, alive)
        }
        if not more:
            return alive
        alive |= more


def _alive(schema: Emitted, names: set[str]) -> bool:
    """Whether the schema can have an instance, of definitions in ``names`` only."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/$defs/") in names
    if "anyOf" in schema:
        return any(_alive(part, names) for part in schema["anyOf"])
    if "allOf" in schema:
        return all(_alive(part, names) for part in schema["allOf"])
    types = set(schema.get("type", _TYPES))
    if "enum" in schema or types - {"array", "object"}:
        return True
    return ("array" in types and _alive_array(schema, names)) or (
        "object" in types and _alive_object(schema, names)
    )


def _alive_array(schema: dict[str, Any], names: set[str]) -> bool:
    count = schema.get("minItems", 0)
    first = schema.get("prefixItems", [])
    return all(_alive(item, names) for item in first[:count]) and (
        count <= len(first) or _alive(schema.get("items", True), names)
    )


def _alive_object(schema: dict[str, Any], names: set[str]) -> bool:
    properties = schema.get("properties", {})
    # A required name that is not listed is left to a pattern, and those of a group say false.
    unlisted = any(part is not False for part in schema.get("patternProperties", {}).values())
    unlisted = unlisted or schema.get("additionalProperties", True) is not False
    return all(_alive(properties.get(name, unlisted), names) for name in schema.get("required", ()))


def _without_dead(schema: Emitted, alive: set[str]) -> Emitted:
    """The schema with ``false`` for each reference to a definition without an instance."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema if schema["$ref"].removeprefix("#/$defs/") in alive else False
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("items", "additionalProperties"):
            value = _without_dead(value, alive)
        elif key in ("anyOf", "allOf", "prefixItems"):
            value = [_without_dead(part, alive) for part in value]
        elif key in ("properties", "patternProperties"):
            value = {name: _without_dead(part, alive) for name, part in value.items()}
        result[key] = value
    if "anyOf" in result:
        return _any_of(result["anyOf"])
    return _all_of(result["allOf"]) if "allOf" in result else result


def _in_place_names(schema: Emitted) -> Iterator[str]:
    """The definitions that apply to the same value as the schema itself."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix("#/$defs/")
        for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
            yield from _in_place_names(part)


def _references(schema: Emitted, level: int = 1) -> Iterator[tuple[str, int]]:
    """All definitions that are referred to, each with its depth in the schema."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix("#/$defs/"), level
        for inner in _subschemas(schema):
            yield from _references(inner, level + 1)


# What a source schema says ------------------------------------------------------------------------


def _subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    for key in ("items", "additionalProperties"):
        yield schema.get(key)
    for key in ("prefixItems", "allOf", "anyOf", "oneOf"):
        inner = schema.get(key)
        yield from inner if isinstance(inner, list) else ()
    for key in ("properties", "patternProperties"):
        inner = schema.get(key)
        yield from inner.values() if isinstance(inner, dict) else ()


def _type_of(value: Any) -> str:
    """The type of a value; of a number, the narrower one. See `_Reader._enumerated`."""
    if value is None:
        return "null"
    for kinds, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kinds):
            return name
    return "array" if isinstance(value, list) else "object"


def _holds_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_holds_object, value)))


def _canonical(value: Any) -> str:
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


def _types_of(conjuncts: list[dict[str, Any]]) -> set[str]:
    """The types of the values that satisfy all; integers count as numbers."""
    types = set(_TYPES) - {"integer"}
    for schema in conjuncts:
        named = schema.get("type")
        if named is not None:
            listed = [named] if isinstance(named, str) else named
            types &= {"number" if name == "integer" else name for name in listed}
        values = _values_of([schema])
        if values is not None:
            found = {_type_of(value) for value in values}
            types &= {"number" if name == "integer" else name for name in found}
    return types


def _values_of(conjuncts: list[dict[str, Any]]) -> list[Any] | None:
    for schema in conjuncts:
        if "const" in schema:
            return [schema["const"]]
    for schema in conjuncts:
        if isinstance(schema.get("enum"), list):
            return list(schema["enum"])
    return None


def _required_of(conjuncts: list[dict[str, Any]]) -> set[str]:
    names: set[str] = set()
    for schema in conjuncts:
        listed = schema.get("required")
        names.update(n for n in (listed if isinstance(listed, list) else ()) if isinstance(n, str))
    return names


def _property(conjuncts: list[dict[str, Any]], name: str) -> Iterator[Any]:
    """The schemas that a property of the name satisfies."""
    for schema in conjuncts:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            yield properties[name]
        elif "additionalProperties" in schema and "patternProperties" not in schema:
            yield schema["additionalProperties"]


# Numbers, names, patterns -------------------------------------------------------------------------


def _inward(bound: int | float, at_least: bool, exclusive: bool) -> int | float:
    """An inclusive bound of 15 digits at or within a bound.

    Of more digits, llguidance may read the neighbouring float.
    """
    context = Context(prec=15, rounding=ROUND_CEILING if at_least else ROUND_FLOOR)
    exact = Decimal(repr(bound))
    inner = context.plus(exact)
    if exclusive and inner == exact:
        inner = context.next_plus(exact) if at_least else context.next_minus(exact)
    if 0 < abs(inner) < Decimal(_TINY):
        towards = 1 if at_least else -1
        inner = Decimal(repr(_TINY)) * towards if inner * towards > 0 else Decimal(0)
    return int(inner) if inner == int(inner) else float(inner)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _all_but(names: Iterable[str]) -> str:
    """A regular expression (Rust dialect) of all texts but these."""
    names = set(names)
    following: dict[str, set[str]] = {"": set()}
    for name in names:
        for i, char in enumerate(name):
            following.setdefault(name[:i], set()).add(char)
        following.setdefault(name, set())
    texts = []
    for prefix in sorted(following):
        if prefix not in names:
            texts.append(literal(prefix))
        chars = "".join(literal(char) for char in sorted(following[prefix]))
        one = f"[^{chars}{_REFUSED_CHAR}]" if chars else "(?s:.)"
        texts.append(f"{literal(prefix)}{one}(?s:.*)")
    return f"^(?:{'|'.join(texts)})$"


_NOT_ECMA = re.compile(
    r"(?:[^\\]|\\.)*?(\\[aANUZz1-9]|\\0[0-9]|\{,|\(\?P|\(\?[#aiLmsux-])", re.DOTALL
)


@lru_cache(maxsize=1024)
def _search_pattern(pattern: str) -> str:
    """The texts in which the pattern is found, for ECMA 262 and for Python alike.

    Raises:
        GrammarError: if the pattern needs more than a regular language, or is read differently.
    """
    if different := _NOT_ECMA.match(pattern):
        raise GrammarError(f"{different[1]} is not read alike by ECMA 262 and by Python")
    return f"(?:{_SearchTranslation(pattern).text})"


class _SearchTranslation(_Translation):
    """A pattern that may match anywhere, but for the anchors of each alternative."""

    def _sequence(self, flags: int) -> str:
        start = self._at
        body = super()._sequence(flags)
        if self._depth:
            return body
        source = self._pattern[start : self._at]
        escapes = len(source[:-1]) - len(source[:-1].rstrip("\\"))
        left = "" if source.startswith("^") else "(?s:.*)"
        right = "" if source.endswith("$") and escapes % 2 == 0 else "(?s:.*)"
        return f"{left}{body}{right}"

    def _anchor(self, first: bool) -> None:
        at = self._at
        try:
            super()._anchor(first)
        except GrammarError as error:
            raise self._error("an anchor inside the pattern is not supported", at) from error

    def _item(self, flags: int) -> str:
        if self._looking_at("."):
            self._at += 1
            return r"[^\x{a}\x{d}\x{2028}\x{2029}]"
        if self._looking_at("["):
            return _agreed(self._take(_CLASS))
        return super()._item(flags)

    def _escape(self, flags: int) -> str:
        if self._looking_at("\\d", "\\D", "\\w", "\\W", "\\s", "\\S"):
            self._at += 2
            return _agreed(self._pattern[self._at - 2 : self._at])
        return super()._escape(flags)


def _agreed(source: str) -> str:
    """The characters of a class for ECMA 262, whose \\d is ASCII, and for Python, whose is not."""
    ascii_only, everything = _characters(source, re.ASCII), _characters(source, 0)
    refused = _REFUSED_CHAR if ascii_only == everything else rf"{_REFUSED_CHAR}\x{{feff}}"
    return f"[{ascii_only}&&{everything}&&[^{refused}]]"
