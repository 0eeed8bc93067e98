import numpy as np
import pytest

from smcprog.inference.weights import (
    effective_sample_size,
    log_evidence,
    logsumexp,
    normalised,
)


def test_sums_of_logs_do_not_overflow():
    assert logsumexp(np.array([1000.0, 1000.0])) == pytest.approx(1000 + np.log(2))
    assert logsumexp(np.array([-np.inf, -1e4])) == -1e4
    assert logsumexp(np.array([])) == -np.inf


def test_weights_sum_to_one_and_a_zero_stays_zero():
    weights = normalised(np.array([-np.inf, 700.0, 700.0 + np.log(3)]))
    np.testing.assert_allclose(weights, [0, 0.25, 0.75], rtol=1e-12)
    with pytest.raises(ValueError, match="every weight is zero"):
        normalised(np.array([-np.inf]))


def test_evidence_is_the_mean_weight():
    assert log_evidence(np.log([1.0, 3.0])) == pytest.approx(np.log(2))
    assert log_evidence(np.array([-np.inf, -np.inf])) == -np.inf
    assert log_evidence(np.array([])) == -np.inf


def test_ess_counts_equal_weights():
    assert effective_sample_size(np.full(7, -900.0)) == pytest.approx(7)
    assert effective_sample_size(np.array([0.0, -np.inf, -np.inf])) == pytest.approx(1)
    assert effective_sample_size(np.full(3, -np.inf)) == 0
