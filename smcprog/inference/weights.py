"""Log weights: sums, effective sample size, evidence. Float64 throughout; -inf is legal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import WeightError
from smcprog.potentials.base import LM

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


def log_power(log_p: NDArray[np.float64], lms: Sequence[LM]) -> NDArray[np.float64]:
    """log prod_i p_i^alpha_i of events: float64[len(lms), ...] to float64[...].

    An event that some p_i with a positive exponent gives probability 0 has weight 0.

    Raises:
        WeightError: for another that some p_i with a negative exponent gives probability 0.
    """
    total = np.zeros(log_p.shape[1:])
    for factor, lm in zip(log_p, lms, strict=True):
        if lm.alpha > 0:
            total = total + lm.alpha * factor
    impossible = np.isneginf(total)
    for factor, lm in zip(log_p, lms, strict=True):
        if lm.alpha < 0:
            if np.any(np.isneginf(factor) & ~impossible):
                raise zero_under_negative(lm)
            total = total + lm.alpha * np.where(impossible, 0.0, factor)
    return total


def zero_under_negative(lm: LM) -> WeightError:
    """The error for an event whose weight would be infinite."""
    return WeightError(
        f"{lm!r}: an event that the other factors allow has probability 0 under it, so a negative "
        "exponent makes its weight infinite; do not truncate it by top_p or top_k, or mask the "
        "event by a constraint"
    )


def at_equal_progress(
    log_w: NDArray[np.float64], drawn: NDArray[np.float64], pace: float
) -> NDArray[np.float64]:
    """What the log weights of particles would be, had they all drawn equally many tokens.

    Where a token moves the log weight by ``pace`` on average, a particle that is ahead of others
    would lose (or win) against them by its progress alone. Ancestors are drawn by these weights,
    and what they differ by from the true ones stays with the particle, so that the target does not
    change (DESIGN section 3; an auxiliary weight as of Pitt and Shephard 1999).

    Args:
        log_w: float64[N].
        drawn: float64[N], tokens drawn so far; NaN for a particle that draws no more.
        pace: nats a token.
    """
    if np.isnan(drawn).all():
        return log_w
    ahead = np.nan_to_num(drawn - np.nanmean(drawn))
    return log_w - pace * ahead
