"""Random small programs: the compiled one does what plain Python does, and so does every clone."""

import itertools
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smcprog.text import Text
from tests.dsl.driver import cell, forked_everywhere, run


def in_fstring(expression):
    """An f-string, where the quotes allow it (nesting them needs Python 3.12)."""
    return f"f'<{{{expression}}}>'" if "'" not in expression else f"str({expression})"


EXPRESSIONS = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["gen()", "gen(max_tokens=2)", "x", "'s'", "draw(['u', 'v', 'w'])"]),
        st.builds("({} + {})".format, EXPRESSIONS, EXPRESSIONS),
        st.builds("({} if {} > 'h' else {})".format, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS),
        st.builds("plain({}, tail={})".format, EXPRESSIONS, EXPRESSIONS),
        st.builds(in_fstring, EXPRESSIONS),
        st.builds("''.join([{} for _ in range(2)])".format, EXPRESSIONS),
        st.builds("part({})".format, st.sampled_from(["x", "'s'"])),
        st.builds("call(plain, {})".format, EXPRESSIONS),
        st.builds("(y := {})".format, EXPRESSIONS),
    )
)


def indented(*lines):
    return "\n".join("    " + line for block in lines for line in block.splitlines())


STATEMENTS = st.deferred(
    lambda: st.one_of(
        st.builds("x = {}".format, EXPRESSIONS),
        st.builds("x += {}".format, EXPRESSIONS),
        st.builds("log.append({})".format, EXPRESSIONS),
        st.just("prompt(x)"),
        st.builds("if {} > 'g3':\n{}\nelse:\n{}".format, EXPRESSIONS, BLOCKS, BLOCKS),
        st.builds("for _ in range(2):\n{}".format, BLOCKS),
        st.builds("try:\n{}\nfinally:\n{}".format, BLOCKS, BLOCKS),
        st.builds("try:\n{}\n    1 / 0\nexcept ZeroDivisionError:\n{}".format, BLOCKS, BLOCKS),
        st.builds("match {}:\n    case 's': pass\n    case x: log.append(x)".format, EXPRESSIONS),
        st.builds("with closing(log):\n{}".format, BLOCKS),
    )
)
BLOCKS = st.lists(STATEMENTS, min_size=1, max_size=3).map(lambda lines: indented(*lines))

PROGRAM = """
from contextlib import contextmanager

def plain(text, tail=""):
    return text[::-1] + tail

@contextmanager
def closing(log):
    log.append("open")
    yield
    log.append("close")

@smc_program
def part(y):
    prompt(y)
    return y + gen()

@smc_program
def program(x):
    log = []
{}
    return x, log
"""


def plain_python(source, draws):
    """What the program returns when its statements are ordinary functions."""
    gens, drawn = itertools.count(), iter(draws)
    names = {
        "smc_program": lambda function: function,
        "prompt": lambda *parts: None,
        "gen": lambda **_: Text(f"g{next(gens)}"),
        "draw": lambda values: values[next(drawn) % len(values)],
        "call": lambda fn, *args: fn(*args),
    }
    exec(source, names)
    return names["program"]("x")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(body=BLOCKS, seed=st.integers(0, 99))
def test_compiled_forked_and_plain_agree(body, seed):
    draws = random.Random(seed).choices(range(3), k=1000)
    source = PROGRAM.format(body)
    expected = plain_python(source, draws)
    program = cell(source)["program"]
    whole = run(program("x"), draws=draws)
    assert whole.value == expected
    if len(whole.asked) > 40:
        return
    for clone in forked_everywhere(lambda: program("x"), draws=draws):
        assert clone.value == expected
        assert clone.requests == whole.requests
