"""Broken and malicious constraints: each compiles and gives masks, or is an error, soon.

    python -m tests.potentials.hostile              # a line of JSON for each case

Each case runs in a process of its own, forked once everything is imported, which measures what it
takes: the compilation on a vocabulary of 49,152 tokens, and the masks along a text of 10 tokens.
"""

import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from smcprog.errors import GrammarError
from smcprog.potentials.base import Constraint
from smcprog.potentials.grammar import choice, regex
from smcprog.potentials.json_schema import json_schema
from smcprog.potentials.lark_grammar import grammar
from smcprog.vocabulary import Vocabulary, unpack

SECONDS = 10
MEGABYTES = 1000

STEPS = 10


@lru_cache
def vocabulary(size: int = 49_152) -> Vocabulary:
    """All bytes, mostly words, some numbers and marks, some across the edges of UTF-8."""
    rng = random.Random(0)
    kinds = [
        "etaoinshrdlucmfwypvbgkqjxz",
        "etaEAon_",
        "0123456789",
        "{}[]()\":,.'\\/_-+*=<>\n ;é中",
    ]
    tokens = {bytes([byte]): None for byte in range(256)}
    while len(tokens) < size:
        (letters,) = rng.choices(kinds, [80, 10, 3, 7])
        word = rng.choice(["", " "]) + "".join(rng.choices(letters, k=rng.randint(1, 9)))
        tokens[word.encode()[: rng.randint(1, 12)]] = None
    return Vocabulary(list(tokens))


# Regular expressions ------------------------------------------------------------------------------

PATTERNS = {
    "ambiguous alternatives": "(a|aa)+$",
    "nested stars": "((((a*)*)*)*)*b",
    "overlapping pluses": "(x+x+)+y",
    "exponential automaton": "(?:e|t)*e(?:e|t){60}",
    "many exponential automata": "(?:(?:e|t)*e(?:e|t){400}){50}",
    "everything twice": "(?:.*.*)*a" * 200,
    "gaps": ".{0,5000}e.{0,5000}t.{0,5000}",
    "a million characters": "(?:.{1000}){1000}",
    "bounded repeats inside each other": "(?:.{0,9999}a){9999}b",
    "repeats inside repeats": "(?:" * 12 + "a" + "{99})" * 12,
    "optional and required": "(?:a?){5000}a{5000}",
    "a billion": "a{1000000000}",
    "beyond the counter": "a{99999999999}",
    "a number of many digits": f"a{{{'9' * 100_000}}}",
    "multiple repeat": ".{1000}{1000}",
    "all words": r"\w" * 60_000,
    "alternatives of all words": r"\w|" * 60_000,
    "words": r"(?:\w{1,100}\s){1,1000}",
    "classes": "[^a]" * 20_000,
    "deep groups": "(?:" * 10_000 + ")" * 10_000,
    "not so deep groups": "(?:a" * 90 + ")*" * 90,
    "open groups": "(" * 1_000_000,
    "a long literal": "abc" * 1_000_000,
    "many alternatives": "|".join(f"word {i}" for i in range(200_000)),
    "null bytes": "\0" * 1000 + "+",
    "a surrogate": "\ud800",
    "ten megabytes of dots": "." * 10_000_000,
    "ignoring case": "(?i)" + "ßſKİ" * 8_000,
    "comments": "(?#" + "x" * 5_000_000 + ")" * 2,
    "backreference": r"(a+)\1+",
    "lookbehind": "(?<=(a+)+)b",
}

# Choices ------------------------------------------------------------------------------------------

CHOICES: dict[str, Callable[[], object]] = {
    "a million strings": lambda: [f"string {i}" for i in range(1_000_000)],
    "a million of the same": lambda: ["the same"] * 1_000_000,
    "one long string": lambda: "a long string " * 1_000_000,
    "prefixes of each other": lambda: ["a" * i for i in range(3000)],
    "many long strings": lambda: [f"{i} " * 3_000 for i in range(1_000)],
    "null bytes": lambda: ["\0" * i for i in range(500)],
    "a surrogate": lambda: ["a", "\udfff"],
    "bytes": lambda: [b"\xff"],
    "without end": lambda: itertools.repeat("the same"),
    "all of Unicode": lambda: map(chr, [*range(0xD800), *range(0xE000, 0x110000)]),
}


# Grammars -----------------------------------------------------------------------------------------


def ladder(levels: int) -> str:
    """Each rule is twice the next: 2 ** levels letters."""
    rules = [f"r{i}: r{i + 1} r{i + 1}" for i in range(levels)]
    return "\n".join(["start: r0", *rules, f'r{levels}: "a"'])


GRAMMARS: dict[str, Callable[[], str]] = {
    "left recursion without end": lambda: "start: start",
    "left recursion of two": lambda: 'start: a\na: b "x"\nb: a "y"',
    "left recursion that ends": lambda: 'start: start "a" | "a"',
    "ambiguous without end": lambda: 'start: start start | start | "a" |',
    "very ambiguous": lambda: 'start: a*\na: b* "x"?\nb: c* "y"?\nc: "e"? "e"? "e"?',
    "nothing in a loop": lambda: "start: a*\na: b*\nb: c*\nc: ",
    "a ladder": lambda: ladder(60),
    "a high ladder": lambda: ladder(800),
    "a chain": lambda: "\n".join(
        ["start: r0", *(f"r{i}: r{i + 1}" for i in range(800)), 'r800: "a"']
    ),
    "a million rules": lambda: "\n".join(["start: r0", *(f'r{i}: "a"' for i in range(1_000_000))]),
    "as many rules as it may": lambda: "\n".join(
        ["start: r0", *(f'r{i}: "{i}" r{i + 1} | ' for i in range(500)), 'r500: "z"']
    ),
    "as many terminals as it may": lambda: "start: " + "|".join(f'"w{i}x"' for i in range(1500)),
    "deep parentheses": lambda: f'start: {"(" * 10_000}"a"{")" * 10_000}',
    "less deep parentheses": lambda: f'start: {"(" * 60}"a"{")*" * 60}',
    "optional parts": lambda: "start: " + ' "a"?' * 5000,
    "few optional parts": lambda: "start: " + ' "a"?' * 14,
    "nested options": lambda: "start: " + "[" * 200 + '"a"' + "]" * 200,
    "a large repeat": lambda: 'start: "a"~1000000000',
    "repeats inside repeats": lambda: "start: " + "(" * 10 + '"a"' + ")~0..40" * 10,
    "a growing template": lambda: 'start: t{"a"}\nt{x}: x t{u{x}}\nu{y}: y y',
    "templates that double": lambda: "\n".join(
        [
            'start: t0{"a"}',
            *(f"t{i}{{x}}: t{i + 1}{{x}} t{i + 1}{{x}}" for i in range(30)),
            "t30{x}: x",
        ]
    ),
    "templates with growing arguments": lambda: "\n".join(
        ['start: t0{"a"}', *(f"t{i}{{x}}: t{i + 1}{{(x x)}}" for i in range(30)), "t30{x}: x"]
    ),
    "a template of itself": lambda: "start: t{t}\nt{x}: x{x}",
    "a terminal of itself": lambda: 'start: A\nA: "a" A',
    "an exponential terminal": lambda: "start: A\nA: /(e|t)*e(e|t){60}/",
    "an exponential lazy terminal": lambda: "start: A\nA: /((e*)*)*?x/ \nB: /(a|aa)+?b/",
    "a large terminal": lambda: "start: A+\nA: /.{1000}/ B\nB: /(.{0,500}x){500}/",
    "terminals that double": lambda: "\n".join(
        ["start: A0", *(f"A{i}: A{i + 1} A{i + 1}" for i in range(40)), 'A40: "a"']
    ),
    "terminals that run into each other": lambda: (
        "start: (A | B | C | D)+\n"
        + "\n".join(f"{name}: /[a-z0-9]*{name.lower()}[a-z0-9]*/" for name in "ABCD")
    ),
    "ignored that run into all": lambda: "start: (A B)*\nA: /.+/\nB: /.*x/\n%ignore /.+?y/",
    "an empty terminal": lambda: "start: A\nA: /a*/",
    "an empty ignored terminal": lambda: 'start: "a"\n%ignore /x*/',
    "all of Unicode in classes": lambda: "start: (A|B)+\nA: /[^\\W\\d_]+/\nB: /(?i:[^k-z])+/",
    "null bytes": lambda: 'start: "a\0b" /\0/',
    "a surrogate": lambda: 'start: "\ud800"',
    "escapes of a surrogate": lambda: 'start: "\\ud800"',
    "a broken escape": lambda: 'start: "\\x"',
    "numbers of many digits": lambda: f'start: "a"~{"9" * 5000}',
    "numbers of more digits": lambda: f'start.{"9" * 5000}: "a"',
    "an unknown import": lambda: "start: A\n%import nowhere.A",
    "an import from above": lambda: "start: A\n%import .....etc.passwd.A",
    "a million characters of a comment": lambda: "//" + "x" * 1_000_000 + '\nstart: "a"',
    "a long string": lambda: f'start: "{"a" * 30_000}"',
    "not a grammar": lambda: "\x7fELF" * 1000,
    "declared": lambda: "start: A\n%declare A",
    "no text": lambda: 'start: "a" start',
    "nothing": lambda: "",
}

# Schemas ------------------------------------------------------------------------------------------


def nested(key: str, depth: int) -> object:
    schema: object = {"type": "null"}
    for _ in range(depth):
        schema = {key: [schema] if key.endswith("Of") else schema}
    return schema


def nested_text(opening: str, closing: str, depth: int) -> str:
    return opening * depth + "{}" + closing * depth


def doubling(key: str, levels: int) -> object:
    """Each definition applies the next one twice."""
    definitions: dict[str, object] = {
        str(i): {key: [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(levels)
    }
    definitions[str(levels)] = {"type": "null"}
    return {"$ref": "#/$defs/0", "$defs": definitions}


CASES_OF_IF = {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}

SCHEMAS: dict[str, Callable[[], object]] = {
    "a circle": lambda: {"$ref": "#"},
    "a circle of two": lambda: {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "recursion without an instance": lambda: {
        "type": "array",
        "items": {"$ref": "#"},
        "minItems": 1,
    },
    "recursion in a merge": lambda: {"allOf": [{"type": "array"}, {"items": {"$ref": "#"}}]},
    "an unknown reference": lambda: {"$ref": "#/$defs/nowhere"},
    "a remote reference": lambda: {"$ref": "https://example.com/schema.json"},
    "a file": lambda: {"$ref": "file:///etc/passwd"},
    "a reference into a number": lambda: {"$ref": "#/minimum/0", "minimum": 1},
    "a reference of many steps": lambda: {"$ref": "#" + "/a" * 1_000_000},
    "a reference with many digits": lambda: {"$ref": f"#/allOf/{'9' * 5000}", "allOf": [{}]},
    "a long reference": lambda: {"$ref": "https://" + "a" * 1_000_000},
    "a reference that is no string": lambda: {"$ref": {"$ref": "#"}},
    "identifiers": lambda: {"$defs": {str(i): {"$id": f"s{i}"} for i in range(20_000)}},
    "a chain of references": lambda: {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(10_000)}
        | {"10000": {"type": "null"}},
    },
    **{
        f"nested {key}": lambda key=key: nested(key, 100_000)
        for key in ("items", "allOf", "anyOf", "oneOf", "not", "if", "additionalProperties")
    },
    "nested schemas": lambda: nested("items", 30),
    "schemas nested too deeply": lambda: nested("items", 100),
    "nested properties": lambda: nested_text('{"properties":{"a":', "}}", 100_000),
    "nested lists of text": lambda: nested_text("[", "]", 1_000_000),
    "nested definitions": lambda: nested_text('{"$defs":{"a":', "}}", 900),
    "nested names": lambda: nested_text('{"anyOf":[{"required":["a"]},', "]}", 35),
    **{f"doubling {key}": lambda key=key: doubling(key, 60) for key in ("allOf", "anyOf", "oneOf")},
    "a doubling not": lambda: {
        "$defs": {str(i): {"not": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2}} for i in range(60)}
        | {"60": {"type": "null"}},
        "$ref": "#/$defs/0",
    },
    "many conditions": lambda: {"allOf": [CASES_OF_IF] * 40},
    "many different conditions": lambda: {
        "allOf": [
            {"if": {"properties": {f"p{i}": {"const": i}}}, "then": {"required": [f"p{i + 1}"]}}
            for i in range(40)
        ]
    },
    "many dependencies": lambda: {
        "dependentRequired": {f"p{i}": [f"p{i + 1}"] for i in range(60)},
        "type": "object",
    },
    "an overlapping oneOf": lambda: {"oneOf": [{"required": [f"p{i}"]} for i in range(10)]},
    "many branches": lambda: {"oneOf": [{"required": [f"p{i}"]} for i in range(5000)]},
    "branches that double": lambda: {
        "oneOf": [
            {"anyOf": [{"anyOf": [{"anyOf": [{"minimum": i}] * 9}] * 9}] * 9} for i in range(20)
        ]
    },
    "merged alternatives": lambda: {
        "allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(25)]
    },
    "merged patterns": lambda: {
        "allOf": [{"pattern": f"^(?:a|b)*a(?:a|b){{{i}}}c"} for i in range(20, 28)]
    },
    "a million values": lambda: {"enum": list(range(1_000_000))},
    "many texts": lambda: {"enum": [f"value {i}" for i in range(100_000)]},
    "many objects": lambda: {"enum": [{"a": i, "b": [i] * 10} for i in range(10_000)]},
    "none of many texts": lambda: {"not": {"enum": [f"value {i}" for i in range(2_000)]}},
    "none of a long text": lambda: {"not": {"const": "a" * 1_000_000}},
    "none of many numbers": lambda: {"not": {"enum": list(range(2_000))}},
    "many properties": lambda: {"properties": {f"p{i}": {} for i in range(20_000)}},
    "many properties of an open object": lambda: {
        "properties": {f"property {i}": {} for i in range(700)},
        "type": "object",
    },
    "a long name": lambda: {"properties": {"a" * 1_000_000: {}}, "type": "object"},
    "all properties required": lambda: {
        "properties": {f"p{i}": {"type": "null"} for i in range(3_000)},
        "required": [f"p{i}" for i in range(3_000)],
        "additionalProperties": False,
        "type": "object",
    },
    "a large array": lambda: {"type": "array", "minItems": 10**9},
    "large arrays in large arrays": lambda: {
        "type": "array",
        "minItems": 1000,
        "items": {
            "type": "array",
            "minItems": 1000,
            "items": {"type": "string", "minLength": 1000},
        },
    },
    "a large prefix": lambda: {"type": "array", "prefixItems": [{}] * 10_000},
    "a long string": lambda: {"type": "string", "minLength": 10**9},
    "a number of many digits": lambda: '{"minimum": ' + "9" * 100_000 + "}",
    "an exponent of many digits": lambda: '{"minimum": 1e' + "9" * 100_000 + "}",
    "a large step": lambda: {"multipleOf": 999_983, "minimum": 10**15},
    "a small step": lambda: {"multipleOf": 1e-300},
    "an exponential pattern": lambda: {"pattern": "(e|t)*e(e|t){60}"},
    "a large pattern": lambda: {"pattern": "(?:.{0,9999}a){9999}b"},
    "patterns of names": lambda: {
        "patternProperties": {f"(e|t)*e(e|t){{{i}}}": {} for i in range(30)},
        "additionalProperties": False,
        "type": "object",
    },
    "null bytes": lambda: {"const": "\0", "properties": {"\0": {"pattern": "\0"}}},
    "a surrogate": lambda: '{"const": "\\ud800"}',
    "not UTF-8": lambda: b"\xff\xfe",
    "not JSON": lambda: "{'a': 1}",
    "keywords of any type": lambda: {
        "anyOf": [{key: value} for key in ("title",) for value in (None, [], 1)]
    },
}

MALFORMED = [None, True, -1, 1.5, "a", [], [1], [[]], {}, {"a": 1}, {"a": [1]}, [{"a": 1}], "\0"]
KEYWORDS = (
    "type enum const multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minLength "
    "maxLength pattern format items prefixItems minItems maxItems uniqueItems contains properties "
    "required additionalProperties patternProperties propertyNames minProperties maxProperties "
    "dependentRequired dependentSchemas dependencies unevaluatedItems unevaluatedProperties $ref "
    "$dynamicRef $anchor $dynamicAnchor $id $schema id $defs allOf anyOf oneOf not if then else "
    "discriminator definitions minContains title"
).split()


def malformed() -> None:
    """Each keyword with values of all types, alone and inside others: no other error comes."""
    for key in KEYWORDS:
        for value in MALFORMED:
            one = {key: value}
            for schema in (
                one,
                {"not": one},
                {"if": one, "then": one},
                {"oneOf": [one, {"required": ["a"]}]},
                {"allOf": [one, {"properties": {"a": one}}], "type": "object"},
                {"$ref": "#/$defs/a", "$defs": {"a": one}, "required": ["a"]},
                {"propertyNames": one, "dependentSchemas": {"a": one}},
            ):
                for strict in (True, False):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        try:
                            json_schema(schema, strict=strict)
                        except GrammarError as error:
                            assert len(str(error)) < 1000


# Files --------------------------------------------------------------------------------------------


def from_files(files: dict[str, bytes], start: str) -> Constraint:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        return grammar(Path(folder) / start)


FILES = {
    "not UTF-8": {"a.lark": b'start: "\xff"'},
    "an import of what is not UTF-8": {
        "a.lark": b"start: A\n%import .b.A",
        "b.lark": b'A: "\xff"',
    },
    "UTF-16": {"a.lark": 'start: "a"'.encode("utf-16")},
    "an import of itself": {"a.lark": b'start: "a" x\n%import .a.start -> x'},
    "imports in a circle": {
        "a.lark": b"start: A\n%import .b.A",
        "b.lark": b"%import .c.A",
        "c.lark": b"%import .b.A",
    },
    "an import of no grammar": {"a.lark": b"start: A\n%import .b.A", "b.lark": b"\0\1\2"},
    "an import of a deep grammar": {
        "a.lark": b"start: x\n%import .b.x",
        "b.lark": b"x: " + b"(" * 10_000 + b'"a"' + b")" * 10_000,
    },
    "an import of a large grammar": {
        "a.lark": b"start: x\n%import .b.x",
        "b.lark": b"x: " + b"|".join(b'"%d"' % i for i in range(200_000)),
    },
    "a missing import": {"a.lark": b"start: A\n%import .b.A"},
    "no file": {"b.lark": b""},
}


CASES: dict[str, Callable[[], Constraint | None]] = {
    **{f"regex: {name}": lambda p=p: regex(p) for name, p in PATTERNS.items()},
    **{f"choice: {name}": lambda make=make: choice(make()) for name, make in CHOICES.items()},
    **{f"grammar: {name}": lambda make=make: grammar(make()) for name, make in GRAMMARS.items()},
    **{f"file: {name}": lambda f=f: from_files(f, "a.lark") for name, f in FILES.items()},
    **{f"schema: {name}": lambda make=make: json_schema(make()) for name, make in SCHEMAS.items()},
    "schema: malformed keywords": malformed,
}


def walk(constraint: Constraint, tokens: Vocabulary, followed_by: tuple[str, ...]) -> None:
    """Masks along a random text, with a fork at each step."""
    rng = random.Random(0)
    matcher = constraint.start(tokens, followed_by)
    for _ in range(STEPS):
        allowed = np.flatnonzero(unpack(matcher.mask(), tokens.size))
        if not len(allowed):
            return
        matcher = matcher.fork()
        assert matcher.advance(int(rng.choice(allowed)))


def outcome(make: Callable[[], Constraint | None], tokens: Vocabulary) -> str:
    """What comes of a case: "masks", or the class and text of an expected error."""
    try:
        constraint = make()
        if constraint is not None:
            walk(constraint, tokens, ())
            walk(constraint, tokens, (";", "\n\n"))
        return "masks"
    except (GrammarError, TypeError, ValueError, OSError) as error:
        str(error).encode()
        return f"{type(error).__name__}: {error}"


def main() -> None:
    tokens = vocabulary()
    for constraint in (regex(r"\w"), grammar("start: /a/"), json_schema({})):
        constraint.start(tokens)  # the tables of the libraries are made before
    chosen = sys.argv[1:] or list(CASES)
    for name in chosen:
        sys.stdout.flush()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status:
                print(json.dumps({"case": name, "outcome": f"killed: status {status}"}))
            continue
        signal.alarm(3 * SECONDS)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.process_time()  # other work on the machine does not count
        found = outcome(CASES[name], tokens)
        seconds = time.process_time() - begin
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(json.dumps({"case": name, "outcome": found, "seconds": seconds, "megabytes": grown}))
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
