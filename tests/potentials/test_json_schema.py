"""Every text is an instance, and no mask is too wide or too narrow; what is not enforced is named.

The `jsonschema` library is the judge of random schemas; small finite ones are compared with the
set of all their texts.
"""

import copy
import dataclasses
import gc
import importlib
import itertools
import json
import random
import re
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from smcprog.errors import GrammarError
from smcprog.potentials.json_schema import json_schema
from smcprog.vocabulary import BYTES, Vocabulary, unpack

PIECES = ['{"', '":', '": ', ", ", '"]', '"}', "}}", "]}", "[]", "{}", "null", "true", "fa", "lse"]
PIECES += ["\\u00", "\\n", "12", "0.", "é", "\\ud8", '"a"', '"b', ',"', "[1", "-1", "\\\\", '}\n"']
TOKENS = Vocabulary(
    [*(bytes([i]) for i in range(256)), *(piece.encode() for piece in PIECES), b"\xc3", b'\xa9"']
)
LIKED = set(b'{}[]:,"\\u00612ab') | set(range(256, TOKENS.size))


def allowed(matcher) -> list[int]:
    return np.flatnonzero(unpack(matcher.mask(), TOKENS.size)).tolist()


def accepted(constraint, text: str, followed_by=()) -> bool:
    matcher = constraint.start(BYTES, followed_by)
    return all(map(matcher.advance, text.encode())) and matcher.accepts()


def compact(value) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def accepts_value(schema, value) -> bool:
    return accepted(json_schema(schema), compact(value))


def random_text(constraint, rng: random.Random) -> bytes | None:
    """A walk over the masks that makes for the end after a while; None if it does not get there."""
    matcher = constraint.start(TOKENS)
    text = b""
    eager = rng.random()
    for step in range(300):
        tokens = allowed(matcher)
        if matcher.accepts() and (not tokens or step > 40 or rng.random() < 0.2):
            return text
        assert tokens, f"a dead end after {text!r}"
        preferred = [t for t in tokens if t in LIKED] if rng.random() < eager else []
        if step > 40:
            preferred = [t for t in map(ord, '"}]') if t in tokens]
        token = rng.choice(preferred or tokens)
        assert matcher.advance(token)
        text += TOKENS.tokens[token]
    return None


# Random schemas, judged by jsonschema -------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", 'q"', "\\", "é", ""])
NUMBERS = st.one_of(
    st.integers(-30, 30),
    st.sampled_from([0.5, -0.5, 1.25, 0.1, -2.75, 0.001, 1e-9, 12345.678, 2**40, 99, -100]),
)
DEFINITIONS = {
    "tree": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"type": "integer", "maximum": 5}},
    },
    "text": {"type": "string", "pattern": '[^\\W"]$', "maxLength": 4},
    "lists": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/lists"}}, {"const": 1}]},
    "closed": {"properties": {"a": {}, 'q"': {"type": "null"}}, "additionalProperties": False},
    "never": {"type": "object", "properties": {"a": {"$ref": "#/$defs/never"}}, "required": ["a"]},
}


def some(**keywords) -> st.SearchStrategy:
    """A schema with a random part of these keywords."""
    return st.fixed_dictionaries({}, optional=keywords)


PATTERNS = ["^a|b$", '[^"]', "[^\\\\]$", r"^\d+$", r"\S", "^[^a]*$", "^.$", "(?:ab)+", "^(a|é)?b"]
LEAVES = st.one_of(
    st.booleans(),
    some(type=st.sampled_from(["string", "integer", "number", "boolean", "null"])),
    some(
        type=st.sampled_from(["integer", "number", ["integer", "string"], ["number", "null"]]),
        minimum=NUMBERS,
        maximum=NUMBERS,
    ),
    some(
        type=st.sampled_from(["integer", "number"]),
        exclusiveMinimum=NUMBERS,
        exclusiveMaximum=NUMBERS,
        multipleOf=st.integers(1, 12),
    ),
    some(
        type=st.just("string"),
        minLength=st.integers(0, 3),
        maxLength=st.integers(1, 5),
        pattern=st.sampled_from(PATTERNS),
    ),
    some(enum=st.lists(st.sampled_from([1, 2, -1.5, "a", 'x"\\', None, [1], True, 1e-7]))),
    st.sampled_from([{"const": {"a": 1, "b": [None]}}, {"format": "date"}, {"enum": ["a", "ab"]}]),
    st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in DEFINITIONS]),
)


def larger(inner: st.SearchStrategy) -> st.SearchStrategy:
    objects = some(
        type=st.sampled_from(["object", ["object", "null"]]),
        properties=st.dictionaries(NAMES, inner, max_size=3),
        required=st.lists(NAMES, max_size=2, unique=True),
        additionalProperties=st.one_of(st.booleans(), inner),
        maxProperties=st.integers(0, 3),
        minProperties=st.integers(0, 1),
    )
    arrays = some(
        type=st.just("array"),
        items=inner,
        prefixItems=st.lists(inner, min_size=1, max_size=2),
        minItems=st.integers(0, 2),
        maxItems=st.integers(0, 3),
    )
    several = st.lists(inner, min_size=1, max_size=2)
    merged = st.builds(
        lambda base, more: {**base, **more},
        st.one_of(objects, arrays, LEAVES.filter(lambda leaf: isinstance(leaf, dict))),
        some(allOf=several, anyOf=several, oneOf=several)
        | st.fixed_dictionaries({"not": inner})
        | some(**{"if": inner, "then": inner, "else": inner})
        | some(
            dependentRequired=st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
            dependentSchemas=st.dictionaries(NAMES, inner, max_size=2),
        ),
    )
    patterns = st.fixed_dictionaries(
        {"patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2)},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": st.just(False),
        },
    )
    named = st.builds(
        lambda base, names: {**base, "propertyNames": names},
        objects,
        some(type=st.just("string"), enum=st.lists(NAMES, max_size=3))
        | st.fixed_dictionaries({"pattern": st.sampled_from(PATTERNS)}),
    )
    return st.one_of(objects, objects, arrays, merged, merged, merged, patterns, named)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(LEAVES, larger, max_leaves=6), st.integers(0, 2**32))
def test_every_text_is_an_instance(schema, seed):
    judges = importlib.import_module("jsonschema")
    if isinstance(schema, dict):
        schema = {**schema, "$defs": DEFINITIONS}
    try:
        constraint = json_schema(schema)
        constraint.start(TOKENS)
    except GrammarError:
        assume(False)
    judge = judges.Draft202012Validator(schema, format_checker=judges.FormatChecker())
    rng = random.Random(seed)
    for _ in range(4):
        text = random_text(constraint, rng)
        if text is not None:
            judge.validate(json.loads(text))


# What can be negated: `not`, `if`, an overlapping `oneOf`.
NEGATABLE = st.recursive(
    st.one_of(
        st.booleans(),
        some(type=st.sampled_from(["string", "null", "object", ["string", "null"], "number"])),
        some(minimum=NUMBERS),
        some(exclusiveMaximum=NUMBERS),
        some(minLength=st.integers(0, 3), maxItems=st.integers(0, 2)),
        some(required=st.lists(NAMES, max_size=2, unique=True)),
        some(enum=st.lists(st.sampled_from([1, 2, 3.5, "a", "", None, True]), min_size=1)),
    ),
    lambda inner: st.one_of(
        some(properties=st.dictionaries(NAMES, inner, max_size=2), required=st.lists(NAMES)),
        some(allOf=st.lists(inner, min_size=1, max_size=2)),
        some(anyOf=st.lists(inner, min_size=1, max_size=2)),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=4,
)
CONDITIONS = st.one_of(
    st.fixed_dictionaries({"not": NEGATABLE}),
    st.fixed_dictionaries({"if": NEGATABLE}, optional={"then": NEGATABLE, "else": NEGATABLE}),
    st.fixed_dictionaries({"oneOf": st.lists(NEGATABLE, min_size=2, max_size=3)}),
)
VALUES = [None, True, 1, 2, -5, 3.5, "", "a", "ab", [], [1, 2, 3], {}, {"a": 1}, {"a": "x"}]
VALUES += [{"b": None}, {"a": 1, "b": 2}, {"b": 1, "a": None}, {"z": 1}]


@settings(max_examples=250, deadline=None)
@given(
    CONDITIONS,
    some(properties=st.dictionaries(NAMES, NEGATABLE, max_size=2), minimum=NUMBERS),
    st.integers(0, 2**32),
)
def test_conditions(conditions, more, seed):
    judge = importlib.import_module("jsonschema").Draft202012Validator({**more, **conditions})
    valid = [value for value in VALUES if judge.is_valid(value)]
    try:
        constraint = json_schema({**more, **conditions})
        constraint.start(TOKENS)
    except GrammarError as error:
        assert "no instance" in str(error) and not valid
        return
    found = [value for value in VALUES if accepted(constraint, compact(value))]
    assert [value for value in found if value not in valid] == []
    # The names of an object are in the order in which the schema mentions them.
    missing = [value for value in valid if value not in found]
    assert [value for value in missing if not isinstance(value, dict) or len(value) < 2] == []
    text = random_text(constraint, random.Random(seed))
    if text is not None:
        judge.validate(json.loads(text))


# Finite languages, compared with all of their texts -----------------------------------------------

FINITE = st.recursive(
    st.sampled_from(
        [
            {"enum": [1, 12, "a", None]},
            {"enum": ["é", 'q"', "a"]},
            {"type": "boolean"},
            {"type": "integer", "minimum": 9, "maximum": 12},
            {"type": "string", "pattern": "^[ab]$"},
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        st.builds(
            lambda item, low: {"type": "array", "items": item, "minItems": low, "maxItems": 2},
            inner,
            st.integers(0, 1),
        ),
        st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "required": [name for name in required if name in properties],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b", 'q"']), inner, max_size=2),
            st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
        ),
    ),
    max_leaves=3,
)


def texts(schema) -> list[str]:
    """All texts of a finite schema, by plain recursion."""
    if "anyOf" in schema:
        return [text for part in schema["anyOf"] for text in texts(part)]
    if "enum" in schema:
        return [compact(value) for value in schema["enum"]]
    match schema["type"]:
        case "boolean":
            return ["true", "false"]
        case "integer":
            return [str(i) for i in range(schema["minimum"], schema["maximum"] + 1)]
        case "string":
            return ['"a"', '"b"']
        case "array":
            items = texts(schema["items"])
            assume(len(items) < 40)
            rows = [[item] for item in items] + [list(p) for p in itertools.product(items, items)]
            rows += [[]] if schema["minItems"] == 0 else []
            return [f"[{joined}]" for row in rows for joined in _joined(row)]
    rows = [[]]
    for name, part in schema["properties"].items():
        values = texts(part)
        assume(len(values) < 40)
        more = [[*r, f"{compact(name)}{c}{v}"] for r in rows for v in values for c in (":", ": ")]
        rows = more if name in schema["required"] else rows + more
    return [f"{{{joined}}}" for row in rows for joined in _joined(row)]


def _joined(row: list[str]) -> list[str]:
    return [",".join(row), ", ".join(row)] if len(row) > 1 else ["".join(row)]


def compare_masks(matcher, is_viable, is_accepted, rng: random.Random) -> None:
    text = b""
    for _ in range(12):
        expected = [i for i, t in enumerate(TOKENS.tokens) if is_viable(text + t)]
        assert allowed(matcher) == expected, text
        assert matcher.accepts() == is_accepted(text), text
        if not expected:
            return
        token = rng.choice([t for t in expected if t in LIKED] or expected)
        assert matcher.advance(token)
        text += TOKENS.tokens[token]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(FINITE, st.integers(0, 2**32))
def test_masks_of_a_finite_schema_are_exact(schema, seed):
    wholes = [text.encode() for text in texts(schema)]
    assume(len(wholes) < 500)
    compare_masks(
        json_schema(schema).start(TOKENS),
        lambda text: any(whole.startswith(text) for whole in wholes),
        lambda text: text in wholes,
        random.Random(seed),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    FINITE,
    st.lists(st.sampled_from(['"', '"}', "}", "\n", ",", "]", " x", "é", "a"]), min_size=1),
    st.integers(0, 2**32),
)
def test_masks_before_a_stop_string_are_exact(schema, stops, seed):
    wholes = [text.encode() + stop.encode() for text in texts(schema) for stop in set(stops)]
    assume(len(wholes) < 1000)

    def is_accepted(text: bytes) -> bool:
        return any(text.startswith(whole) for whole in wholes)

    compare_masks(
        json_schema(schema).start(TOKENS, tuple(stops)),
        lambda text: is_accepted(text) or any(whole.startswith(text) for whole in wholes),
        is_accepted,
        random.Random(seed),
    )


def test_a_stop_string_that_could_continue_a_number_is_refused():
    for schema in ({"type": "integer"}, {"enum": [1, "a"]}, True, {"type": ["null", "number"]}):
        for stop in ("0", ".", "e", ""):
            with pytest.raises(GrammarError, match=r"stop=LEAVE or stop=EOS"):
                json_schema(schema).start(BYTES, ("\n", stop))
        assert accepted(json_schema(schema), "1\nx", ("\n",))
    assert accepted(json_schema({"type": "array"}), "[1]1", ("1",))
    assert accepted(json_schema({"type": "string"}), '"1"1', ("1",))


# What is an instance ------------------------------------------------------------------------------


@pytest.mark.parametrize("char", ['"', "\\", "\n", "\x7f", "\x1f", "a", "é", "/"])
def test_a_class_without_a_character_holds_all_others(char):
    schema = {"type": "string", "pattern": f"^[^{re.escape(char)}]$"}
    for other in ['"', "\\", "\n", "\x1f", "a", "é", "/", "😀"]:
        assert accepts_value(schema, other) == (other != char)


@pytest.mark.parametrize("name", ["a", 'q"', "\\", "é", "", "ab", "a\n"])
def test_a_declared_name_is_no_further_name(name):
    spelled = "".join(f"\\u{ord(char):04x}" for char in name)
    for schema in (
        {"properties": {name: {"type": "integer"}}},
        {"allOf": [{"properties": {name: {"type": "integer"}}}, {"properties": {"z": {}}}]},
        {"properties": {name: {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    ):
        schema["type"] = "object"
        assert accepts_value(schema, {name: 1, "other": "x"})
        assert not accepts_value(schema, {name: "x"})
        if name:
            assert not accepted(json_schema(schema), f'{{"{spelled}":"x"}}')
        assert not accepts_value(schema, {"other": "x", name: "x"})


def test_further_properties_stay_forbidden_in_a_merge():
    closed = {"properties": {"a": {}}, "additionalProperties": False}
    for schema in (
        {"allOf": [closed, {"properties": {"b": {}}}]},
        {"allOf": [{"required": ["a"]}, closed]},
        {"$ref": "#/$defs/closed", "properties": {"c": {}}, "$defs": {"closed": closed}},
        {**closed, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ):
        schema["type"] = "object"
        assert accepts_value(schema, {"a": 1})
        assert not accepts_value(schema, {"a": 1, "z": 1})
        assert not accepts_value(schema, {"b": 1})


@settings(max_examples=150, deadline=None)
@given(
    some(minimum=NUMBERS, maximum=NUMBERS, exclusiveMinimum=NUMBERS, exclusiveMaximum=NUMBERS),
    st.one_of(NUMBERS, st.decimals(-50, 50, places=3).map(float)),
    st.sampled_from(["number", "integer"]),
)
def test_bounds_of_numbers(bounds, value, kind):
    judges = importlib.import_module("jsonschema")
    schema = {"type": kind, **bounds}
    valid = judges.Draft202012Validator(schema).is_valid(value)
    text = f"{value:.12f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    if text in ("-0", "0") and str(value) != text:
        return
    try:
        assert accepted(json_schema(schema), text) == valid
    except GrammarError as error:
        assert "no instance" in str(error) and not valid


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"exclusiveMaximum": 1, "type": "number"}, "0.99999999999999999999"),
        ({"exclusiveMinimum": 0, "type": "number"}, f"0.{'0' * 330}1"),
        ({"exclusiveMaximum": -1, "type": "number"}, "-1.00000000000000000001"),
    ],
)
def test_a_long_fraction_that_rounds_to_an_exclusive_bound(schema, text):
    assert not accepted(json_schema(schema), text)


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"multipleOf": 3}, [0, 9, -3, 10**20 * 3, "x"], [1, 10, 1.5]),
        ({"type": "integer", "minimum": 2.5, "exclusiveMaximum": 5}, [3, 4], [2, 5, 3.5]),
        ({"minLength": 2, "maxLength": 2}, ["éé", "😀😀", '"\\', 7], ["a", "abc"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "0000-01-01", "x"]),
        ({"const": 1.0}, [1], [True, 2, "1"]),
        ({"enum": [{"b": 1, "a": [2]}]}, [{"b": 1, "a": [2]}], [{"b": 1}, {}]),
        ({"type": ["string", "null"]}, ["", None], [1, [], {}]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [None]),
        ({"prefixItems": [{"const": 1}], "items": False}, [[], [1], "x"], [[1, 1], [2]]),
        ({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "null"}},
         [[None], [None, None]], [[], [None] * 3, [1]]),
        ({"patternProperties": {"^x": {"const": 1}}, "additionalProperties": False},
         [{}, {"x": 1}, {"xy": 1, "x": 1}], [{"x": 2}, {"y": 1}]),
        ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
        ({"pattern": "b"}, ["abc", "\nb\n"], ["a", ""]),
        ({"pattern": r"^\d$"}, ["1"], ["٣", "12", "a"]),
        ({"$ref": "#/%24defs/a~1b~1c", "$defs": {"a/b/c": {"type": "null"}}}, [None], [1]),
        ({"not": {"type": ["null", "number"]}}, ["a", True, {}], [None, 1, 1.5]),
        ({"type": "string", "not": {"enum": ["a", 'q"']}}, ["b", "", "ab"], ["a", 'q"']),
        ({"not": {"enum": [3, 5, True, None]}}, [4, 3.5, "a", False, {}], [3, 5, True, None]),
        ({"not": {"required": ["a"]}}, [{}, {"b": 1}], [1, {"a": 1}, {"a": 1, "b": 2}]),
        ({"not": {"not": {"minLength": 2}}}, ["ab", 1], ["", "a"]),
        ({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "x": {}, "y": {}},
          "required": ["k"], "if": {"properties": {"k": {"const": "a"}}},
          "then": {"required": ["x"]}, "else": {"properties": {"x": False}, "required": ["y"]}},
         [{"k": "a", "x": 1}, {"k": "a", "x": 1, "y": 2}, {"k": "b", "y": 2}],
         [{"k": "a"}, {"k": "a", "y": 1}, {"k": "b"}, {"k": "b", "x": 1, "y": 2}, {"x": 1}]),
        ({"if": {}, "else": False, "then": {"maximum": 3}}, [2, "a"], [4]),
        ({"then": False, "minContains": 3}, [1, []], []),
        ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {"b": 1}, {}, 1], [{"a": 1}]),
        ({"dependentSchemas": {"a": {"maxProperties": 1}}}, [{"a": 1}, {"b": 1, "c": 1}],
         [{"a": 1, "b": 1}]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1, "c": 1}],
         [{}, {"a": 1, "b": 1}, 1]),
        ({"oneOf": [{"minimum": 2}, {"type": "number", "maximum": 4}]}, [1, 5, "a"], [3, 2]),
        ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
         [{}, {"a": None}, {"a": None, "b": None}], [{"c": None}, {"a": 1}]),
        ({"propertyNames": {"$ref": "#/$defs/name"},
          "$defs": {"name": {"type": "string", "pattern": "^[ab]+$"}}},
         [{}, {"ab": 1}, 1], [{"c": 1}, {"": 1}]),
        ({"propertyNames": False}, [{}, 1], [{"a": 1}]),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, [{}, {"a": 1}], [{"b": 1}]),
        ({"prefixItems": [{}], "unevaluatedItems": {"type": "null"}}, [[1], [1, None]], [[1, 1]]),
        ({"$ref": "#it", "$defs": {"a": {"$anchor": "it", "type": "null"}}}, [None], [1]),
        ({"$dynamicRef": "#it", "$defs": {"a": {"$dynamicAnchor": "it", "const": 1}}}, [1], [2]),
        ({"$id": "http://x.org/dir/root.json", "properties": {"a": {"$ref": "part.json"},
          "b": {"$ref": "part.json#/$defs/c"}, "c": {"$ref": "root.json#/properties/a"}},
          "$defs": {"b": {"$id": "part.json", "items": {"$ref": "#/$defs/c"}, "type": "array",
                          "$defs": {"c": {"type": "null"}}}}},
         [{"a": [None], "b": None, "c": []}], [{"a": [1]}, {"b": []}, {"c": None}]),
    ],
)  # fmt: skip
def test_instances(schema, yes, no):
    assert [value for value in yes if not accepts_value(schema, value)] == []
    assert [value for value in no if accepts_value(schema, value)] == []


def test_the_form_of_the_text():
    schema = {"type": "object", "properties": {"b": {"type": "array"}, "a": {}}}
    constraint = json_schema(schema)
    for text in ('{"b":[1,2],"a":1}', '{"b": [1, 2], "a": 1}', '{"a":1}', '{"a":1,"z":1}', "{}"):
        assert accepted(constraint, text)
    for text in ('{"a":1,"b":[]}', '{ "b":[]}', '{"b" :[]}', '{"b":  []}', '{"z":1,"a":1}', " {}"):
        assert not accepted(constraint, text)
    assert not accepted(json_schema({}), '"\\u0041"')
    assert not accepted(json_schema({}), '"\\ud800"')


def test_recursion():
    tree = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}},
        "required": ["value"],
        "additionalProperties": False,
    }
    value = {"value": 0}
    for i in range(50):
        value = {"value": i, "next": value}
    assert accepts_value(tree, value)
    assert not accepts_value(tree, {"value": 1, "next": {}})
    mutual = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}, {"$ref": "#/$defs/never"}]},
            "never": {"type": "array", "items": {"$ref": "#/$defs/never"}, "minItems": 1},
        },
    }
    assert accepts_value(mutual, [[None, []]])
    matcher = json_schema({**mutual, "$ref": "#/$defs/b"}).start(BYTES)
    assert matcher.advance(ord("["))


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"not": {"pattern": "a"}}}},
         r'#/properties/a: the keyword "not" is not supported around #/properties/a/not/pattern'),
        ({"items": [{}]}, "#/items: a list is of an old draft; use prefixItems"),
        ({"minimun": 1}, '"minimun" is not known'),
        ({"uniqueItems": True}, '"uniqueItems" is not supported'),
        ({"contains": {}}, "condition"),
        ({"if": {"multipleOf": 2}, "then": {}}, "write the cases as anyOf"),
        ({"if": {"contains": {}}, "then": {}}, "contains"),
        ({"not": {"$id": "a"}}, '"not" is not supported around #/not'),
        ({"not": {"properties": 1}}, "#/not/properties: an object"),
        ({"not": {"minimum": "1"}}, "#/not/minimum: a finite number"),
        ({"dependentRequired": {"a": [1]}}, "#/dependentRequired/a/required: a list of names"),
        ({"unevaluatedProperties": False, "$ref": "#/$defs/a", "$defs": {"a": {}}},
         r"beside \$ref is not supported; list"),
        ({"propertyNames": {"maxLength": 3}}, "with one enum, or with one pattern"),
        ({"multipleOf": 0.01}, '"multipleOf" is supported for integers'),
        ({"format": "regex"}, "\"format\" 'regex' is not supported"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "branches 0 and 1 are not seen"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "branches 0 and 1 are not seen"),
        ({"patternProperties": {"x": {}}}, "additionalProperties: false"),
        ({"minProperties": 2}, "use required"),
        ({"maximum": 10**30}, r"beyond 2\*\*53"),
        ({"const": 2**60}, r"beyond 2\*\*53"),
        ({"maximum": 1e-30}, "too many decimals"),
        ({"maximum": "1"}, "#/maximum: a finite number is needed"),
        ({"exclusiveMaximum": True}, "a finite number is needed"),
        ({"minLength": -1}, "#/minLength: a whole number is needed"),
        ({"type": "text"}, "'text' is none of null, boolean"),
        ({"anyOf": []}, "#/anyOf: a list of schemas is needed"),
        ({"properties": {"a": 1}}, "#/properties/a: a schema is an object or a bool, not 1"),
        ({"pattern": "(?=a)"}, "#/pattern: .*lookahead"),
        ({"pattern": "a(^b)"}, "anchor"),
        ({"pattern": "(?i)a"}, "not read alike"),
        ({"pattern": "\\p{L}"}, r"bad escape \\p"),
        ({"pattern": "a\\Z"}, "not read alike"),
        ({"$ref": "#/$defs/a"}, r"#/\$ref: '#/\$defs/a' leads nowhere"),
        ({"$ref": "https://example.com/a"}, "is not in this schema; copy"),
        ({"$ref": "#name"}, "'#name' leads nowhere"),
        ({"$ref": "#/$defs/a/1", "$defs": {"a": [{}]}}, "leads nowhere"),
        ({"$id": "http://x", "$ref": "//["}, "is no URI"),
        ({"$dynamicRef": "#a", "$defs": {"x": {"$id": "x", "$dynamicAnchor": "a"},
          "y": {"$id": "y", "$dynamicAnchor": "a"}}}, "several targets"),
        ({"$defs": {"x": {"$anchor": "a"}, "y": {"$anchor": "a"}}}, "another schema has"),
        ({"$defs": {"x": {"$id": "a"}, "y": {"$id": "a"}}}, "another schema has"),
        ({"$ref": "#"}, "leads back to itself without a base"),
        ({"allOf": [{"$ref": "#"}]}, "leads back to itself|refers to itself"),
        ({"allOf": [{"$ref": "#"}, {}]}, "refers to itself"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "leads back to itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no instance"),
        (False, "no instance"),
        ({"enum": []}, "no instance"),
        ({"type": "string", "const": 1}, "no instance"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "no instance"),
        ({"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 10}, "no instance"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no instance"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "no instance"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "no instance"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no instance"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "no instance"),
        ({"type": "array", "minItems": 1, "items": False}, "no instance"),
        ({"$schema": "http://example.com/mine"}, "unknown dialect"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a",
          "minimum": 1, "definitions": {"a": {}}}, "ignored in old drafts"),
        ({"properties": {"a": {"$id": "#b"}}}, r"\$id is a URI without a fragment"),
        ("{", "json_schema, line 1, column 2"),
        ("[NaN]", "NaN is no JSON"),
        ({"const": float("inf")}, "json_schema: "),
        ({"const": "\ud800"}, "lone surrogate"),
        ([1], "takes a schema"),
        (None, "takes a schema"),
        ({"const": b""}, "is no JSON value"),
    ],
)  # fmt: skip
def test_errors(schema, words):
    kind = TypeError if isinstance(schema, list | None) or "bytes" in words else Exception
    with pytest.raises(kind, match=words) as caught:
        json_schema(schema).start(BYTES)
    assert isinstance(caught.value, GrammarError | TypeError)
    assert len(str(caught.value)) < 500


def test_not_strict_warns_instead():
    schema = {"type": "array", "items": {"type": "null"}, "uniqueItems": True, "maxItems": 2}
    with pytest.warns(UserWarning, match='"uniqueItems" is not supported; .* not enforced'):
        constraint = json_schema(schema, strict=False)
    assert accepted(constraint, "[null,null]")
    with pytest.warns(UserWarning, match="branches 0 and 1"):
        constraint = json_schema({"oneOf": [{"pattern": "a"}, {"type": "null"}, {}]}, strict=False)
    assert accepted(constraint, "null")
    assert repr(constraint).endswith(", strict=False)")


def test_annotations_are_no_keywords():
    schema = {
        "title": "t", "description": "d", "default": {"not": 1}, "examples": [1], "$comment": "c",
        "deprecated": True, "readOnly": True, "writeOnly": False, "$schema":
        "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s",
        "x-mine": {"not": {}}, "contentEncoding": "base64", "$defs": {"unused": {"not": {}}},
        "type": "null",
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accepts_value(schema, None)


# The object ---------------------------------------------------------------------------------------


def test_schemas_compare_by_value_and_order():
    one = {"properties": {"a": {}, "b": {}}}
    other = {"properties": {"b": {}, "a": {}}}
    assert json_schema(one) == json_schema(copy.deepcopy(one)) == json_schema(json.dumps(one))
    assert hash(json_schema(one)) == hash(json_schema(json.dumps(one)))
    assert json_schema(one) != json_schema(other)
    assert json_schema(True) == json_schema("true")
    assert copy.deepcopy(json_schema(one)) == json_schema(one)
    assert repr(json_schema({"type": "null"})) == 'json_schema({"type": "null"})'


def test_forks_are_independent_and_a_vocabulary_can_be_freed():
    vocabulary = Vocabulary([b"1", b"2", b"[", b"]"])
    matcher = json_schema({"type": "array", "items": {"const": 1}}).start(vocabulary)
    matcher.advance(2)
    fork = matcher.fork()
    assert fork.advance(0) and not fork.advance(0)
    assert matcher.advance(3) and matcher.accepts() and not fork.accepts()
    seen = weakref.ref(vocabulary)
    del vocabulary, matcher, fork
    gc.collect()
    assert seen() is None


class Movie(TypedDict):
    title: str
    year: int


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


def test_typed_dicts_and_dataclasses():
    importlib.import_module("pydantic")
    movie = json_schema(Movie)
    assert accepted(movie, '{"title": "M", "year": 1931}')
    assert not accepted(movie, '{"title": "M"}')
    assert not accepted(movie, '{"title": "M", "year": 1931, "more": 1}')
    assert movie.parse('{"title": "M", "year": 1931}') == {"title": "M", "year": 1931}
    assert json_schema(Point).parse('{"x":1}') == Point(1)
    assert repr(json_schema(Point)) == "json_schema(Point)"
    assert json_schema(Point) == json_schema(Point) != json_schema(Movie)
    assert json_schema(list[Point]).parse('[{"x":1}]') == [Point(1)]
    assert repr(json_schema(int | str)) == "json_schema(int | str)"


def test_pydantic_models():
    pydantic = importlib.import_module("pydantic")
    from typing import Annotated, Literal, Optional

    class Cat(pydantic.BaseModel):
        kind: Literal["cat"] = "cat"
        lives: Annotated[int, pydantic.Field(ge=1, le=9)]

    class Dog(pydantic.BaseModel):
        kind: Literal["dog"]
        friends: list["Animal"] = []

    class Animal(pydantic.BaseModel):
        name: Annotated[str, pydantic.Field(max_length=5, pattern="^[A-Z]")]
        pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
        note: Optional[str] = None  # noqa: UP045

    Dog.model_rebuild(_types_namespace={"Animal": Animal})
    constraint = json_schema(Animal)
    text = '{"name": "Tom", "pet": {"kind": "cat", "lives": 9}, "note": null}'
    assert accepted(constraint, text)
    assert constraint.parse(text) == Animal.model_validate_json(text)
    assert not accepted(constraint, '{"name": "Tom", "pet": {"lives": 9}}')
    assert not accepted(constraint, '{"name": "Tom", "pet": {"kind": "dog", "lives": 9}}')
    friends = '{"name":"Rex","pet":{"kind":"dog","friends":[{"name":"A","pet":{"kind":"dog"}}]}}'
    assert accepted(constraint, friends)
    rng = random.Random(1)
    for _ in range(100):
        drawn = random_text(constraint, rng)
        if drawn is not None:
            constraint.parse(drawn.decode())


def test_parse():
    assert json_schema({}).parse('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError):
        json_schema({}).parse('{"a": 1')
