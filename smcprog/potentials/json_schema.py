"""Constrain a text to JSON instances of a schema.

The masks come from llguidance's compiler of JSON Schema. It is good, but it was measured (against
the JSON-Schema-Test-Suite, with the ``jsonschema`` library as the judge) to let some invalid
instances through. So a schema is first rewritten into the part that is enforced exactly
(`json_reader`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from smcprog.errors import GrammarError
from smcprog.potentials.base import Matcher
from smcprog.potentials.json_reader import Reader
from smcprog.potentials.matcher import ANYTHING, CompiledConstraint
from smcprog.potentials.pattern import literal
from smcprog.vocabulary import BYTES, Vocabulary, unpack

_WHITESPACE = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}


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
        reader = Reader(_loaded(self.text), strict=self.strict, closed=self.model is not None)
        try:
            object.__setattr__(self, "_emitted", json.dumps(reader.emitted()))
        except RecursionError as error:
            raise GrammarError("json_schema: the schema is nested too deeply") from error
        for message in reader.refusals.ignored:
            warnings.warn(message, UserWarning, stacklevel=4)

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
        """In terms of the schema, not of the grammar that it became."""
        reason = str(error)
        if "Unsatisfiable schema: " in reason:
            return GrammarError(
                f"{self!r} has no instance: {reason.split('Unsatisfiable schema: ', 1)[1]}"
            )
        if "failed to compile JSON schema: " in reason:
            reason = reason.split("failed to compile JSON schema: ", 1)[1]
            if reason.startswith("panic"):
                reason = "it is too large"
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

    The `Text` that is drawn has the object as `.parsed`.

    Every text that is generated is an instance. What cannot be enforced is refused: among others
    ``contains``, ``uniqueItems``, ``patternProperties`` of an open object, steps of ``multipleOf``
    with a fraction, ``unevaluated...`` beside references and combinations; and ``not``, ``if`` and
    an overlapping ``oneOf`` around a ``pattern`` or the items of an array. The converse is
    narrower, to keep models on track:

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

    >>> pair = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    >>> @smc_program
    ... def two():
    ...     prompt("Two numbers:")
    ...     return gen(json_schema(pair)).parsed
    >>> engine.run(two(), particles=4, seed=0).best in ([1, 1], [1, 2], [2, 1], [2, 2])
    True
    >>> json_schema({"type": "object", "properties": {"a": {"uniqueItems": True}}})
    Traceback (most recent call last):
    ...
    smcprog.errors.GrammarError: json_schema: #/properties/a: the keyword "uniqueItems" is not \
supported; condition(...) on the parsed value says it
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
    except GrammarError:
        raise
    except ValueError as error:
        raise GrammarError("json_schema: a number has too many digits") from error
    except RecursionError as error:
        raise GrammarError("json_schema: the schema is nested too deeply") from error
