"""DESIGN section 6, test 1, by Monte Carlo: many particles, resampling, the whole loop.

Each comparison is |z| < 5 over R = 2,000 seeded runs: a false alarm has probability 6e-7, and
there are below 100 of them here. Averages are of Z^ f^, never of log Z^.
"""

import numpy as np
import pytest

from smcprog import regex
from smcprog.inference.exact import enumerate_traces
from smcprog.inference.resampling import SCHEMES
from tests.inference import tables
from tests.inference.programs import PROGRAMS, one

R = 2000
TOGETHER = 100


def check_by_monte_carlo(call, **settings):
    """E[Z^] = Z and E[Z^ f^] = sum gamma f for the most probable values."""
    engine = tables.engine()
    truth = enumerate_traces(call, engine)
    evidence = np.zeros(R)
    values = list(truth.marginal())[:3]
    products = np.zeros((R, len(values)))
    for start in range(0, R, TOGETHER):
        posteriors = engine.run([call] * TOGETHER, seed=start, on_dead="return", **settings)
        for i, posterior in enumerate(posteriors, start):
            evidence[i] = np.exp(posterior.log_evidence)
            marginal = posterior.marginal() if posterior.values else {}
            products[i] = [evidence[i] * marginal.get(value, 0.0) for value in values]
    assert_mean(evidence, truth.evidence)
    for column, value in zip(products.T, values, strict=True):
        assert_mean(column, truth.total(lambda v, value=value: float(v == value)))


def assert_mean(samples, expected):
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    z = (samples.mean() - expected) / max(error, 1e-12)
    assert abs(z) < 5, f"mean {samples.mean():.5f}, expected {expected:.5f}, z = {z:.1f}"


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    check_by_monte_carlo(PROGRAMS[name](2.0), particles=4, block=2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(scheme):
    check_by_monte_carlo(
        one(4.0, (regex("[ab]+"),), None, 3),
        particles=5,
        block=1,
        resampling=scheme,
        ess_threshold=1.0,
    )


def test_resampling_at_syncs():
    check_by_monte_carlo(
        PROGRAMS["twisted"](2.0), particles=4, block=1, resample="sync", ess_threshold=1.0
    )


def test_token_by_token():
    check_by_monte_carlo(PROGRAMS["branch"](2.0), particles=4, block=0)
