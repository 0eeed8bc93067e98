"""DESIGN section 6, test 4: a fork in the road.

p(A) = p(B) = 1/2; after A the rest is certain, after B it is uniform over 4. With alpha = 4 the
power target puts 64/65 on A. An engine that draws the first token once for all particles, or that
drops its normaliser, says something else.
"""

import numpy as np
import pytest

from smcprog import TabularEngine, gen, lm, smc_program

TOKENS = ("A", "B", "c", "d", "e", "f")


def road(context):
    p = np.zeros(7)
    if not context:
        p[:2] = 0.5
    elif context == (0,):
        p[2] = 1.0
    elif context == (1,):
        p[2:6] = 0.25
    else:
        p[6] = 1.0
    return p


@smc_program
def walk():
    return gen(lm**4)[0]


@pytest.mark.parametrize("block", [0, 1, 2, 4])
def test_the_power_target_of_a_fork(block):
    engine = TabularEngine(TOKENS, road, road)
    posteriors = engine.run([walk()] * 100, particles=64, block=block, seed=1)
    shares = np.array([posterior.marginal().get("A", 0.0) for posterior in posteriors])
    evidence = np.exp([posterior.log_evidence for posterior in posteriors])
    # The mean share is over 100 populations; its standard error here is below 0.002.
    assert abs(shares.mean() - 64 / 65) < 0.02
    assert abs(np.mean(shares * evidence) / np.mean(evidence) - 64 / 65) < 0.02
