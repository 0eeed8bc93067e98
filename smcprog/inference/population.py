"""Particles, and the state of one run.

State is what the next round needs; what a person wants to see of a round is its `RoundRecord`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smcprog.dsl.process import Finished, Pending, Process
from smcprog.dsl.program import BoundProgram
from smcprog.dsl.requests import Request
from smcprog.dsl.site import Site
from smcprog.errors import WeightError
from smcprog.inference.context import TokenContext
from smcprog.inference.generation import Generation
from smcprog.inference.interface import EngineInterface, Row, Stream
from smcprog.inference.randomness import Purpose, RandomSource
from smcprog.inference.roofline import DraftRecord
from smcprog.inference.settings import Settings
from smcprog.inference.weights import at_equal_progress, effective_sample_size


@dataclass(frozen=True)
class TraceEntry:
    """One statement of a particle: where, what it gave, and how it moved the log weight."""

    line: int
    statement: str
    variable: str | None
    text: str | None
    logprob: float | None
    logw: float


class Death(NamedTuple):
    """What particles died of in a round, how many, and the end of the context of one of them."""

    round: int
    source: str
    number: int
    example: str


@dataclass(frozen=True)
class RoundRecord:
    """What one round did (or the opening of a `sync`, which draws no tokens).

    Attributes:
        round: its number in the run, from 0.
        ess: effective sample size before resampling, of the weights at equal progress where
            rejection lets particles advance by unequal lengths.
        resampled: whether the population was resampled.
        ancestors: the slot that each slot descends from; 0 .. N - 1 where nothing was resampled.
        tokens: the token ids that each slot drew in this round, before resampling.
        live: particles that were still running after it.
        seconds: per phase that it had: draft, score, host, resample. Phases are shared by all runs
            in flight.
    """

    round: int
    ess: float
    resampled: bool
    ancestors: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    live: int
    seconds: Mapping[str, float]


@dataclass(eq=False)
class Particle:
    """One particle: host code, token context, weight.

    Attributes:
        process: the host code, waiting at a statement or finished.
        root: the slot where its lineage began.
        log_weight: float; -inf is dead, for good.
        contexts: its context, and on top of it those of the `aside`s that it is in.
        generation: the `gen` in progress.
        charged: what the present statement has added to the log weight so far.
        texts, tokens: what its `gen` statements drew in its own context, texts as bytes.
        drawn: how many tokens its `gen` statements drew, in any context.
        truncated: whether any of them was cut at its token budget.
        trace: its statements so far.
    """

    process: Process
    root: int
    log_weight: float = 0.0
    contexts: list[TokenContext] = field(default_factory=lambda: [TokenContext()])
    generation: Generation | None = None
    charged: float = 0.0
    texts: list[bytes] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    drawn: int = 0
    truncated: bool = False
    trace: list[TraceEntry] = field(default_factory=list)
    finished: bool = False
    value: Any = None
    pending: Pending | None = None

    @property
    def dead(self) -> bool:
        return self.log_weight == -np.inf

    @property
    def running(self) -> bool:
        """Neither finished nor dead."""
        return not (self.finished or self.dead)

    @property
    def request(self) -> Request | None:
        """The statement it waits at."""
        return self.pending.request if self.pending is not None and self.running else None

    @property
    def context(self) -> TokenContext:
        """The context that its statements mean."""
        return self.contexts[-1]

    @property
    def rows(self) -> list[Row]:
        """All rows that it holds."""
        return [row for context in self.contexts for row in context.rows]

    @property
    def site(self) -> Site:
        assert self.pending is not None
        return self.pending.site

    def start(self) -> None:
        """Run the host code to its first statement."""
        self._settle(self.process.step())

    def answer(self, value: Any, text: str | None = None, logprob: float | None = None) -> None:
        """Answer the present statement, and run the host code on to the next one."""
        self.note(text, logprob)
        self.resume(value)

    def resume(self, value: Any) -> None:
        """Answer the present statement, which goes on, without a trace."""
        self._settle(self.process.step(value))

    def fail(self, error: BaseException) -> None:
        """Raise an exception at the present statement, in the program."""
        self.note()
        self._settle(self.process.fail(error))

    def note(self, text: str | None = None, logprob: float | None = None) -> None:
        """Enter the present statement in the trace."""
        site = self.site
        self.trace.append(
            TraceEntry(site.line, site.statement, site.variable, text, logprob, self.charged)
        )
        self.charged = 0.0

    def _settle(self, step: Pending | Finished) -> None:
        if isinstance(step, Finished):
            self.finished, self.value, self.pending = True, step.value, None
        else:
            self.pending = step

    def fork(self, engine: EngineInterface) -> Particle:
        """An independent copy that shares the token context's pages."""
        process = self.process.fork()
        return replace(
            self,
            process=process,
            value=process.finished.value if process.finished else None,
            contexts=[context.fork(engine) for context in self.contexts],
            generation=None if self.generation is None else self.generation.fork(),
            texts=list(self.texts),
            tokens=list(self.tokens),
            trace=list(self.trace),
        )


@dataclass(eq=False)
class Run:
    """One program's population on its way to a posterior.

    ``deaths`` holds those of each (round, source), ``round`` is the present round
    (also that of the random numbers), ``drawing`` whether texts have been extended in it,
    ``draws`` how many `draw` statements each slot has made in
    it, and ``phase_seconds`` and ``round_tokens`` collect what the round's record will show.
    ``block`` is the present K, and ``draft_record`` what it may be chosen by. ``increments`` adds
    up what blocks have moved the log weights by, and ``increment_tokens`` the tokens in them.
    """

    call: BoundProgram
    settings: Settings
    seed: int
    random: RandomSource
    particles: list[Particle]
    engine: EngineInterface
    round: int = 0
    records: list[RoundRecord] = field(default_factory=list)
    deaths: dict[tuple[int, str], Death] = field(default_factory=dict)
    warned: set[Site] = field(default_factory=set)
    drawing: bool = False
    draws: list[int] = field(default_factory=list)
    round_tokens: list[list[int]] = field(default_factory=list)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    block: int = 0
    draft_record: DraftRecord = field(default_factory=DraftRecord)
    increments: float = 0.0
    increment_tokens: int = 0
    drafted_tokens: int = 0
    scored_tokens: int = 0
    target_passes: int = 0
    draft_passes: int = 0
    peak_kv_tokens: int = 0
    unshared_kv_tokens: int = 0
    kv_tokens_copied: int = 0

    def __post_init__(self) -> None:
        self.block = self.settings.block
        self._reset_round()

    @property
    def log_weights(self) -> NDArray[np.float64]:
        return np.array([particle.log_weight for particle in self.particles])

    @property
    def levelled(self) -> NDArray[np.float64]:
        """The log weights by which particles are compared: where rejection lets them advance by
        unequal lengths, those that they would have at equal progress."""
        if self.settings.verified == 0 or self.settings.resample == "sync":
            return self.log_weights
        drawn = np.array([np.nan if p.generation is None else p.drawn for p in self.particles])
        pace = self.increments / max(self.increment_tokens, 1)
        return at_equal_progress(self.log_weights, drawn, pace)

    @property
    def all_dead(self) -> bool:
        return all(particle.dead for particle in self.particles)

    @property
    def over(self) -> bool:
        return not any(particle.running for particle in self.particles)

    @property
    def context_limit(self) -> int:
        """The most tokens that a particle's context may hold."""
        limit = self.engine.context_limit
        return self.settings.max_tokens if limit is None else min(self.settings.max_tokens, limit)

    @property
    def longest_contexts(self) -> list[int]:
        """The most tokens that each particle's own context could come to hold."""
        return [self.context_limit] * len(self.particles)

    def stream(self, slot: int, purpose: Purpose) -> Stream:
        """The random numbers of a slot in the present round."""
        return self.random.stream(self.round, slot, purpose)

    def charge(
        self,
        particle: Particle,
        amount: float,
        source: str,
        text: str | None = None,
        logprob: float | None = None,
    ) -> None:
        """Add to a particle's log weight; -inf kills it, NaN and +inf are errors.

        ``text`` and ``logprob`` are of the statement, for the trace of a particle that dies.

        Raises:
            WeightError
        """
        total = particle.log_weight + amount
        if np.isnan(total) or total == np.inf:
            raise WeightError(
                f"the log weight of {source} is {amount}, which makes {total} of "
                f"{particle.log_weight}; it must be finite or -inf"
            )
        particle.log_weight = total
        particle.charged += amount
        if particle.dead:
            self._bury(particle, source, text, logprob)

    def _bury(
        self, particle: Particle, source: str, text: str | None, logprob: float | None
    ) -> None:
        """Count a particle that has died, and give back what it holds."""
        if particle.generation is not None:
            text, logprob = particle.generation.readable, particle.generation.log_p
        particle.note(text, logprob)
        example = (particle.context.text + (text or ""))[-60:]
        known = self.deaths.get((self.round, source), Death(self.round, source, 0, example))
        self.deaths[self.round, source] = known._replace(number=known.number + 1)
        particle.generation = None
        self.release(particle)
        particle.process.close()

    def release(self, particle: Particle) -> None:
        """Free a particle's token contexts."""
        for context in particle.contexts:
            self.free(context.take_rows())

    def free(self, rows: Sequence[Row]) -> None:
        """Give rows back to the engine."""
        for row in rows:
            self.kv_tokens_copied += row.copied
            self.engine.free(row)

    def stop(self) -> None:
        """End the run where it is: what still runs has no value, and counts as truncated."""
        for particle in self.particles:
            if particle.running:
                particle.finished = particle.truncated = True
                self.release(particle)
                particle.process.close()

    def abandon(self) -> None:
        """Free all that the population holds, and end its host code, whatever that raises."""
        for particle in self.particles:
            self.release(particle)
        for particle in self.particles:
            with suppress(Exception):
                particle.process.close()

    def replace(self, ancestors: Sequence[int]) -> None:
        """Let each slot descend from the ancestor it names; the first heir takes it as it is."""
        heirs: list[Particle] = []
        clones: list[Particle] = []
        taken: set[int] = set()
        try:
            for ancestor in ancestors:
                particle = self.particles[ancestor]
                if ancestor in taken:
                    clones.append(particle := particle.fork(self.engine))
                heirs.append(particle)
                taken.add(ancestor)
        except BaseException:
            for clone in clones:
                self.release(clone)
            raise
        dropped = [p for slot, p in enumerate(self.particles) if slot not in taken]
        self.particles = heirs
        for particle in dropped:
            self.release(particle)
        for particle in dropped:
            particle.process.close()

    def measure(self, others: Sequence[Row] = ()) -> None:
        """Note how much KV the population holds now, with rows that were opened beside it."""
        rows = [row for particle in self.particles for row in particle.rows]
        rows.extend(row for row in others if row not in rows)
        self.peak_kv_tokens = max(self.peak_kv_tokens, self.engine.kv_tokens(rows))
        self.unshared_kv_tokens = max(self.unshared_kv_tokens, sum(row.length for row in rows))

    def close_round(self, ancestors: Sequence[int] | None, ess: float) -> None:
        """Write the round's record and begin the next."""
        self.records.append(
            RoundRecord(
                round=self.round,
                ess=ess,
                resampled=ancestors is not None,
                ancestors=tuple(range(len(self.particles)) if ancestors is None else ancestors),
                tokens=tuple(map(tuple, self.round_tokens)),
                live=sum(particle.running for particle in self.particles),
                seconds=self.phase_seconds,
            )
        )
        self.round += 1
        self.drawing = False
        self._reset_round()

    @property
    def ess(self) -> float:
        return effective_sample_size(self.levelled)

    def _reset_round(self) -> None:
        self.draws = [0] * len(self.particles)
        self.round_tokens = [[] for _ in self.particles]
        self.phase_seconds = {}
