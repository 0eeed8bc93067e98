"""Masks are exact: a token is allowed where some bytes complete the text, and nowhere else."""

import copy
import gc
import random
import time
import weakref
from enum import Enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog.errors import GrammarError
from smcprog.potentials.grammar import choice, regex
from smcprog.vocabulary import BYTES, Vocabulary, unpack
from tests.potentials.hostile import vocabulary
from tests.potentials.languages import Alt, Cat, accepted, languages, literal, viable

TOKENS = [b"a", b"b", b"1", b"\n", "é".encode(), b"\xc3", b"\xa9", b"ab", b"a\xc3", b"\xa9b", b"bb"]
TOKENS += [b"a", b"\xff", b"b\xff", b"", b"<pad>", b"</s>", b"a1", "éé".encode(), b" b"]
CONTROL, EOS_ID = 15, 16
VOCABULARY = Vocabulary(TOKENS, eos_ids=[EOS_ID], control_ids=[CONTROL])


def allowed(matcher) -> set[int]:
    mask = matcher.mask()
    assert mask.dtype == np.uint32 and mask.shape == (VOCABULARY.words,)
    return set(np.flatnonzero(unpack(mask, VOCABULARY.words * 32)))


def walk(matcher, is_viable, is_accepted, seed: int, steps: int = 6) -> None:
    """Compare along one random text: every token at every step, accepting or not."""
    rng = random.Random(seed)
    text = b""
    for _ in range(steps):
        expected = {
            i for i, token in enumerate(VOCABULARY.tokens) if token and is_viable(text + token)
        }
        assert allowed(matcher) == expected, text
        assert matcher.accepts() == is_accepted(text), text
        refused = set(range(VOCABULARY.size)) - expected
        assert not any(matcher.fork().advance(token) for token in refused), text
        if not expected:
            return
        token = rng.choice(sorted(expected))
        assert matcher.advance(token)
        text += VOCABULARY.tokens[token]


@settings(max_examples=250, deadline=None)
@given(languages(), st.integers(0, 2**32))
def test_masks_of_a_regex_are_exact(language, seed):
    matcher = regex(str(language)).start(VOCABULARY)
    walk(matcher, lambda text: viable(language, text), lambda text: accepted(language, text), seed)


@settings(max_examples=250, deadline=None)
@given(
    languages(),
    st.lists(st.sampled_from(["a", "b", "ab", "é", "\n", "bb", "1a"]), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_masks_before_a_stop_string_are_exact(language, stops, seed):
    """R.(s1|..|sn).Sigma*: accepting from the first occurrence on, whatever follows."""
    stopped = Cat((language, Alt(tuple(literal(stop) for stop in stops))))

    def is_accepted(text: bytes) -> bool:
        return any(accepted(stopped, text[:end]) for end in range(len(text) + 1))

    matcher = regex(str(language)).start(VOCABULARY, tuple(stops))
    walk(matcher, lambda text: is_accepted(text) or viable(stopped, text), is_accepted, seed)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(st.sampled_from('ab1é\n"/\\ '), max_size=5), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_masks_of_a_choice_are_exact(strings, seed):
    texts = [string.encode() for string in strings]
    walk(
        choice(strings).start(VOCABULARY),
        lambda text: any(whole.startswith(text) for whole in texts),
        lambda text: text in texts,
        seed,
    )


def test_nothing_can_follow_a_complete_text():
    matcher = regex("ab").start(VOCABULARY)
    assert matcher.advance(TOKENS.index(b"ab"))
    assert matcher.accepts()
    assert allowed(matcher) == set()
    assert not matcher.advance(0)
    assert matcher.accepts()  # a refused token changes nothing


@pytest.mark.parametrize("constraint", [regex(""), choice(""), regex("(?:)*")])
def test_the_empty_text(constraint):
    matcher = constraint.start(VOCABULARY)
    assert matcher.accepts()
    assert allowed(matcher) == set()


def test_viable_in_bytes_even_where_no_token_leads_on():
    """The masks of a tiny vocabulary may be empty before the text is complete."""
    tiny = Vocabulary([b"a", b"b", b"ab", b""], eos_ids=[3])
    matcher = regex("acb").start(tiny)
    assert matcher.advance(0)
    assert not unpack(matcher.mask(), tiny.size).any()
    assert not matcher.accepts()


def test_an_acceptor_of_bytes():
    matcher = regex("é+").start(BYTES)
    for byte in "éé".encode():
        assert matcher.mask().shape == (8,)
        assert unpack(matcher.mask(), 256).nonzero()[0].tolist() == [byte]
        assert matcher.advance(byte)
    assert matcher.accepts()


def test_forks_are_independent():
    matcher = regex("a+b?").start(VOCABULARY)
    matcher.advance(0)
    fork = matcher.fork()
    assert fork.advance(1)
    assert allowed(fork) == set()
    assert 0 in allowed(matcher) and 1 in allowed(matcher)


def test_starts_are_independent_and_compiled_once():
    first = regex("[ab]+").start(VOCABULARY)
    first.advance(0)
    again = regex("[ab]+").start(VOCABULARY)
    assert not again.accepts() and first.accepts()


def test_a_vocabulary_can_be_freed():
    vocabulary = Vocabulary([b"a", b"b"])
    regex("a").start(vocabulary)
    seen = weakref.ref(vocabulary)
    del vocabulary
    gc.collect()
    assert seen() is None


def test_constraints_compare_by_value():
    assert regex("a+") == regex("a+") != regex("a*")
    assert hash(choice("a", "b")) == hash(choice(["a", "b"]))
    assert choice("a", "b") == choice(x for x in "aba")
    assert copy.deepcopy(choice("a")) == choice("a")
    assert repr(choice("a", "b")) == "choice('a', 'b')"
    assert repr(choice(map(str, range(100)))).endswith("'7', ... 92 more)")


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: regex(5), TypeError, "as a str"),
        (lambda: regex(b"a"), TypeError, "as a str"),
        (lambda: choice(), ValueError, "at least one"),
        (lambda: choice([]), ValueError, "at least one"),
        (lambda: choice(5), TypeError, "takes strings"),
        (lambda: choice("a", 5), TypeError, r"5 \(int\)"),
        (lambda: choice(["a"], "b"), TypeError, r"\['a'\] \(list\)"),
        (lambda: choice(["a", ["b"]]), TypeError, r"\['b'\] \(list\)"),
        (lambda: choice("\ud800"), GrammarError, "surrogate"),
        (lambda: regex(r"[^\s\S]a").start(BYTES), GrammarError, "matches no text"),
        (lambda: regex("a").start(BYTES, ("\ud800",)), GrammarError, "surrogate"),
    ],
)
def test_errors(build, error, words):
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize(
    "pattern", ["(?:.{0,9999}a){9999}b", "(?:(?:a|b)*a(?:a|b){400}){50}", "(?:a?){500}a{500}"]
)
def test_a_huge_automaton_is_built_lazily_or_an_error_but_no_hang(pattern):
    matcher = regex(pattern).start(VOCABULARY)
    rng = random.Random(0)
    try:
        for _ in range(40):
            assert matcher.advance(rng.choice(sorted(allowed(matcher))))
    except GrammarError as error:
        assert "too large" in str(error)


@pytest.mark.parametrize(
    "constraint",
    [
        lambda: choice(f"word {i}" for i in range(5000)),
        lambda: regex("|".join(f"word {i}" for i in range(5000))),
        lambda: regex(".{0,50}the.{0,50}"),
        lambda: regex(r"(\w{1,20} ){1,20}the( \w{1,20}){1,20}"),
    ],
)
@pytest.mark.parametrize("followed_by", [(), (".", "\n")])
def test_thousands_of_alternatives_compile_in_under_a_second(constraint, followed_by):
    tokens = vocabulary()
    regex("a").start(tokens)  # the tables of the vocabulary
    begin = time.process_time()
    assert constraint().start(tokens, followed_by).mask().any()
    assert time.process_time() - begin < 1


def test_thousands_of_choices():
    words = ["".join(random.Random(i).choices("ab1 ", k=9)) for i in range(5000)]
    matcher = choice(words).start(VOCABULARY, (".",))
    assert allowed(matcher) >= {0, 1, 2}


Label = Enum("Label", {"GOOD": " positive", "BAD": " negative"}, type=str)


def test_members_of_an_enum_are_their_values():
    assert choice(Label) == choice(Label.GOOD, Label.BAD) == choice(" positive", " negative")
