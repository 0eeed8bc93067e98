"""Randomness by counter: every uniform is a function of (seed, round, slot, purpose, counter).

Nothing is ever inherited by a particle: a clone that moves to another slot draws fresh numbers
there (DESIGN: section 3). So a run does not depend on what runs beside it.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from smcprog.inference.interface import Stream

Purpose = Literal["draft", "accept", "residual", "bonus", "resample", "draw"]

_PURPOSES: dict[Purpose, int] = {
    "draft": 0,
    "accept": 1,
    "residual": 2,
    "bonus": 3,
    "resample": 4,
    "draw": 5,
}
_FOLD = 6


class RandomSource(Protocol):
    """Where a run takes its random numbers from."""

    def stream(self, round: int, slot: int, purpose: Purpose) -> Stream:
        """The random numbers of one slot for one purpose in one round."""
        ...


@dataclass(frozen=True)
class Philox:
    """The random source of a run: Philox4x64 keyed by the seed."""

    seed: int

    def stream(self, round: int, slot: int, purpose: Purpose) -> "PhiloxStream":
        return PhiloxStream(self.seed, (_PURPOSES[purpose], slot, round))


@dataclass(frozen=True)
class PhiloxStream:
    """Uniforms of one key, by counter."""

    seed: int
    key: tuple[int, int, int]

    def bits(self, counter: int) -> int:
        """64 random bits."""
        return _raw(self.seed, (counter, *self.key))

    def uniform(self, counter: int) -> float:
        """A double in [0, 1) with 53 random bits."""
        return (self.bits(counter) >> 11) * 2.0**-53

    def choose(self, counter: int, probabilities: NDArray[np.float64]) -> int:
        """An index in proportion to ``probabilities``, by inverse CDF."""
        return inverse_cdf(probabilities, self.uniform(counter))


def inverse_cdf(probabilities: NDArray[np.float64], uniform: float) -> int:
    """The smallest index whose cumulative sum exceeds ``uniform`` times the total.

    Clamped to the last index with mass, so that rounding never selects a zero.
    """
    cdf = np.cumsum(probabilities)
    index = int(np.searchsorted(cdf, uniform * cdf[-1], side="right"))
    return min(index, int(np.flatnonzero(probabilities)[-1]))


def fold(seed: int, index: int) -> int:
    """The seed of run ``index`` of a list that was started with ``seed``: 63 bits."""
    return _raw(seed, (index, _FOLD, 0, 0)) >> 1


def _raw(seed: int, counter: tuple[int, int, int, int]) -> int:
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, seed >> 64], dtype=np.uint64)
    return int(np.random.Philox(counter=np.array(counter, dtype=np.uint64), key=key).random_raw())
