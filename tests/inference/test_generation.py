"""Events, stops and masks of a single `gen`, against the direct reading of DESIGN section 2."""

import pytest

from smcprog import EOS, LEAVE, choice, regex
from smcprog.inference.exact import enumerate_traces
from tests.inference import tables
from tests.inference.programs import one
from tests.inference.reference import gen_law

PATTERNS = ["[ab]", "a+", "(ab|a)", "(ab)*", "a(a|b)?b", "[^b]*", "b?a{1,2}", ""]
FREE_STOPS = [None, (), "b", ("ab", "a"), (EOS, "ba"), ("b", "ab")]
STOPS = [None, EOS, LEAVE, (), "b", ("ab", "b"), (LEAVE, EOS), (EOS, "ba"), (LEAVE, "b")]


def law_of(exact):
    law = {}
    for value, gamma in zip(exact.values, exact.gammas, strict=True):
        if gamma:
            law[value] = law.get(value, 0.0) + gamma
    return law


def as_tuple(stop):
    return stop if stop is None or isinstance(stop, tuple) else (stop,)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("pattern", "stop"),
    [(None, stop) for stop in FREE_STOPS] + [(p, stop) for p in PATTERNS for stop in STOPS],
)
def test_law_of_one_gen(pattern, stop, alpha):
    engine = tables.engine(draft=False)
    potentials = () if pattern is None else (regex(pattern),)
    exact = enumerate_traces(one(alpha, potentials, stop, 3), engine)
    expected = gen_law(
        tables.random_table(0), tables.TOKENS, alpha, pattern, as_tuple(stop), max_tokens=3
    )
    assert law_of(exact) == pytest.approx(expected, rel=1e-12)


def test_a_choice_has_the_odds_of_its_texts():
    engine = tables.engine(draft=False)
    exact = enumerate_traces(one(1.0, (choice("a", "ab", "ba"),), None, 4), engine)
    expected = gen_law(tables.random_table(0), tables.TOKENS, 1.0, "a|ab|ba", None, 4)
    assert law_of(exact) == pytest.approx(expected, rel=1e-12)
    assert {text for text, _ in expected} == {"a", "ab", "ba"}
