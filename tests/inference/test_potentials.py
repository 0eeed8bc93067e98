"""DESIGN section 6, test 1, the exact part, for each potential, and products of two and three.

The vocabularies have tokens that cross the borders of what the constraints say. For some cases the
enumeration itself is compared with a brute force over token sequences that shares nothing with it.
"""

import itertools
import json

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
from tests.inference import tables
from tests.inference.programs import CountOf
from tests.inference.test_enumeration import expected_weights, masses

SUMS = 'start: term ("+" term)*\nterm: "1" | "(" start ")"'
SUM_TOKENS = ("1", "+", "(", ")", "1+", "1)")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 12, True]}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON_TOKENS = ('{"a":', "1", "2", "}", "true", "1}", '{"', 'a":')


@smc_program
def text(potentials, stop, max_tokens):
    return str(gen(*potentials, stop=stop, max_tokens=max_tokens))


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
    (SUM_TOKENS, (choice("1", "1+1", "(1)"),), None),
    (SUM_TOKENS, (regex(r"[1+]{1,2}\)?"),), EOS),
    (SUM_TOKENS, (reward(length),), None),
    (SUM_TOKENS, (reward(length, every="block"),), ("1)", "+")),
    (SUM_TOKENS, (reward(ones, every="+", beta=-0.5),), None),
    (SUM_TOKENS, (lm.at(temperature=0.7, top_p=0.9),), None),
    (SUM_TOKENS, (lm.at(top_k=4),), ()),
]
PRODUCTS = [
    (SUM_TOKENS, (grammar(SUMS), reward(length, every="block")), None),
    (SUM_TOKENS, (grammar(SUMS), regex(r"1\+.*"), lm**2), None),
    (SUM_TOKENS, (grammar(SUMS) * reward(ones, every="+"), CountOf("+", 0.4)), EOS),
    (JSON_TOKENS, (json_schema(SCHEMA), regex(r".*[1e].*"), lm.at(top_k=9)), None),
    (JSON_TOKENS, (json_schema(SCHEMA), reward(len, beta=0.2)), (EOS, LEAVE)),
    (SUM_TOKENS, (choice("1", "1+", "(1)"), reward(ones), lm.given("") ** -0.5), None),
    (SUM_TOKENS, (regex("[1+]+"), reward(length, every="block"), CountOf("1", 0.2)), "+"),
]


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize(("tokens", "potentials", "stop"), ALONE + PRODUCTS)
def test_every_outcome(tokens, potentials, stop, block):
    engine = tables.engine(tokens=tokens)
    call = text(potentials, stop, 3)
    truth = masses(enumerate_traces(call, engine))
    assert len(truth) > 1
    found = masses(expected_weights(call, engine, block))
    assert found == pytest.approx(truth, rel=1e-10, abs=1e-14)


def test_alpha():
    engine = tables.engine(tokens=SUM_TOKENS)
    for alpha in (0.5, 2.0, 4.0):
        call = text((lm**alpha, grammar(SUMS), reward(length, every="block")), None, 3)
        truth = masses(enumerate_traces(call, engine))
        found = masses(expected_weights(call, engine, 2))
        assert found == pytest.approx(truth, rel=1e-10, abs=1e-14)


def brute_force(engine, tokens, accepts, phi, most, longest, stop):
    """The measure of one constrained `gen`, token sequence by token sequence.

    ``accepts`` decides membership; a sequence is viable where some of at most ``longest`` tokens
    that begins with it is a member: ``longest`` is enough to complete any of ``most``.
    """
    members = set()
    for n in range(longest + 1):
        for ids in itertools.product(range(len(tokens)), repeat=n):
            if accepts("".join(tokens[i] for i in ids)):
                members.add(ids)
    viable = {ids[:n] for ids in members for n in range(len(ids) + 1)}
    eos = len(tokens)
    law = {}
    for ids in sorted(viable):
        if len(ids) > most:
            continue
        gamma = 1.0
        for t, i in enumerate(ids):
            gamma *= float(engine._models["target"](ids[:t])[i])
        if ids not in members:
            continue
        table = engine._models["target"](ids)
        going_on = [i for i in range(len(tokens)) if (*ids, i) in viable]
        if len(ids) == most or (not going_on and stop is LEAVE):
            end = 1.0  # cut, or certain
        elif stop is EOS:
            end = float(table[eos])
        else:
            end = float(sum(table) - sum(table[i] for i in going_on))
        word = "".join(tokens[i] for i in ids)
        law[word] = law.get(word, 0.0) + gamma * end * phi(word)
    return {word: gamma for word, gamma in law.items() if gamma}


def lark_accepts(source):
    parser = Lark(source, parser="earley")

    def accepts(word):
        try:
            parser.parse(word)
        except LarkError:
            return False
        return True

    return accepts


def json_accepts(word):
    try:
        value = json.loads(word)
    except ValueError:
        return False
    fits = isinstance(value, dict) and list(value) == ["a"] and value["a"] in (1, 12, True)
    return fits and json.dumps(value, separators=(",", ":")) == word


@pytest.mark.parametrize("stop", [LEAVE, EOS])
@pytest.mark.parametrize(
    ("tokens", "potentials", "accepts", "phi", "longest"),
    [
        (SUM_TOKENS, (grammar(SUMS),), lark_accepts(SUMS), lambda w: 1.0, 5),
        (
            SUM_TOKENS,
            (grammar(SUMS), reward(length, every="block")),
            lark_accepts(SUMS),
            lambda w: np.exp(length(w)),
            5,
        ),
        (JSON_TOKENS, (json_schema(SCHEMA),), json_accepts, lambda w: 1.0, 5),
        (
            SUM_TOKENS,
            (choice("1", "1+", "(1)"), reward(ones)),
            lambda w: w in ("1", "1+", "(1)"),
            lambda w: np.exp(ones(w)),
            3,
        ),
    ],
)
def test_the_truth(tokens, potentials, accepts, phi, longest, stop):
    engine = tables.engine(tokens=tokens)
    truth = masses(enumerate_traces(text(potentials, stop, 3), engine))
    expected = brute_force(engine, tokens, accepts, phi, 3, longest, stop)
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
