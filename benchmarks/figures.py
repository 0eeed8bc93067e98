"""How the benchmarks print what they measured."""

from collections.abc import Sequence
from statistics import median


def shown(values: Sequence[float], digits: int) -> str:
    """Median (smallest-largest)."""
    low, mid, high = (f"{f(values):.{digits}f}" for f in (min, median, max))
    return f"{mid} ({low}-{high})"
