"""DESIGN section 6, test 1, by Monte Carlo: potentials through the whole loop on tiny models.

The exact part is in tests/inference/test_potentials.py.
"""

import pytest

from smcprog import EOS, gen, grammar, json_schema, lm, prompt, regex, reward, smc_program
from tests.gpu import tiny
from tests.gpu.test_end_to_end import check_monte_carlo, table_of, tiny_engine

SUMS = 'start: term ("+" term)*\nterm: "1" | "(" start ")"'


WORDS = 'start: word (" " start)?\nword: "a" | "t" "he"?'


def length(text):
    return 0.5 * len(text)


@smc_program
def sums():
    prompt("one two")
    return str(gen(lm**0.25, grammar(SUMS), reward(length, every="block"), max_tokens=3))


@smc_program
def answer():
    prompt("the cat sat on")
    schema = json_schema({"enum": [1, 12, 3, "a", [2]]})
    text = gen(lm**0.5, schema, regex(r"[^2]+|\[2\]"), reward(length, beta=2.0), stop=EOS)
    return repr(text.parsed)


@smc_program
def structured():
    prompt("the cat")
    words = gen(grammar(WORDS) * reward(length, beta=0.4, every="block") * lm**1.5, max_tokens=3)
    value = gen(json_schema({"enum": [1, 12, True]}))
    return f"{words} {value}"


@pytest.mark.parametrize(("program", "block"), [(sums, 2), (answer, 3), (structured, 2)])
def test_monte_carlo(program, block):
    # Flat models: the weights of peaked ones vary more than an average of runs shows, and each of
    # the values is drawn in a good part of the runs.
    engine = tiny_engine(initializer_range=0.1)
    twin = table_of(engine, tiny.causal_lm(seed=0, initializer_range=0.1))
    check_monte_carlo(engine, twin, program(), block)
    assert not engine._pool.pages
