"""Small tabular models for the tests: next-token tables that depend on the whole context."""

from collections.abc import Callable, Sequence

import numpy as np

from smcprog import TabularEngine

Table = Callable[[tuple[int, ...]], np.ndarray]

TOKENS = ("a", "b", "ab")
CONTROL = ("<x>",)
SIZE = len(TOKENS) + 2  # and <eos>, <x>


def random_table(seed: int, size: int = SIZE) -> Table:
    """A table drawn from a Dirichlet distribution for each context, the same every time."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def table(context: tuple[int, ...]) -> np.ndarray:
        if context not in known:
            known[context] = np.random.default_rng([seed, len(context), *context]).dirichlet(
                np.full(size, 1.5)
            )
        return known[context]

    return table


def engine(draft: bool = True, seed: int = 0, tokens: Sequence[str] = TOKENS) -> TabularEngine:
    """The engine of most tests: target and draft are different random tables."""
    size = len(tokens) + 2
    return TabularEngine(
        tokens,
        random_table(seed, size),
        random_table(seed + 1, size) if draft else None,
        control=CONTROL,
    )
