"""DESIGN section 6, test 2: L1 error falls with N^(-1/2), the bias with 1/N.

The bias is measured as E[(f^ - f)(1 - Z^/Z)], equal to E[f^] - f since E[Z^ f^] = Z f, whose
relative error does not grow with N.
"""

import numpy as np
import pytest

from smcprog import TabularEngine
from smcprog.inference.exact import enumerate_traces
from tests.inference import tables
from tests.inference.programs import one

SIZES = (4, 8, 16)
R = 20_000
TOGETHER = 200

TARGET, OTHER = tables.random_table(0), tables.random_table(1)


def draft(context):
    """A draft so near the target that few particles are already many."""
    return 0.7 * TARGET(context) + 0.3 * OTHER(context)


def has_b(value):
    return float("b" in value[0])


@pytest.mark.slow
def test_rates_of_error_and_bias():
    engine = TabularEngine(tables.TOKENS, TARGET, draft, control=tables.CONTROL)
    call = one(1.0, (), None, 2)
    truth = enumerate_traces(call, engine)
    f = truth.total(has_b) / truth.evidence
    l1, bias = [], []
    for n in SIZES:
        error = np.empty(R)
        ratio = np.empty(R)
        for start in range(0, R, TOGETHER):
            posteriors = engine.run([call] * TOGETHER, particles=n, block=1, seed=R * n + start)
            for i, posterior in enumerate(posteriors, start):
                error[i] = posterior.expect(has_b) - f
                ratio[i] = np.exp(posterior.log_evidence) / truth.evidence
        l1.append(np.mean(np.abs(error)))
        bias.append(np.mean(error * (1 - ratio)))
    # The relative standard error of each mean is about 1%, that of a slope 0.01: ten of them fit
    # into the band of the bias.
    log_n = np.log(SIZES)
    assert np.polyfit(log_n, np.log(l1), 1)[0] == pytest.approx(-0.5, abs=0.05)
    assert np.polyfit(log_n, np.log(np.abs(bias)), 1)[0] == pytest.approx(-1.0, abs=0.1)
