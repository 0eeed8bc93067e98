"""DESIGN section 6, test 1, the exact part, for each potential, and products of two and three.

The vocabularies have tokens that cross the borders of what the constraints say. For some cases the
enumeration itself is compared with a brute force over token sequences that shares nothing with it.
"""

import itertools
import json
import re
from functools import cache

import numpy as np
import pytest
from lark import Lark
from lark.exceptions import LarkError

from smcprog import (
    EOS,
    LEAVE,
    choice,
    gen,
    grammar,
    json_schema,
    lm,
    prompt,
    regex,
    reward,
    smc_program,
)
from smcprog.inference.exact import enumerate_traces
from smcprog.potentials.base import LM
from tests.inference import tables
from tests.inference.programs import CountOf, NoDouble
from tests.inference.test_enumeration import expected_weights, masses

SUMS = 'start: term ("+" term)*\nterm: "1" | "(" start ")"'
SUM_TOKENS = ("1", "+", "(", ")", "1+", "1)")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 12, True]}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON_TOKENS = ('{"a":', "1", "2", "}", "true", "1}", '{"', 'a":', "}2")
FREE_TOKENS = ("1", "+", "+1")  # fewer, where no constraint thins the sequences


@smc_program
def text(potentials, stop, max_tokens):
    prompt("1")
    return str(gen(*potentials, stop=stop, max_tokens=max_tokens))


def most(tokens):
    """The budget of a text: {"a":12} takes four tokens."""
    return 4 if tokens is JSON_TOKENS else 3


def length(text):
    return 0.3 * len(text)


def ones(text):
    return float(text.count("1"))


ALONE = [
    (SUM_TOKENS, (grammar(SUMS),), None),
    (SUM_TOKENS, (grammar(SUMS),), EOS),
    (SUM_TOKENS, (grammar(SUMS),), ("+1", ")")),
    (JSON_TOKENS, (json_schema(SCHEMA),), None),
    (JSON_TOKENS, (json_schema(SCHEMA),), (LEAVE, EOS)),
    (JSON_TOKENS, (json_schema(SCHEMA),), "2"),
    (SUM_TOKENS, (choice("1", "1+1", "(1)"),), None),
    (SUM_TOKENS, (choice("1", "1+1", "(1)"),), "+"),
    (SUM_TOKENS, (regex(r"[1+]{1,2}\)?"),), EOS),
    (FREE_TOKENS, (reward(length),), None),
    (FREE_TOKENS, (reward(length, every="block"),), ("1+1", "++")),
    (FREE_TOKENS, (reward(ones, every="+", beta=-0.5),), None),
    (FREE_TOKENS, (CountOf("+", 0.4),), ()),
    (FREE_TOKENS, (), "11"),
    (FREE_TOKENS, (lm.at(temperature=0.7, top_p=0.9),), None),
    (FREE_TOKENS, (lm.at(top_k=3),), EOS),
    (FREE_TOKENS, (lm.given("+") ** 0.7,), None),
]
PRODUCTS = [
    (SUM_TOKENS, (grammar(SUMS), lm.at(top_k=6)), None),
    (SUM_TOKENS, (json_schema({"enum": [1, 11]}), lm.given("") ** -0.5), EOS),
    (SUM_TOKENS, (grammar(SUMS), NoDouble("(")), ")"),
    (FREE_TOKENS, (reward(length, every="+"), lm.given("+")), "1+"),
    (JSON_TOKENS, (json_schema(SCHEMA), reward(len, beta=0.2)), (EOS, LEAVE)),
    (SUM_TOKENS, (grammar(SUMS) * reward(length, every="block") * lm**2,), None),
    (SUM_TOKENS, (grammar(SUMS) * regex(r"1\+.*") * lm.given("(") ** 0.5,), EOS),
    (SUM_TOKENS, (grammar(SUMS) * reward(ones, every="+"), CountOf("+", 0.4)), ("+1", ")")),
    (JSON_TOKENS, (json_schema(SCHEMA), regex(r".*[1e].*"), lm.at(top_k=9)), None),
    (JSON_TOKENS, (json_schema(SCHEMA) * reward(ones, every="1") * CountOf("2", -0.3),), "2"),
    (SUM_TOKENS, (choice("1", "1+", "(1)") * reward(ones) * lm.given("") ** -0.5,), None),
    (SUM_TOKENS, (regex("[1+]+"), reward(length, every="block"), CountOf("1", 0.2)), "+"),
]


def powered(potentials, alpha):
    """The potentials with the target's own factor, `lm` if there is none, raised to alpha."""
    if any(isinstance(p, LM) and p.own for p in potentials):
        return tuple(p**alpha if isinstance(p, LM) and p.own else p for p in potentials)
    return (lm**alpha, *potentials)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("alpha", [0.5, 2.0])
@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize(("tokens", "potentials", "stop"), ALONE + PRODUCTS)
def test_every_outcome(tokens, potentials, stop, block, alpha):
    engine = tables.engine(tokens=tokens)
    call = text(powered(potentials, alpha), stop, most(tokens))
    truth = masses(enumerate_traces(call, engine))
    assert len(truth) > 1
    found = masses(expected_weights(call, engine, block))
    assert found == pytest.approx(truth, rel=1e-10, abs=1e-14)


def brute_force(engine, tokens, accepts, phi, factors, stop):
    """The measure of one constrained `gen`, token sequence by token sequence.

    ``accepts`` decides membership. A sequence is viable where one of at most five tokens begins
    with it and is a member (with a stop string: has a stop after one). That is enough for whatever
    may follow a member, which is where the mask decides the mass of LEAVE.
    ``factors`` are (ids before the text, exponent, change of the table) triples.
    """
    strings = (stop,) if isinstance(stop, str) else ()

    def stopped(word):
        """Where the stop that ends the text begins."""
        for end in range(len(word) + 1):
            for s in strings:
                if word[:end].endswith(s) and accepts(word[: end - len(s)]):
                    return end - len(s)
        return None

    viable = set()
    for n in range(6):
        for ids in itertools.product(range(len(tokens)), repeat=n):
            word = "".join(tokens[i] for i in ids)
            if stopped(word) is not None if strings else accepts(word):
                viable.update(ids[:k] for k in range(n + 1))
    eos = len(tokens)
    law = {}

    def extend(ids, gamma):
        word = "".join(tokens[i] for i in ids)
        going_on = [i for i in range(len(tokens)) if (*ids, i) in viable]
        tables_ = [
            (change(engine._models["target"]((*start, *ids))), alpha)
            for start, alpha, change in factors
        ]
        at = stopped(word)
        if at is not None:
            law[word[:at]] = law.get(word[:at], 0.0) + gamma * phi(word[:at])
            return
        if accepts(word):
            if len(ids) == most(tokens) or (not going_on and stop is LEAVE):
                end = 1.0  # cut, or certain
            elif stop is EOS:
                end = np.prod([table[eos] ** alpha for table, alpha in tables_])
            elif stop is LEAVE:
                left = [i for i in range(len(tokens) + 2) if i not in going_on]
                end = np.prod([sum(table[left]) ** alpha for table, alpha in tables_])
            else:
                end = 0.0
            law[word] = law.get(word, 0.0) + gamma * float(end) * phi(word)
        if len(ids) < most(tokens):
            for i in going_on:
                p = np.prod([table[i] ** alpha for table, alpha in tables_])
                extend((*ids, i), gamma * float(p))

    extend((), 1.0)
    return {word: gamma for word, gamma in law.items() if gamma}


def unchanged(table):
    return table


def top_six(table):
    kept = np.where(table >= np.sort(table)[-6], table, 0.0)
    return kept / kept.sum()


def sums_accept():
    parser = Lark(SUMS, parser="earley")

    @cache
    def accepts(word):
        try:
            parser.parse(word)
        except LarkError:
            return False
        return True

    return accepts


@cache
def json_accepts(word):
    try:
        value = json.loads(word)
    except ValueError:
        return False
    fits = isinstance(value, dict) and list(value) == ["a"] and value["a"] in (1, 12, True)
    return fits and json.dumps(value, separators=(",", ":")) == word


SUM = sums_accept()
CONTEXT = (0,)  # "1" of SUM_TOKENS
OWN = [(CONTEXT, 1.0, unchanged)]


def one(word):
    return 1.0


@pytest.mark.parametrize(
    ("tokens", "potentials", "stops", "accepts", "phi", "factors"),
    [
        (SUM_TOKENS, (grammar(SUMS),), (LEAVE, EOS, "+1"), SUM, one, OWN),
        (
            SUM_TOKENS,
            (grammar(SUMS), reward(length, every="block"), lm**2),
            (LEAVE, EOS, ")"),
            SUM,
            lambda w: np.exp(length(w)),
            [(CONTEXT, 2.0, unchanged)],
        ),
        (
            SUM_TOKENS,
            (grammar(SUMS), regex(r"1\+.*"), lm.at(top_k=6)),
            (LEAVE, EOS),
            lambda w: SUM(w) and re.fullmatch(r"1\+.*", w) is not None,
            one,
            [(CONTEXT, 1.0, top_six)],
        ),
        (
            JSON_TOKENS,
            (json_schema(SCHEMA),),
            (LEAVE, EOS, "2"),
            json_accepts,
            one,
            [((1,), 1.0, unchanged)],
        ),
        (
            SUM_TOKENS,
            (choice("1", "1+", "(1)"), reward(ones), lm.given("") ** -0.5),
            (LEAVE, EOS, "+"),
            lambda w: w in ("1", "1+", "(1)"),
            lambda w: np.exp(ones(w)),
            [*OWN, ((), -0.5, unchanged)],
        ),
        (
            SUM_TOKENS,
            (regex(r"[1+]{1,2}\)?"), CountOf("1", 0.4), lm.given("(")),
            (LEAVE, EOS, "+1"),
            lambda w: re.fullmatch(r"[1+]{1,2}\)?", w) is not None,
            lambda w: np.exp(0.4 * ones(w)),
            [*OWN, ((2,), 1.0, unchanged)],
        ),
    ],
)
def test_the_truth(tokens, potentials, stops, accepts, phi, factors):
    engine = tables.engine(tokens=tokens)
    for stop in stops:
        truth = masses(enumerate_traces(text(potentials, stop, most(tokens)), engine))
        expected = brute_force(engine, tokens, accepts, phi, factors, stop)
        assert len(truth) > 1
        assert truth == pytest.approx(expected, rel=1e-10)


@smc_program
def two_texts():
    prompt("1+")
    first = gen(lm**1.5, grammar(SUMS), reward(length, every="block"), max_tokens=3)
    second = gen(json_schema({"enum": [1, 11]}))
    return f"{first} {second}"


@pytest.mark.parametrize("block", [0, 2])
def test_a_program_of_them(block):
    engine = tables.engine(tokens=(*SUM_TOKENS, "11"))
    truth = masses(enumerate_traces(two_texts(), engine))
    assert masses(expected_weights(two_texts(), engine, block)) == pytest.approx(truth, rel=1e-10)
