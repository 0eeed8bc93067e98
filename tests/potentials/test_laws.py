from dataclasses import dataclass

import numpy as np
import pytest

from smcprog import (
    Constraint,
    GrammarError,
    PotentialError,
    TextPotential,
    check_potential,
    choice,
    grammar,
    json_schema,
    lm,
    regex,
    reward,
)
from smcprog.vocabulary import BYTES, Vocabulary, pack

ARITHMETIC = 'start: term ("+" term)*\nterm: /[0-9]+/ | "(" start ")"'


@pytest.mark.parametrize(
    "potential",
    [
        regex("[0-9]+(ab|a)?"),
        regex("[^a]é*"),
        choice("yes", "yesterday", "☕"),
        grammar(ARITHMETIC),
        json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        reward(len, beta=0.2),
        reward(len, every="block"),
        reward(len, every="\n\n"),
        regex("a+") * reward(len) * lm**2,
    ],
    ids=repr,
)
def test_our_own(potential):
    check_potential(potential)


def test_a_constraint_over_a_models_tokens(shipped_engine):
    vocabulary = shipped_engine.tokenization.vocabulary
    check_potential(regex(" [1-5]( stars)?"), vocabulary=vocabulary)


def test_what_is_no_potential():
    with pytest.raises(TypeError, match=r"check_potential\(\) takes a potential, not 'abc'"):
        check_potential("abc")


@dataclass(frozen=True)
class Scripted(TextPotential):
    """Values by a rule that each test chooses."""

    rule: object
    stage = "block"

    def log_potential(self, texts, complete):
        return self.rule(texts, complete)


calls = iter(range(1000))


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        (lambda texts, complete: np.zeros((len(texts), 1)), "one log weight for each text"),
        (lambda texts, complete: np.zeros(max(len(texts), 1)), r"shape \(1,\) for 0 texts"),
        (lambda texts, complete: [[0.0], []] * len(texts), "for each text: .* is no array"),
        (lambda texts, complete: [np.nan] * len(texts), "finite or -inf: nan for"),
        (lambda texts, complete: [np.inf] * len(texts), "finite or -inf: inf for"),
        (lambda texts, complete: [next(calls)] * len(texts), "same text has the same value"),
        (lambda texts, complete: [len(texts)] * len(texts), "same text has the same value"),
        (lambda texts, complete: np.arange(len(texts)), "same text has the same value"),
        (lambda texts, complete: [0.0 if complete else len(texts)] * len(texts), "same value"),
        (lambda texts, complete: [len(t.tokens) for t in texts], "characters alone.*reads_tokens"),
        (
            lambda texts, complete: [0.0 if complete else len(t.tokens) for t in texts],
            "characters alone.*reads_tokens",
        ),
        (lambda texts, complete: [t.logprob for t in texts], "characters alone.*stop and logprob"),
        (lambda texts, complete: [float(t.stop is None) for t in texts], "alone.*stop and logprob"),
        (
            lambda texts, complete: [0.0 if complete else -np.inf for _ in texts],
            "-inf is final.*'' has -inf, and it has 0.0",
        ),
        (
            lambda texts, complete: [-np.inf if len(t) == 3 else 0.0 for t in texts],
            "-inf is final",
        ),
        (  # it dies at six characters, but not where it ends at eight
            lambda texts, complete: [
                0.0 if len(t) < 6 or (complete and len(t) == 8) else -np.inf for t in texts
            ],
            "-inf is final.*'yesterda' has -inf, and it has 0.0",
        ),
    ],
)
def test_a_text_potential_that_breaks_one_law(rule, law):
    with pytest.raises(PotentialError, match=law):
        check_potential(Scripted(rule), texts=["", "yes", "yesterday", "abcdef"] * 3)


class Unhashable(TextPotential):
    stage = "end"
    __hash__ = None

    def log_potential(self, texts, complete):
        return np.zeros(len(texts))


def test_a_potential_is_a_value():
    with pytest.raises(PotentialError, match="which can be a key of a dict.*frozen dataclass"):
        check_potential(Unhashable())


class Unequal(Unhashable):
    def __eq__(self, other):
        return False

    def __hash__(self):
        return 1


def test_a_potential_equals_itself():
    with pytest.raises(PotentialError, match="it is not equal to itself"):
        check_potential(Unequal())


@dataclass(frozen=True)
class Rounding(TextPotential):
    """As a model that judges texts in batches does."""

    reads_tokens = True
    stage = "block"

    def log_potential(self, texts, complete):
        return np.array([len(text.tokens) * (1 + 1e-9 * len(texts)) for text in texts])


def test_rounding_is_no_violation_and_tokens_may_be_read():
    check_potential(Rounding())


LETTERS = Vocabulary([b"a", b"b", b"ab", b"aba", b"z", b"<eos>"], eos_ids=[5])


class Pairs:
    """A matcher of (ab)*, or of (ab)* and a stop and anything, with one flaw."""

    def __init__(self, flaw, vocabulary, stops, state=None, advanced=None):
        self.flaw, self.vocabulary, self.stops = flaw, vocabulary, stops
        self.state = state if state is not None else [b""]
        self.advanced = advanced if advanced is not None else [0]

    @property
    def shared(self):
        return self.flaw == "forks"

    def viable(self, data):
        whole = self.state[0] + data
        going_on = any(
            stop.startswith(rest) or rest.startswith(stop)
            for rest in self.after_pairs(whole)
            for stop in self.stops
        )
        return going_on or (b"ab" * len(whole)).startswith(whole)

    @staticmethod
    def after_pairs(whole):
        rests = [whole]
        while rests[-1].startswith(b"ab"):
            rests.append(rests[-1][2:])
        return rests

    def mask(self):
        allowed = np.array([bool(t) and self.viable(t) for t in self.vocabulary.tokens])
        single = self.vocabulary is BYTES
        if self.flaw == "control" and not single:
            allowed[self.vocabulary.size - 1] = True
        if self.flaw == "misses" and not single:
            allowed &= np.array([len(t) < 2 for t in self.vocabulary.tokens])
        if self.flaw == "allows" and not single:
            allowed[4] = True
        if self.flaw == "dead end" and not single:
            allowed &= np.array([t != b"b" for t in self.vocabulary.tokens])
        if self.flaw == "bools":
            return allowed
        return np.append(pack(allowed), np.zeros(int(self.flaw == "words"), np.uint32))

    def advance(self, token):
        data = self.vocabulary.tokens[token]
        single = self.vocabulary is BYTES
        fine = self.viable(data) or (self.flaw == "allows" and data == b"z" and not single)
        if self.flaw == "misses" and len(data) > 1:
            return False
        self.state[0] += data
        self.advanced[0] += 1
        return fine or self.flaw == "takes all"

    def accepts(self):
        if self.flaw == "accepts" and self.vocabulary is not BYTES:
            return True
        if self.flaw == "accepts shares" and self.advanced[0] % 2:
            return False
        rests = self.after_pairs(self.state[0])
        if self.stops:
            return any(rest.startswith(stop) for rest in rests for stop in self.stops)
        return b"" in rests

    def fork(self):
        state = self.state if self.shared else list(self.state)
        advanced = self.advanced if self.flaw == "accepts shares" else list(self.advanced)
        return Pairs(self.flaw, self.vocabulary, self.stops, state, advanced)


@dataclass(frozen=True)
class PairsOf(Constraint):
    flaw: str

    def start(self, vocabulary, followed_by=()):
        stops = () if self.flaw == "stops" else [stop.encode() for stop in followed_by]
        return Pairs(self.flaw, vocabulary, stops)


@pytest.mark.parametrize(
    ("flaw", "law"),
    [
        ("forks", "forks share nothing"),
        ("control", "control ids are never allowed"),
        ("misses", "forbids nothing but what has weight zero"),
        ("allows", "can be continued or ends the text.*'z'|forbids what has.*'z'"),
        ("takes all", "refuses what the mask forbids"),
        ("accepts", "accepted does not depend on the tokens"),
        ("dead end", "can be continued or ends the text"),
        ("bools", r"a mask is uint32\[\d+\], a bit for each token: bool"),
        ("words", r"a mask is uint32\[1\], a bit for each token: uint32\[2\]"),
        ("accepts shares", r"forks share nothing: its accepts\(\) changed"),
        ("stops", r"followed_by \('\\n', 'a.'\)"),
    ],
)
def test_a_constraint_that_breaks_one_law(flaw, law):
    with pytest.raises(PotentialError, match=law):
        check_potential(PairsOf(flaw), vocabulary=LETTERS)


def test_a_constraint_without_a_flaw():
    check_potential(PairsOf(""))
    check_potential(PairsOf(""), vocabulary=LETTERS)


@dataclass(frozen=True)
class Refusing(PairsOf):
    def start(self, vocabulary, followed_by=()):
        if followed_by:
            raise GrammarError("no stop strings")
        return super().start(vocabulary)


def test_a_constraint_may_refuse_stop_strings():
    check_potential(Refusing(""))
