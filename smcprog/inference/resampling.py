"""Resampling schemes: normalised weights and uniforms in, ancestors out.

Each is unbiased: slot counts satisfy E[offspring of i] = N w_i (Douc, Cappé and Moulines 2005,
"Comparison of resampling schemes for particle filtering"). A particle of weight zero is never an
ancestor.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float64]
Ancestors = NDArray[np.int64]
Uniforms = Callable[[int], float]
"""``uniforms(counter)`` in [0, 1)."""


def systematic(weights: Weights, uniforms: Uniforms) -> Ancestors:
    """One uniform, shifted by 1/N: ancestors of the points (u + i) / N."""
    n = len(weights)
    return _invert(weights, (uniforms(0) + np.arange(n)) / n)


def stratified(weights: Weights, uniforms: Uniforms) -> Ancestors:
    """One uniform in each of N strata of width 1/N."""
    n = len(weights)
    return _invert(weights, (np.array([uniforms(i) for i in range(n)]) + np.arange(n)) / n)


def multinomial(weights: Weights, uniforms: Uniforms) -> Ancestors:
    """N independent draws, sorted."""
    return _invert(weights, np.sort([uniforms(i) for i in range(len(weights))]))


def residual(weights: Weights, uniforms: Uniforms) -> Ancestors:
    """floor(N w) copies of each, the rest multinomially from what is left."""
    n = len(weights)
    # A product such as 10 * 0.3 may round to just below its integer; the leftover mass of about
    # 1e-16 then goes to the multinomial part, which keeps the scheme unbiased.
    copies = np.floor(n * weights).astype(np.int64)
    left = n - int(copies.sum())
    kept = np.repeat(np.arange(n), copies)
    if left == 0:
        return kept
    rest = np.maximum(n * weights - copies, 0.0)
    drawn = _invert(rest / rest.sum(), np.array([uniforms(i) for i in range(left)]))
    return np.sort(np.concatenate([kept, drawn]))


SCHEMES: dict[str, Callable[[Weights, Uniforms], Ancestors]] = {
    "systematic": systematic,
    "stratified": stratified,
    "residual": residual,
    "multinomial": multinomial,
}
"""The schemes by the name that ``Engine.run(resampling=...)`` takes."""


def _invert(weights: Weights, points: NDArray[np.float64]) -> Ancestors:
    """The index into whose share of the unit interval each point falls."""
    cdf = np.cumsum(weights)
    index = np.searchsorted(cdf, points * cdf[-1], side="right")
    return np.minimum(index, np.flatnonzero(weights)[-1])
