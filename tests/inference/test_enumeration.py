"""DESIGN section 6, test 1, the exact part: every outcome of proposals for one particle.

sum over outcomes of probability * weight * f(value) = sum over traces of gamma * f, to 1e-10.
"""

import numpy as np
import pytest

from smcprog import EOS, LEAVE, regex
from smcprog.inference.exact import Exact, all_paths, enumerate_traces
from smcprog.inference.run import run_calls
from smcprog.inference.settings import check_settings
from tests.inference import tables
from tests.inference.programs import PROGRAMS, CountOf, NoDouble, one

ALPHAS = [0.5, 1.0, 2.0, 4.0]


def expected_weights(call, engine, block, **settings) -> Exact:
    """All outcomes of a run with one particle: values, and probability * weight of each."""
    checked = check_settings(1, block, engine.has_draft, **settings)

    def once(branches):
        (posterior,) = run_calls(engine, [call], [checked], [0], [branches])
        if not posterior.values:
            return None, 0.0
        return posterior.values[0], float(np.exp(posterior.log_weights[0]))

    outcomes = [(value, p * w) for p, (value, w) in all_paths(once)]
    return Exact([value for value, _ in outcomes], np.array([mass for _, mass in outcomes]))


def masses(exact: Exact) -> dict:
    law: dict = {}
    for value, gamma in zip(exact.values, exact.gammas.tolist(), strict=True):
        if gamma:
            law[value] = law.get(value, 0.0) + gamma
    return law


def check(call, block, draft=True, **settings):
    engine = tables.engine(draft)
    truth = masses(enumerate_traces(call, engine))
    assert len(truth) > 1
    assert masses(expected_weights(call, engine, block, **settings)) == pytest.approx(
        truth, rel=1e-10, abs=1e-14
    )


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("potentials", "stop"),
    [
        ((), None),
        ((), ()),
        ((), ("ab", "b")),
        ((regex("a+"),), None),
        ((regex("(ab|a)"),), EOS),
        ((regex("(ab)*"),), (LEAVE, EOS)),
        ((regex("a?b?"),), "b"),
        ((regex("[ab]+"), CountOf("a", 0.4)), ()),
        ((NoDouble("b"),), "bbb"),  # a stop that has begun is not judged as text
        ((NoDouble("a"), regex("[ab]*")), ("aab", "ba")),
    ],
)
def test_every_outcome_of_one_gen(potentials, stop, block, alpha):
    check(one(alpha, potentials, stop, 3), block)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("alpha", [0.5, 2.0])
@pytest.mark.parametrize("block", [0, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_outcome_of_a_program(name, block, alpha):
    check(PROGRAMS[name](alpha), block)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_any_draft_temperature_is_proper(temperature):
    check(one(2.0, (), None, 3), 2, draft_temperature=temperature)


def test_no_draft():
    check(one(2.0, (regex("a+"),), None, 3), 0, draft=False)


def test_a_bounded_context_is_part_of_the_target():
    engine = tables.engine()
    call = one(1.0, (), None, 3)
    truth = masses(enumerate_traces(call, engine, max_tokens=2))
    for block in (0, 1, 2, 3):
        found = masses(expected_weights(call, engine, block, max_tokens=2))
        assert found == pytest.approx(truth, rel=1e-10)
    assert sum(truth.values()) < 0.999
