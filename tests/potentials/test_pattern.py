"""Patterns mean what Python's `re.fullmatch` says, or are refused with their place."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smcprog.errors import GrammarError
from smcprog.potentials.grammar import regex
from smcprog.potentials.pattern import literal
from smcprog.vocabulary import BYTES


def accepts(pattern: str, text: str) -> bool:
    matcher = regex(pattern).start(BYTES)
    return all(matcher.advance(byte) for byte in text.encode()) and matcher.accepts()


# Fragments that `re` reads in surprising ways; joined at random, most joins are well-formed.
FRAGMENTS = ["a", "b", "é", "|", "(", ")", "(?:", "(?i:", "(?s-i:", "(?a:", "(?P<n>", "*", "+", "?"]
FRAGMENTS += [
    "{2}",
    "{,1}",
    "{1,}",
    "{,}",
    "{}",
    "{a}",
    "{",
    "}",
    "[",
    "]",
    "[^",
    "-",
    "^",
    ".",
    ",",
]
FRAGMENTS += [
    r"\d",
    r"\w",
    r"\S",
    r"\x41",
    r"\101",
    r"\0",
    r"\n",
    r"\.",
    r"\]",
    r"[\]a-c]",
    "(?#x)",
]
FRAGMENTS += ["[]a]", "[^]]", r"[\b]", r"\N{BULLET}", r"\u00e9", "K", "ß", "#", "/", '"', " ", "\n"]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    st.lists(
        st.text(st.sampled_from('abéÉAKkKſs1²\n .]-{},\0\b•/"#x^'), max_size=4),
        min_size=4,
        max_size=8,
    ),
)
@example("(?i)ſ", ["s", "S", "ſ", "z"])
@example("a(?#c)*", ["aa", "", "a", "b"])
@example("(?i:K)k", ["kk", "Kk", "kK", "KK"])
@example("x{,}y{}z{a}", ["xxyz", "xxy{}z{a}", "y{}z{a}", "xy"])
@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
def test_a_pattern_means_what_re_says(pattern, texts):
    try:
        expected = re.compile(pattern)
    except re.error as error:
        with pytest.raises(GrammarError, match=re.escape(error.msg)):
            regex(pattern)
        return
    try:
        constraint = regex(pattern)
        constraint.start(BYTES)
    except GrammarError as error:
        assert "not supported" in str(error) or "matches no text" in str(error)
        return
    for text in [*texts, pattern]:
        assert accepts(pattern, text) == bool(expected.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize("pattern", [r"\d", r"\w", r"\s", r"(?a)\W", ".", "(?i)k", "(?i)[à-é]"])
def test_one_character_sets_are_those_of_re(pattern):
    sample = [chr(code) for code in range(0x700)] + ["\u2028", "\u212a", "中", "\U0001d7d8"]
    for char in sample:
        assert accepts(pattern, char) == bool(re.fullmatch(pattern, char)), (pattern, char)


@pytest.mark.parametrize(
    ("pattern", "line", "column", "words"),
    [
        ("a(b", 1, 2, "unterminated subpattern"),
        ("ab[c", 1, 3, "unterminated character set"),
        ("a\nb**", 2, 3, "multiple repeat"),
        ("ab\n(?=c)d", 2, 1, "lookahead"),
        ("a(?!b)", 1, 2, "condition"),
        ("(?<=a)b", 1, 1, "lookbehind"),
        ("(?<!a)b", 1, 1, "lookbehind"),
        (r"(a)\1", 1, 4, "backreference"),
        ("(?P<x>a)(?P=x)", 1, 9, "backreference"),
        ("(a)?(?(1)b|c)", 1, 5, "conditional"),
        ("(?>a)", 1, 1, r"\(\?:\.\.\.\)"),
        ("a++", 1, 3, "possessive"),
        (r"\ba", 1, 1, "word boundary"),
        ("a^b", 1, 2, "remove it"),
        ("a(b$)", 1, 4, "remove it"),
        ("(?x) a", 1, 1, "verbose"),
        ("a(?x:b)", 1, 2, "verbose"),
        ("a{99999999999}", 1, 1, "too large"),
        ("ab\ud800", 1, 3, "surrogate"),
        ("(" * 5000 + ")" * 5000, 1, 1, "nested too deeply"),
    ],
)
def test_what_is_refused_names_its_place(pattern, line, column, words):
    with pytest.raises(GrammarError, match=words) as caught:
        regex(pattern)
    message, shown, caret = str(caught.value).split("\n")
    assert message.startswith(f"regex, line {line}, column {column}: ")
    assert caret.index("^") == 4 + column - 1
    str(caught.value).encode()  # it can be printed


@pytest.mark.parametrize("pattern", ["^a$", r"\Aa\Z", "^a|a$", "(?m)^a$", "a$|b", "(?i)^A"])
def test_anchors_at_the_edges_say_nothing(pattern):
    assert accepts(pattern, "a")
    assert not accepts(pattern, "aa")


@given(st.text(max_size=20))
def test_a_literal_is_its_text_alone(text):
    assert re.fullmatch(re.sub(r"\\x\{(\w+)\}", lambda m: f"\\U{m[1]:0>8}", literal(text)), text)
