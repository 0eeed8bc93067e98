"""E[offspring of i] = N w_i for every scheme, exactly, by integrating over the uniforms."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcprog.inference.resampling import SCHEMES

WEIGHTS = [
    [0.25, 0.25, 0.25, 0.25],
    [0.7, 0.2, 0.1],
    [0.0, 0.3, 0.0, 0.6, 0.1],
    [1.0, 0.0],
    [0.3, 0.3, 0.3, 0.1],
]


def counts(scheme: str, weights: Sequence[float], uniforms: dict[int, float]) -> np.ndarray:
    ancestors = SCHEMES[scheme](np.array(weights), lambda counter: uniforms[counter])
    assert len(ancestors) == len(weights)
    return np.bincount(ancestors, minlength=len(weights))


def breakpoints(weights: Sequence[float]) -> np.ndarray:
    """Where a point (u + i) / N, or a bare u, crosses into the share of another particle."""
    n = len(weights)
    cdf = np.concatenate([[0.0], np.cumsum(weights)])
    residues = np.array(weights) * n - np.floor(np.array(weights) * n + 1e-12)
    rest = np.cumsum(residues) / residues.sum() if residues.sum() > 1e-9 else np.array([1.0])
    points = np.concatenate([(cdf * n) % 1.0, cdf, rest])
    return np.unique(np.clip(np.concatenate([[0.0, 1.0], points]), 0, 1))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_expected_offspring(scheme, weights):
    # Each uniform enters by itself: the counts are a sum over the uniforms of a step function of
    # one. So the expectation is that of each in turn, the others at any fixed value.
    n = len(weights)
    edges = breakpoints(weights)
    widths = np.diff(edges)
    middles = (edges[1:] + edges[:-1]) / 2
    fixed = dict.fromkeys(range(n), 0.4321)
    base = counts(scheme, weights, fixed)
    expected = base.astype(float)
    for counter in range(1 if scheme == "systematic" else n):
        for width, middle in zip(widths, middles, strict=True):
            moved = counts(scheme, weights, {**fixed, counter: middle})
            expected += width * (moved - base)
    np.testing.assert_allclose(expected, n * np.array(weights), atol=1e-10)


@given(
    st.sampled_from(sorted(SCHEMES)),
    st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1.0)), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
)
def test_no_weight_no_child(scheme, raw, uniform):
    raw[0] = raw[0] or 0.5
    weights = np.array(raw) / np.sum(raw)
    ancestors = SCHEMES[scheme](weights, lambda counter: (uniform + 0.37 * counter) % 1.0)
    assert len(ancestors) == len(weights)
    assert np.all(weights[ancestors] > 0)
    if scheme == "systematic":
        offspring = np.bincount(ancestors, minlength=len(weights))
        assert np.all(np.abs(offspring - len(weights) * weights) < 1 + 1e-9)
