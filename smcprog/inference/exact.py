"""The truth about small programs: every trace, by depth-first enumeration on a tabular engine.

It shares with the loop how a program's statements are answered and what the events of a `gen` are,
but draws nothing, drafts nothing and weights nothing: gamma(x) is multiplied up event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from smcprog.dsl.process import Process
from smcprog.dsl.program import BoundProgram
from smcprog.inference import host
from smcprog.inference.population import Particle, Run
from smcprog.inference.randomness import Purpose
from smcprog.inference.settings import Settings
from smcprog.inference.smc import advance
from smcprog.inference.tabular import TabularEngine
from smcprog.inference.weights import log_power

T = TypeVar("T")


class Branches:
    """A random source that takes every path in turn.

    Each choice goes to the first option that was not yet tried under the choices before it;
    ``probability`` is the product of the probabilities of the choices of the present path.
    """

    def __init__(self) -> None:
        self._path: list[tuple[Sequence[int], int]] = []
        self._at = 0
        self.probability = 1.0

    def stream(self, round: int, slot: int, purpose: Purpose) -> Branches:
        return self

    def uniform(self, counter: int) -> float:
        raise NotImplementedError("an enumeration has no uniforms")

    def bits(self, counter: int) -> int:
        raise NotImplementedError("an enumeration has no random bits")

    def choose(self, counter: int, probabilities: NDArray[np.float64]) -> int:
        index = self.pick([int(i) for i in np.flatnonzero(probabilities)])
        self.probability *= float(probabilities[index] / probabilities.sum())
        return index

    def pick(self, options: Sequence[int]) -> int:
        """Take an option, with no probability attached."""
        if self._at == len(self._path):
            self._path.append((options, 0))
        options, taken = self._path[self._at]
        self._at += 1
        return options[taken]

    def next(self) -> bool:
        """Go to the next path; False when all have been taken."""
        while self._path:
            options, taken = self._path.pop()
            if taken + 1 < len(options):
                self._path.append((options, taken + 1))
                self._at, self.probability = 0, 1.0
                return True
        return False


def all_paths(once: Callable[[Branches], T]) -> Iterator[tuple[float, T]]:
    """Every outcome of a function that chooses by a `Branches`, with its probability."""
    branches = Branches()
    more = True
    while more:
        outcome = once(branches)
        yield branches.probability, outcome
        more = branches.next()


@dataclass(frozen=True)
class Exact:
    """All traces of a program: their values, and gamma of each."""

    values: list[Any]
    gammas: NDArray[np.float64]

    @property
    def evidence(self) -> float:
        """Z, the sum of gamma over all traces."""
        return float(self.gammas.sum())

    def total(self, fn: Callable[[Any], float]) -> float:
        """sum_x gamma(x) fn(value of x)."""
        return sum(g * fn(v) for v, g in zip(self.values, self.gammas.tolist(), strict=True) if g)

    def marginal(self) -> dict[Any, float]:
        """Probability of each value under gamma / Z, largest first."""
        masses: dict[Any, float] = {}
        for value, gamma in zip(self.values, self.gammas.tolist(), strict=True):
            if gamma:
                masses[value] = masses.get(value, 0.0) + gamma / self.evidence
        return dict(sorted(masses.items(), key=lambda pair: -pair[1]))


def enumerate_traces(call: BoundProgram, engine: TabularEngine, max_tokens: int = 4096) -> Exact:
    """All traces of a program call. Their number is exponential in its length: every `gen` needs
    a small ``max_tokens`` or a constraint.

    Args:
        call: the program call; its host code runs once for every trace.
        engine: holds the target.
        max_tokens: bounds a context, as in `Engine.run`.
    """
    settings = Settings(
        particles=1,
        block=0,
        verified=0,
        ess_threshold=0.0,
        resampling="systematic",
        resample="round",
        draft_temperature=None,
        max_tokens=max_tokens,
    )

    def once(branches: Branches) -> tuple[Any, float]:
        particle = Particle(Process(call), root=0)
        run = Run(call, settings, 0, branches, [particle], engine)
        advance(engine, [run])
        while not run.over:
            step(engine, run, branches)
            advance(engine, [run])
        run.release(particle)
        return particle.value, float(np.exp(particle.log_weight))

    outcomes = [(value, p * w) for p, (value, w) in all_paths(once)]
    return Exact([value for value, _ in outcomes], np.array([gamma for _, gamma in outcomes]))


def step(engine: TabularEngine, run: Run, branches: Branches) -> None:
    """Take one event of the present `gen`, at its factor of gamma."""
    (particle,) = run.particles
    generation, context = particle.generation, particle.context
    assert generation is not None and context.row is not None
    space = generation.space()
    assert space is not None
    lms = generation.request.potential.lms
    log_p = engine.factor_tables(context.rows_of(lms), space, lms)
    log_pi = log_power(log_p, lms)
    options = [int(e) for e in np.flatnonzero(log_pi > -np.inf)]
    source = host.source_of(particle)
    if not options:
        run.charge(particle, -np.inf, source)
        return
    event = branches.pick(options)
    generation.log_ps += log_p[:, event]
    generation.push(event)
    run.charge(particle, -np.inf if generation.dead else float(log_pi[event]), source)
    if particle.running and event < engine.tokenization.vocabulary.size:
        if context.row.length < run.context_limit:
            rows = [context.row, *context.beside]
            engine.append(rows, [[event]] * len(rows))
        else:
            host.outgrow(run, particle)
