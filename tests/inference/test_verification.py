"""The verification kernels of DESIGN section 3: every outcome of proposals and acceptances."""

import numpy as np
import pytest

from smcprog import EOS, LEAVE, gen, lm, regex, smc_program
from smcprog.inference.exact import enumerate_traces
from smcprog.inference.weights import at_equal_progress
from tests.inference import tables
from tests.inference.programs import PROGRAMS, CountOf, one
from tests.inference.test_contexts import after
from tests.inference.test_contexts import engine as engine_of_contexts
from tests.inference.test_enumeration import ALPHAS, check, expected_weights, masses
from tests.inference.test_monte_carlo import check_by_monte_carlo

# Blocks of three have many outcomes: one alpha is enough for them.
KERNELS = [(1, "reject"), (2, "reject"), (3, "reject"), (2, 1), (3, 2)]


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize(
    ("block", "verify", "alpha"),
    [(*kernel, alpha) for kernel in KERNELS for alpha in ALPHAS if kernel[0] < 3 or alpha == 2],
)
@pytest.mark.parametrize(
    ("potentials", "stop"),
    [
        ((), None),
        ((), ("ab", "b")),
        ((regex("a+"),), None),
        ((regex("(ab|a)"),), EOS),
        ((regex("(ab)*"),), (LEAVE, EOS)),
        ((regex("a?b?"), CountOf("a", 0.4)), "b"),
    ],
)
def test_every_outcome_of_one_gen(potentials, stop, block, verify, alpha):
    check(one(alpha, potentials, stop, 3), block, verify=verify)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_outcome_of_a_program(name):
    check(PROGRAMS[name](2.0), 1, verify="reject")


@pytest.mark.parametrize(("block", "verify"), KERNELS)
def test_every_outcome_under_several_factors(block, verify):
    call = after("a", (lm**2, lm.given("b") ** 0.5, lm.given("") ** -0.5), hint="ba")
    engine = engine_of_contexts()
    truth = masses(enumerate_traces(call, engine))
    found = masses(expected_weights(call, engine, block, verify=verify))
    assert found == pytest.approx(truth, rel=1e-10)
    assert not engine._rows


@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0])
def test_any_draft_temperature_is_proper(temperature):
    check(one(2.0, (), None, 3), 2, verify="reject", draft_temperature=temperature)


@pytest.mark.parametrize(("name", "verify"), [("branch", "reject"), ("twisted", 2)])
def test_programs_by_monte_carlo(name, verify):
    check_by_monte_carlo(PROGRAMS[name](2.0), particles=4, block=3, verify=verify)


def test_rejection_has_no_proposal_variance():
    """At alpha = 1, without a constraint and with no mass on masked tokens, each Z_t is 1."""
    target, draft = (tables.random_table(seed, size=4) for seed in (0, 1))
    engine = tables.TabularEngine(tables.TOKENS, target, draft)
    posterior = engine.run(one(1.0, (), None, 6), particles=64, verify="reject", seed=3)
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-12)
    assert posterior.unique_roots == 64


@smc_program
def letters():
    return str(gen(regex("[ab]{12}")))


def test_particles_of_unequal_lengths_are_compared_at_equal_progress():
    """A particle that a rejection holds up is not heavier for it: nothing is resampled where every
    text has the same weight in the end. Half of the mass is masked at each step, whatever the
    text, so that every Z_t is 1/2."""
    engine = tables.TabularEngine(
        ["a", "b", "c"], lambda context: [0.3, 0.2, 0.3, 0.2], lambda context: [0.1, 0.4, 0.4, 0.1]
    )
    posterior = engine.run(letters(), particles=32, block=4, verify="reject", seed=0)
    lengths = {sum(len(r.tokens[i]) for r in posterior.rounds[:2]) for i in range(32)}
    assert len(lengths) > 2
    assert posterior.stats.resamplings == 0
    np.testing.assert_allclose(posterior.log_weights, 12 * np.log(0.5))


def test_weights_at_equal_progress():
    log_w = np.array([0.0, -2.0, -5.0, -np.inf])
    drawn = np.array([1.0, 3.0, np.nan, np.nan])
    np.testing.assert_allclose(at_equal_progress(log_w, drawn, -1.0), [-1.0, -1.0, -5.0, -np.inf])
    np.testing.assert_array_equal(at_equal_progress(log_w, drawn * np.nan, -1.0), log_w)


@smc_program
def unlike():
    """Steps of unlike normalisers, so that equal progress is not equal weight."""
    first = str(gen(regex("(a|bb|ab)*"), max_tokens=4))
    return first + str(gen(lm**2, regex("[ab]{1,3}"), stop=EOS, max_tokens=3))


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
def test_resampling_at_equal_progress_is_proper():
    check_by_monte_carlo(unlike(), particles=4, block=2, verify="reject", ess_threshold=0.9)


@smc_program
def word():
    return str(gen(max_tokens=2, stop=()))


def test_a_draft_that_is_the_target_is_never_rejected():
    table = tables.random_table(0)
    engine = tables.TabularEngine(tables.TOKENS, table, table, control=tables.CONTROL)
    rounds = engine.run(word(), particles=32, block=1, verify="reject", seed=0).stats.rounds
    assert rounds == 1  # a drafted token that stands, and the bonus


def test_settings():
    engine = tables.engine()
    for verify in ("lossless", -1, 1.5, True, None):
        with pytest.raises(ValueError, match='say "weight", "reject", or an integer'):
            engine.run(word(), verify=verify)
    for settings in ({}, {"verify": 1}):
        with pytest.raises(ValueError, match="draft_temperature=0 proposes one token only"):
            engine.run(word(), draft_temperature=0, block=2, **settings)
