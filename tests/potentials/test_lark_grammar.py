"""A grammar's language is that of lark's Earley parser with its dynamic lexer, masks included.

lark is asked each time; nothing here knows how a grammar is translated.
"""

import itertools
import random
import time
from functools import lru_cache

import lark
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from smcprog.errors import GrammarError
from smcprog.potentials.lark_grammar import grammar
from smcprog.vocabulary import BYTES, Vocabulary, unpack
from tests.potentials.lark_examples import GRAMMARS


def accepts(constraint, text: str, followed_by: tuple[str, ...] = ()) -> bool:
    matcher = constraint.start(BYTES, followed_by)
    return all(matcher.advance(byte) for byte in text.encode()) and matcher.accepts()


def parser(source: str) -> lark.Lark:
    """lark's default: Earley, dynamic."""
    read = lark.Lark(source)
    assert (read.options.parser, read.options.lexer) == ("earley", "dynamic")
    return read


def parses(read: lark.Lark, text: str) -> bool:
    try:
        read.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def texts_over(letters: str, longest: int) -> list[str]:
    return [
        "".join(chars)
        for length in range(longest + 1)
        for chars in itertools.product(letters, repeat=length)
    ]


def accepted_texts(constraint, letters: str, longest: int, followed_by=()) -> set[str]:
    """The texts over some letters that a constraint accepts, by walking its masks."""
    accepted = set()
    living = [("", constraint.start(BYTES, followed_by))]
    while living:
        text, matcher = living.pop()
        if matcher.accepts():
            accepted.add(text)
        for char in letters if len(text) < longest else "":
            further = matcher.fork()
            if all(further.advance(byte) for byte in char.encode()):
                living.append((text + char, further))
    return accepted


# --- Grammars that people write -------------------------------------------------------------------


def mutants(text: str, rng: random.Random, count: int) -> set[str]:
    found = set()
    for _ in range(count):
        at, to = sorted(rng.choices(range(len(text) + 1), k=2))
        char = rng.choice(text + ' 1a(),."\nxé')
        found.add(
            rng.choice(
                [
                    text[:at] + char + text[at:],
                    text[:at] + text[at + 1 :],
                    text[:at] + char + text[at + 1 :],
                    text[:at] + text[to:],
                    text[:to] + text[at:],
                    text.replace(" ", ""),
                    text.upper(),
                ]
            )
        )
    return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_acceptance_is_that_of_lark(name):
    source, members = GRAMMARS[name]
    constraint, read, rng = grammar(source), parser(source), random.Random(name)
    for member in members:
        assert parses(read, member), member
        for text in {member, *mutants(member, rng, 12)}:
            assert accepts(constraint, text) == parses(read, text), text


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_prefix_of_a_member_is_allowed_and_stops_work(name):
    source, members = GRAMMARS[name]
    constraint = grammar(source)
    for member in members[:2]:
        assert accepts(constraint, member + "\n\nanything \0", ("\n\n",))
        assert accepts(constraint, member + "STOP", ("STOP", "\n"))


# --- Random grammars ------------------------------------------------------------------------------

PATTERNS = ["/a+/", "/ab/", "/[ab]/", "/a|ab/", "/ab?/", "/(ab)+/", "/a.*?b/", "/[^a]/", "/b+a?/"]
PATTERNS += ["/a*b/", "/aba/", '"a"', '"b"', '"ab"', '"b"i', "/a(?<=a)b*/", "/a(?<!b)b?/"]
PATTERNS += ["/a(ba|b)?/", "/é|è/", "/aé?/", "/[^b]+/", "/ab*?/", "/a{2,3}/", r"/\w+/", "/[^é]b/"]
IGNORED = ["", "", 'WS: " "\n%ignore WS', "WS: /[ b]+/\n%ignore WS", "WS: / a?/\n%ignore WS"]


@st.composite
def sources(draw) -> str:
    symbols = ["start", "x", "A", "B", "A", "B", "C", '"a"', '"b"']
    item = st.builds(
        str.__add__,
        st.sampled_from(symbols),
        st.sampled_from(["", "", "", "", "?", "*", "+", "~2"]),
    )
    sequence = st.lists(item, min_size=1, max_size=3).map(" ".join)
    rule = st.lists(sequence, min_size=1, max_size=3, unique=True).map(" | ".join)
    lines = [f"{name}: {draw(rule)}" for name in ("start", "x")]
    lines += [f"{name}: {draw(st.sampled_from(PATTERNS))}" for name in "ABC"]
    return "\n".join([*lines, draw(st.sampled_from(IGNORED))])


def expected_texts(source: str, texts: list[str]) -> set[str]:
    """The texts that lark parses, but for the few grammars on which it fails itself."""
    try:
        read = parser(source)
    except lark.exceptions.GrammarError:
        assume(False)
    try:
        return {text for text in texts if parses(read, text)}
    except (RuntimeError, RecursionError):  # "Please report this bug"
        assume(False)
    raise AssertionError


TRICKY = 'start: y (A* x x | A)\nx: (A | A) A | y (A "a"? | A)\ny: (A | y "a") "a" | A+ y x\n'


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(sources(), st.sets(st.sampled_from(["a", "b", "ab", " b", "é"]), min_size=1, max_size=2))
@example(f"{TRICKY}A: /a.*?b/", {"a"})
@example('start: A B | "b" A A\nA: /a+/\nB: /b/', {"a"})
def test_random_grammars(source, stops):
    """Their texts, and those up to a stop string, are what lark says."""
    letters, longest = "abé ", 4
    texts = texts_over(letters, longest)
    expected = expected_texts(source, texts)
    try:
        constraint = grammar(source)
    except GrammarError as error:
        assert "no text at all" in str(error)
        assert not expected
        return
    assert accepted_texts(constraint, letters, longest) == expected
    stopped = {
        text
        for text in texts
        for end in range(len(text))
        if text[:end] in expected and text[end:].startswith(tuple(stops))
    }
    assert accepted_texts(constraint, letters, longest, tuple(sorted(stops))) == stopped


# --- Masks ----------------------------------------------------------------------------------------

TOKENS = [b"a", b"b", b" ", b"ab", b"ba", b"aab", "é".encode(), b"\xc3", b"\xa9", b"a\xc3", b"b "]
TOKENS += [b"bb", b"\xff", b"", b"<pad>", b"  a", b"\xa9a"]
VOCABULARY = Vocabulary(TOKENS, control_ids=[14])

# Each text that is viable here has a completion of at most two more characters.
SMALL = [
    'start: A B "a"\nA: /a+/\nB: /bb?/',
    'start: NAME | "ab" NAME\nNAME: /[ab]+/\n%ignore " "',
    'start: "a" "b"? "é"?\n%ignore " "',
    "start: A+\nA: /aé?/ | /[^\\x00-\\x7f]b/",
    'start: "b" A A | "a" "b"\nA: /a+/',
    'start: (A | B)*\nA: /a.*?b/\nB: "b"',
    'start: A "b"\nA: /a|aba/',
]


@lru_cache
def language_of(source: str) -> frozenset[str]:
    read = parser(source)
    return frozenset(text for text in texts_over("abé ", 5) if parses(read, text))


@pytest.mark.parametrize("stops", [(), ("b",), ("ab", "é")])
@pytest.mark.parametrize("source", SMALL)
def test_masks_are_the_viable_tokens(source, stops):
    language = language_of(source)
    if stops:
        language = {text + stop for text in language for stop in stops}
    whole = {text.encode() for text in language}
    viable = {text[:end] for text in whole for end in range(len(text) + 1)}

    def is_accepted(text: bytes) -> bool:
        return any(text[:end] in whole for end in range(len(text) + 1) if stops or end == len(text))

    living = [(b"", grammar(source).start(VOCABULARY, stops))]
    while living:
        text, matcher = living.pop()
        assert matcher.accepts() == is_accepted(text), text
        expected = {
            i
            for i, token in enumerate(VOCABULARY.tokens)
            if token and (text + token in viable or (stops and is_accepted(text + token)))
        }
        mask = matcher.mask()
        got = set(np.flatnonzero(unpack(mask, VOCABULARY.words * 32)).tolist())
        short = {i for i in got | expected if len(text + TOKENS[i]) <= 3}
        assert got & short == expected & short, text
        for i in short & got:
            further = matcher.fork()
            assert further.advance(i)
            living.append((text + TOKENS[i], further))
        refused = next(i for i in range(VOCABULARY.size) if i not in got)
        assert not matcher.fork().advance(refused)


# --- What is supported ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "members", "others"),
    [
        ('start: "a"i "é"i', ["aé", "AÉ"], ["a", "b"]),
        (r"start: /a.b/s /[c-e]+/i /\d/", ["a\nbcD4", "axbE٣"], ["a\nb4"]),
        ("start: /a  b # no\n/x", ["ab"], ["a  b"]),
        ('start: "a"~2 "b"~1..2 "c"~0..60', ["aab", "aabb", "aab" + "c" * 60], ["ab", "aabbb"]),
        ('start: "a"? "b"* "c"+ ["d"]', ["c", "abbccd"], ["", "ab", "cdd"]),
        ('start: ("a" | "b" ("c" | ))  "."', ["a.", "b.", "bc."], ["ac."]),
        ('start: "a" -> x | "b" -> y', ["a", "b"], ["x"]),
        ('start: a _b c\n?a: "a"\n!_b: "b"\n!?c: "c"', ["abc"], ["ab"]),
        ('start: _sep{A, ","}\n_sep{x, s}: x (s x)*\nA: /[ab]/', ["a", "a,b,a"], ["a,", ""]),
        ('start: A\nA.2: B "c"\nB: "a".."b"', ["ac", "bc"], ["c"]),
        ('start: A | B\nA.5: "ab"\nB: /[ab]+/', ["ab", "ba", "aba"], ["c"]),
        ('start.3: "a" | x\nx.9: "a" "b"', ["a", "ab"], ["b"]),
        ('start: "a" "b"\n%ignore " "\n%ignore /#[^\\n]*\\n/', [" a #x\n b #\n", "ab"], ["ab #"]),
        ("start: A?\nA: /x/\n%ignore / /", ["", " ", " x "], ["xx"]),
        ("start: start A | \nA: /x/", ["", "xxx"], ["y"]),
        ("start: A start | \nA: /x/", ["", "xxx"], ["y"]),
        ('start: a\na: a | "x" | a a', ["x", "xx"], [""]),
        ('start: "x"\nunused: unused "y"', ["x"], ["y"]),
        (r'start: "\n" "\"" "\\" "\u00e9"', ['\n"\\é'], ["n"]),
        ("start: /[^é]/", ["a", "è", "😀"], ["é", "ab"]),
        ("start: /[à-ü]+/", ["éè", "à"], ["a", "ÿ"]),
        ("%import common (INT, WS)\n%ignore WS\nstart: INT+", ["1 2\n", "12"], ["1a"]),
        ("%import common.INT -> N\nstart: N", ["12"], ["x"]),
        ("%import python.name\nstart: name", ["x0", "é"], ["0"]),
        ("%import common.INT\n%override INT: /x/\nstart: INT", ["x"], ["1"]),
        ("%import common.INT\n%extend INT: /x/\nstart: INT", ["x", "1"], ["y"]),
    ],
)
def test_supported(source, members, others):
    constraint, read = grammar(source), parser(source)
    for text in [*members, *others]:
        assert parses(read, text) == (text in members), text
        assert accepts(constraint, text) == (text in members), text


COMMON = ["DIGIT", "HEXDIGIT", "INT", "SIGNED_INT", "DECIMAL", "FLOAT", "SIGNED_FLOAT", "NUMBER"]
COMMON += ["SIGNED_NUMBER", "ESCAPED_STRING", "LCASE_LETTER", "UCASE_LETTER", "LETTER", "WORD"]
COMMON += ["CNAME", "WS_INLINE", "WS", "CR", "LF", "NEWLINE", "SH_COMMENT", "CPP_COMMENT"]
COMMON += ["C_COMMENT", "SQL_COMMENT"]


@pytest.mark.parametrize("name", COMMON)
def test_the_common_terminals(name):
    source = f"%import common.{name}\nstart: {name} | {name} start"
    constraint, read = grammar(source), parser(source)
    samples = ["7", "aF", "+12", "-1.5e3", ".5", "1.", "1e", '"a\\"b"', '"a"b"', '"\\\\"', '"\n"']
    samples += ["ab", "A", "_x1", " \t", "\n", "\r\n", "\r", "#x", "//x\n", "/*a*b\n*/", "/***/"]
    samples += ["/* */ */", "-- x", '"', "", "1.5.5", "1e5e5", '"a""b"']
    for text in samples:
        assert accepts(constraint, text) == parses(read, text), text


@pytest.mark.parametrize(
    ("source", "text", "verdict"),
    [
        ('start: NAME NAME | "!"\nNAME: /[a-z]+/', "ab", False),  # dynamic_complete would split it
        ('start: "not" NAME | NAME "!"\nNAME: /[a-z]+/', "notx", True),
        ('start: "not" NAME | NAME "!"\nNAME: /[a-z]+/', "notx!", True),
        ('start: "if" NAME "then"\nNAME: /[a-z]+/\n%ignore " "', "if xthen", False),
        ('start: N "e"\nN: /[0-9]+(e[0-9]+)?/', "1e", True),
        ('start: N "e" N?\nN: /[0-9]+(e[0-9]+)?/', "1e5", False),
        ("start: A\nA: /a|ab/", "ab", False),  # `re` prefers the first alternative
        ('start: A "b"\nA: /a|ab/', "ab", True),
        ("start: S\nS: /'.*?'/", "'a'b'", False),  # and a lazy repeat the shortest
    ],
)
def test_terminals_match_what_re_matches(source, text, verdict):
    assert parses(parser(source), text) == verdict
    assert accepts(grammar(source), text) == verdict


def test_imports_from_beside_the_file(tmp_path):
    (tmp_path / "parts.lark").write_text('A: "a"\nb: "b" A\n')
    path = tmp_path / "main.lark"
    path.write_text("start: A b\n%import .parts (A, b)\n")
    constraint = grammar(path)
    assert accepts(constraint, "aba") and not accepts(constraint, "ab")
    (tmp_path / "parts.lark").write_text('A: "x"\nb: "b" A\n')
    assert grammar(path) != constraint


def test_another_start():
    source = 'start: "a"\nother: "b"'
    assert accepts(grammar(source, start="other"), "b")
    assert grammar(source, start="other") != grammar(source)


def test_equal_grammars_are_equal():
    source = "start: INT\n%import common.INT"
    assert grammar(source) == grammar(source)
    assert len({grammar(source), grammar(source), grammar('start: "a"')}) == 2
    with pytest.raises(AttributeError):
        grammar(source).source = "x"  # type: ignore[misc]


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "line", "column", "words"),
    [
        ('start: "a" )', 1, 12, "Unexpected token"),
        ('start: "a\nb"', 1, 8, "Unexpected input"),
        ('start: "a"\n  | b', 2, 5, "'b' used but not defined"),
        ("start: B", 1, 8, "'B' used but not defined"),
        ('other: "a"', 1, 1, "no rule 'start'"),
        ("", 1, 1, "no rule 'start'"),
        ('start: "a"\nstart: "b"', 1, 1, "defined more than once"),
        ('start: A\nA: A "b"', 2, 1, "Recursion in terminal"),
        ('start: A\nA: "x"*', 2, 1, "empty text"),
        ("start: A\n%declare A", 1, 8, "%declare"),
        ('start: "a"\n%import nope.X', 2, 9, "no grammar 'nope'"),
        ("start: X\n%import common.X", 1, 8, "X"),
        ('start: "x"\n  | /a(/', 2, 7, "unterminated subpattern"),
        ("start: /a{5,3}/", 1, 11, "min repeat"),
        ('start: "b"\n  | /a(?!b)/', 2, 5, "lookahead"),
        ("start: /a(?=b)/ /b/", 1, 8, "lookahead"),
        (r"start: A" + "\n" + r'A: /x\b/ | "c"', 2, 1, "word boundary"),
        ("start: /a$/", 1, 8, "anchor"),
        (r"start: /(a)\1/", 1, 8, "backreference"),
        ("start: /(a)?(?(1)b|c)/", 1, 8, "conditional"),
        ("start: /a++/", 1, 8, "possessive"),
        ("start: /a(?<=ba)/", 1, 8, "lookbehind"),
        ("start: /(?<!a)b/", 1, 8, "lookbehind"),
        ('start: start "a"', 1, 1, "no text at all"),
        ("start: a\na: a", 1, 1, "no text at all"),
        (r"start: /[^\s\S]/", 1, 1, "no text at all"),
        ("start: A A\nA: /a+/", 1, 1, "no text at all"),
        ('start: t{"a"}\nt{x}: x | t{t{x}}', 2, 1, "without end"),
        ("start: " + '"a"? ' * 40, 1, 1, "unfolds"),
        ("start: " + "(" * 3000 + '"a"' + ")" * 3000, 1, 1, "too deeply"),
        ("start: /a{1000000}/", 1, 8, "too large"),
        ("start: /(a|b)*a(a|b){30}/", 1, 8, "too large"),
        ('start: "a"\n' + '  | "b"\n' * 100_000, 1, 1, "800011 characters"),
        ('start: "a\ud800"', 1, 10, "surrogate"),
    ],
)
def test_what_is_refused_names_its_place(source, line, column, words):
    started = time.monotonic()
    with pytest.raises(GrammarError, match=words) as caught:
        grammar(source)
    assert time.monotonic() - started < 10
    message, _, caret = str(caught.value).split("\n")
    assert message.startswith(f"grammar, line {line}, column {column}: ")
    assert caret.endswith("^")
    str(caught.value).encode()  # it can be printed


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: grammar(5), TypeError, "as a str or its path"),
        (lambda: grammar('start: "a"', start=5), TypeError, "name of one rule"),
        (lambda: grammar('start: "a"').start(BYTES, ("",)), GrammarError, "empty"),
        (lambda: grammar('start: "a"').start(BYTES, ("\ud800",)), GrammarError, "surrogate"),
    ],
)
def test_errors(build, error, words):
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("start: " + " | ".join(f'"w{i}"' for i in range(2000)), "w1999"),
        ('start: "a"~0..100000', "a" * 50),
        ("start: " + "(" * 60 + '"a"' + ")?" * 60, "a"),
        ("\n".join(f'{"start" if not i else f"r{i}"}: "x" r{i + 1} | "y"' for i in range(600))
         + '\nr600: "z"', "x" * 599 + "y"),
        ('start: "(" start ")" start | ', "(" * 300 + ")" * 300),
        ("start: start start start | A?\nA: /a/", "a" * 12),
    ],
)  # fmt: skip
def test_large_grammars_and_texts_are_quick(source, text):
    started = time.monotonic()
    assert accepts(grammar(source), text)
    assert time.monotonic() - started < 10
