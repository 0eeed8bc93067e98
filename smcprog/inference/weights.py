"""Log weights: sums, effective sample size, evidence. Float64 throughout; -inf is legal."""

import numpy as np
from numpy.typing import NDArray

LogWeights = NDArray[np.float64]


def logsumexp(log_weights: LogWeights) -> float:
    """log of the sum of exp; -inf for an empty or all -inf array."""
    top = float(np.max(log_weights, initial=-np.inf))
    if top == -np.inf:
        return top
    return top + float(np.log(np.sum(np.exp(log_weights - top))))


def normalised(log_weights: LogWeights) -> NDArray[np.float64]:
    """Weights that sum to 1.

    Raises:
        ValueError: if every weight is zero.
    """
    total = logsumexp(log_weights)
    if total == -np.inf:
        raise ValueError("every weight is zero: there is nothing to normalise")
    weights = np.exp(log_weights - total)
    return weights / weights.sum()


def log_evidence(log_weights: LogWeights) -> float:
    """log of the mean weight: the estimate of log Z of a properly weighted population."""
    if len(log_weights) == 0:
        return -np.inf
    return logsumexp(log_weights) - float(np.log(len(log_weights)))


def effective_sample_size(log_weights: LogWeights) -> float:
    """(sum w)^2 / sum w^2; 0 where every weight is zero (Kong, Liu and Wong 1994)."""
    total = logsumexp(log_weights)
    if total == -np.inf:
        return 0.0
    return float(np.exp(2 * total - logsumexp(2 * log_weights)))
