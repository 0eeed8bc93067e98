"""What a round costs on the machine at hand, what speed-up that predicts, and which K to take.

A round with N particles and K drafted tokens costs K draft steps and one scoring pass of N (K + 1)
rows. Where memory traffic sets the pace, the pass costs hardly more than a step of one row, and
the speed-up over autoregressive decoding is S = (K + 1) / (1 + rho K), rho the cost of a draft step
over a target step (DESIGN section 3; Leviathan et al. 2023, theorem 3.8). From some number of rows
on, the machine's balance point, arithmetic sets the pace and the pass grows with its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from smcprog.inference.interface import EngineInterface, EventSpace, Extension, Query, Row
from smcprog.inference.randomness import Philox
from smcprog.potentials.base import LM
from smcprog.vocabulary import unpack

MOST_BLOCK = 16
"""The largest K that ``block="auto"`` takes."""
FIRST_BLOCK = 4
"""K before enough is known of the draft."""

_ROWS = (1, 4, 16, 64)
_REPEATS = 3
# Tokens observed before K is chosen by them.
_ENOUGH = 32


@dataclass(frozen=True)
class Roofline:
    """Measured costs of an engine's passes, seconds.

    Attributes:
        draft: of a draft step, by the number of rows; empty without a draft.
        target: of a target pass, by the number of rows (tokens that it scores).
        context: tokens of context at the measurement.
    """

    draft: Mapping[int, float]
    target: Mapping[int, float]
    context: int

    @property
    def rho(self) -> float:
        """A draft step over a target step, of one row each; infinite without a draft."""
        return self.draft[1] / self.target[1] if self.draft else np.inf

    @property
    def balance(self) -> int:
        """The most rows, of those measured, that a target pass scores in twice the time of one."""
        return max(rows for rows, t in self.target.items() if t <= 2 * self.target[1])

    def round_seconds(self, particles: int, block: int) -> float:
        """One round: K draft steps and a pass over N (K + 1) rows.

        Raises:
            ValueError: for K > 0 without a draft, and for what is no N or K.
        """
        if particles < 1 or block < 0:
            raise ValueError(f"N = {particles}, K = {block}: N is at least 1, K at least 0")
        if block and not self.draft:
            raise ValueError(
                f"K = {block}: this engine has no draft to measure; without one K is 0"
            )
        drafting = block * _at(self.draft, particles) if block else 0.0
        return drafting + _at(self.target, particles * (block + 1))

    def speedup(self, particles: int, block: int) -> float:
        """Predicted S: tokens of one sequence a second, over those of autoregressive decoding."""
        return (block + 1) * self.target[1] / self.round_seconds(particles, block)

    def best_block(self, particles: int, quality: Callable[[int], float]) -> int:
        """The K of most effective tokens a second: ``quality(K)`` is how many a round gives."""
        blocks = range(MOST_BLOCK + 1) if self.draft else range(1)
        return max(blocks, key=lambda k: quality(k) / self.round_seconds(particles, k))

    def __str__(self) -> str:
        """The costs, and the predicted speed-ups of some N and K."""
        lines = [
            f"target pass at {self.context} tokens of context, rows: ms  {_listed(self.target)}",
            f"balance point: about {self.balance} rows",
        ]
        if self.draft:
            lines += [
                f"draft step, rows: ms  {_listed(self.draft)}",
                f"rho = {self.rho:.2f} (a draft step over a target step)",
            ]
            for particles in (1, 4, 8, 16):
                speedups = [f"K={k}: {self.speedup(particles, k):.2f}" for k in (2, 4, 8)]
                lines.append(f"predicted S at N={particles}:  {'  '.join(speedups)}")
        return "\n".join(lines)


def _at(costs: Mapping[int, float], rows: int) -> float:
    """Interpolated; beyond the last measurement in proportion to its rows."""
    known = sorted(costs)
    if rows > known[-1]:
        return costs[known[-1]] * rows / known[-1]
    return float(np.interp(rows, known, [costs[n] for n in known]))


def _listed(costs: Mapping[int, float]) -> str:
    return "  ".join(f"{rows}: {1000 * seconds:.1f}" for rows, seconds in costs.items())


def context_to_measure(engine: EngineInterface) -> int:
    """256 tokens, or as many of these as the models read and a fixed pool holds."""
    limit = engine.context_limit
    context = 256 if limit is None else min(256, limit // 2)
    while context > 1 and not engine.has_room([context, 1, 1]):
        context //= 2
    return context


def measure(engine: EngineInterface, context: int) -> Roofline:
    """Time draft steps and target passes of forks of one context, medians of three; of as many
    rows as have room.

    Raises:
        KVPoolError, ContextLengthError: if the engine has no room for that.
    """
    vocabulary = engine.tokenization.vocabulary
    token = int(np.flatnonzero(unpack(vocabulary.ordinary, vocabulary.size))[0])
    space = EventSpace(vocabulary.ordinary)
    opened: list[Row] = []

    def forks(rows: int) -> list[Row]:
        taken = [engine.fork(opened[0]) for _ in range(rows)]
        opened.extend(taken)
        return taken

    def draft_step(rows: Sequence[Row]) -> None:
        stream = Philox(0).stream(0, 0, "draft")
        extensions = [Extension(row, 1, 1.0, 1.0, stream) for row in rows]
        engine.extend(extensions, lambda k, drawn: [space] * len(rows))

    def target_pass(rows: Sequence[Row]) -> None:
        stream = Philox(0).stream(0, 0, "bonus")
        engine.score([Query([row], [], None, (LM(),), space, stream) for row in rows])

    def costs(work: Callable[[Sequence[Row]], None]) -> dict[int, float]:
        found = {}
        for rows in [n for n in _ROWS if n == 1 or engine.has_room([context] + [1] * n)]:
            times = []
            for _ in range(_REPEATS + 1):  # the first writes keys and values, and warms up
                chosen = forks(rows)
                began = time.perf_counter()
                work(chosen)
                times.append(time.perf_counter() - began)
                for row in chosen:
                    engine.free(row)
                    opened.remove(row)
            found[rows] = median(times[1:])
        return found

    try:
        opened.append(engine.open([token] * context))
        target_pass(opened)
        target = costs(target_pass)
        draft = costs(draft_step) if engine.has_draft else {}
    finally:
        for row in opened:
            engine.free(row)
    return Roofline(draft, target, context)


@dataclass(eq=False)
class DraftRecord:
    """What a run has seen of its draft.

    Attributes:
        weighted: how many drafted tokens were weighted.
        log_w, log_w2: log of the sums of their weights p^alpha / q~, and of the squares.
        accepted, rejected: how many drafted tokens rejection sampling kept, and did not.
    """

    weighted: int = 0
    log_w: float = -np.inf
    log_w2: float = -np.inf
    accepted: int = 0
    rejected: int = 0

    def weigh(self, increments: NDArray[np.float64]) -> None:
        """Note the log weights of weighted tokens."""
        self.weighted += len(increments)
        self.log_w = float(np.logaddexp.reduce(increments, initial=self.log_w))
        self.log_w2 = float(np.logaddexp.reduce(2 * increments, initial=self.log_w2))

    @property
    def enough(self) -> bool:
        """Whether it says something."""
        return self.weighted + self.accepted + self.rejected >= _ENOUGH

    @property
    def efficiency(self) -> float:
        """The effective share of a weighted token, (E w)^2 / E w^2."""
        if self.weighted == 0:
            return 1.0
        if self.log_w == -np.inf:
            return 0.0
        return float(np.exp(2 * self.log_w - self.log_w2 - np.log(self.weighted)))

    @property
    def acceptance(self) -> float:
        """The share of tokens that rejection keeps."""
        tried = self.accepted + self.rejected
        return self.accepted / tried if tried else 1.0

    def quality(self, block: int, verified: int) -> float:
        """Effective tokens of a round with K drafted ones, of which the first ``verified`` stand
        by rejection: the expected number, times the effective share of K - ``verified`` weights
        as if these were independent."""
        a, j = self.acceptance, min(block, verified)
        before = float(sum(a**t for t in range(j)))  # each position that is reached gives a token
        after = a**j * (block - j + 1)
        return (before + after) * self.efficiency ** (block - j)
