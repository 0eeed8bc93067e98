"""Sequential Monte Carlo speculative decoding.

A round of the loop, for every particle of every run in flight that is inside a `gen`:

1. **draft**: the draft model proposes K events e ~ q~, step by step, under the particle's mask;
2. **score**: one packed pass of the target gives log p_i(e) of all of them, and draws a bonus
   event from prod_i p_i^alpha_i over E, whose normaliser is Z;
3. **reweight**: log w += sum (sum_i alpha_i log p_i(e) - log q~(e)) + log Z + change of log phi;
4. **host**: texts that have ended are handed to the program, which runs on to its next `gen`;
5. **resample**: where the effective sample size is below the threshold, particles are replaced by
   forks of their ancestors, and every log weight becomes the log of the mean weight.

So at any time the weights are proper: E[(1/N) sum_i w_i f(x_i)] = sum_x gamma(x) f(x) at the end.
With K = 0 there is no draft, and a round is a step of token-by-token SMC with the locally optimal
proposal. (DESIGN sections 2 and 3; Del Moral, Doucet and Jasra 2006; arXiv 2604.15672.)
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smcprog.dsl.requests import LogProb, Observe, Sync
from smcprog.errors import WeightError
from smcprog.inference import calls, host
from smcprog.inference.generation import Generation
from smcprog.inference.interface import (
    EngineInterface,
    EventSpace,
    Extension,
    Query,
    Row,
    Scored,
    Stream,
    Verification,
)
from smcprog.inference.population import Particle, RoundRecord, Run
from smcprog.inference.randomness import Purpose
from smcprog.inference.resampling import SCHEMES
from smcprog.inference.weights import log_evidence, log_power, normalised
from smcprog.potentials.base import Stage, TextPotential
from smcprog.text import Text

MOST_PARTICLES = 1024
"""How many particles are in flight together: more rows make no pass cheaper by the token."""


def run_rounds(
    engine: EngineInterface,
    runs: Sequence[Run],
    observe: Callable[[Run, RoundRecord], bool],
) -> None:
    """Carry runs to their end. Their populations change in place; all token contexts are freed.

    Runs enter in their order, as soon as there is room for them, and leave when they are over, or
    when ``observe``, called after each round, says that they need not go on.
    """
    waiting = deque(runs)
    in_flight: list[Run] = []
    try:
        while waiting or in_flight:
            in_flight += enter(engine, waiting, in_flight)
            if not in_flight:
                continue
            with timed(in_flight, "draft"):
                blocks = draft(engine, in_flight)
            with timed(in_flight, "score"):
                scores = score(engine, in_flight, blocks)
            with timed(in_flight, "host"):
                reweight(engine, blocks, scores)
                advance(engine, in_flight)
            for run in in_flight:
                end_round(run)
                choose_block(run, in_flight)
                if not observe(run, run.records[-1]):
                    run.stop()
            in_flight = [run for run in in_flight if not run.over]
    finally:
        for run in runs:
            run.abandon()


# 0. Admission


def enter(engine: EngineInterface, waiting: deque[Run], in_flight: Sequence[Run]) -> list[Run]:
    """Take the runs that have room beside those in flight off the queue, first come, first
    served, and run their host code to its first `gen`; returns those that are not over by then.

    Room is for `MOST_PARTICLES`, and in a fixed KV pool for all that the particles' own contexts
    could come to hold without sharing. A run that needs more than there is at all enters alone.
    """
    if not waiting:
        return []
    entered: list[Run] = []
    lengths = [length for run in in_flight for length in run.longest_contexts]
    while waiting:
        lengths += waiting[0].longest_contexts
        fits = len(lengths) <= MOST_PARTICLES and engine.has_room(lengths)
        if not fits and (in_flight or entered):
            break
        entered.append(waiting.popleft())
    if entered:
        with timed(entered, "host"):
            advance(engine, entered)
        for run in entered:
            if run.over:
                end_round(run)
    return [run for run in entered if not run.over]


# 1. Draft


@dataclass(eq=False)
class Block:
    """The events that one particle draws in one round before the bonus, the forced ones first."""

    run: Run
    slot: int
    particle: Particle
    generation: Generation
    events: list[int] = field(default_factory=list)
    spaces: list[EventSpace] = field(default_factory=list)
    log_q: list[float] = field(default_factory=list)
    forced: int = 0
    proposals: list[Any] = field(default_factory=list)
    undrafted: Generation | None = None

    @property
    def verified(self) -> slice:
        """The events that stand by rejection."""
        return slice(self.forced, self.forced + len(self.proposals))

    def take(self, event: int) -> None:
        space = self.generation.space()
        assert space is not None
        self.spaces.append(space)
        self.events.append(event)
        self.generation.push(event)

    @property
    def row(self) -> Row:
        row = self.particle.context.row
        assert row is not None
        return row

    @property
    def room(self) -> int:
        """Tokens that the contexts may still take."""
        room = self.run.context_limit - self.row.length
        limit = self.run.engine.context_limit
        if limit is not None:
            for given in self.particle.context.given.values():
                room = min(room, limit - given.length)
        return room

    @property
    def draft_row(self) -> Row | None:
        """What the draft reads: the hint and the context, where there is a hint; None where it can
        read no more."""
        if self.generation.request.hint is None:
            return self.row
        hint, limit = self.particle.context.hint, self.run.engine.context_limit
        return hint if hint is None or limit is None or hint.length < limit else None

    def stream(self, purpose: Purpose) -> Stream:
        return self.run.stream(self.slot, purpose)


def draft(engine: EngineInterface, runs: Sequence[Run]) -> list[Block]:
    """Extend every particle that is inside a `gen` by forced events and up to K drafted ones."""
    blocks = [
        Block(run, slot, particle, particle.generation)
        for run in runs
        for slot, particle in enumerate(run.particles)
        if particle.running and particle.generation is not None
    ]
    for run in runs:
        run.drawing = True
    take_forced(engine, blocks)
    drafting = [
        block
        for block in blocks
        if block.run.block
        and not block.generation.ended
        and block.room > 0
        and block.draft_row is not None
    ]
    for block in drafting:
        block.forced = len(block.events)
        if block.run.settings.verified:
            block.undrafted = block.generation.fork()

    def spaces(k: int, drawn: Sequence[int | None]) -> list[EventSpace | None]:
        for block, event in zip(drafting, drawn, strict=True):
            if event is not None:
                block.take(event)
        return [
            block.generation.space() if k == 0 or event is not None else None
            for block, event in zip(drafting, drawn, strict=True)
        ]

    extensions = {block: extension(block) for block in drafting}
    drafts = engine.extend([*extensions.values()], spaces) if drafting else []
    passes: dict[Run, int] = defaultdict(int)
    for block, drafted in zip(drafting, drafts, strict=True):
        for event in drafted.events[
            len(block.events) - block.forced :
        ]:  # the last is not asked for
            block.take(event)
        block.log_q.extend(drafted.log_q)
        block.proposals.extend(drafted.proposals)
        append_drawn(engine, block, drafted.events, but=extensions[block].row)
        block.run.drafted_tokens += len(drafted.events)
        passes[block.run] = max(passes[block.run], len(drafted.events))
    for run in runs:
        run.draft_passes += passes[run]
    return blocks


def take_forced(engine: EngineInterface, blocks: Sequence[Block]) -> None:
    """Append the events that are the only ones possible: no draft, no draw; their probability is
    charged like any other's."""
    for block in blocks:
        room = block.room
        while len(block.events) < room and (event := block.generation.forced()) is not None:
            block.take(event)
            block.log_q.append(0.0)
        append_drawn(engine, block, block.events)


def append_drawn(
    engine: EngineInterface, block: Block, events: Sequence[int], but: Row | None = None
) -> None:
    """Append the tokens among drawn events to every row of the `gen`, ``but`` the one that has
    them. A hint's row that has no room for them is given up: nothing is drafted from then on."""
    tokens = [event for event in events if event < engine.tokenization.vocabulary.size]
    if not tokens:
        return
    context, limit = block.particle.context, engine.context_limit
    hint = context.hint
    if hint is not None and hint is not but and limit is not None:
        if hint.length + len(tokens) > limit:
            context.hint = None
            block.run.free([hint])
    rows = [row for row in (block.row, *context.beside) if row is not but]
    engine.append(rows, [tokens] * len(rows))


def extension(block: Block) -> Extension:
    """What the draft is asked for: K events from q~, whose default temperature makes it the
    prefix-only proposal of least variance for the target's own factors (DESIGN: section 3)."""
    settings = block.run.settings
    lms = [lm for lm in block.generation.request.potential.lms if lm.own]
    sharpness = sum(lm.alpha / lm.temperature for lm in lms)
    temperature = settings.draft_temperature
    row, limit = block.draft_row, block.run.engine.context_limit
    assert row is not None
    room = block.room if limit is None else min(block.room, limit - row.length)
    return Extension(
        row=row,
        steps=min(block.run.block, block.generation.budget, room),
        temperature=lms[0].temperature,
        draft_temperature=1 / sharpness if temperature is None else temperature,
        stream=block.stream("draft"),
        verified=settings.verified,
    )


# 2. Score


def score(
    engine: EngineInterface, runs: Sequence[Run], blocks: Sequence[Block]
) -> Sequence[Scored]:
    """Score the blocks in one pass, and draw a bonus event for each that has not ended."""
    queries = [
        Query(
            rows=block.particle.context.rows_of(block.generation.request.potential.lms),
            block=block.events,
            spaces=block.spaces,
            lms=block.generation.request.potential.lms,
            bonus=block.generation.space(),
            stream=block.stream("bonus"),
            verification=verification(block),
        )
        for block in blocks
    ]
    for run in runs:
        events = [len(block.events) for block in blocks if block.run is run]
        run.scored_tokens += sum(events)
        run.target_passes += bool(events)
    scores = engine.score(queries) if queries else []
    for run in runs:
        run.measure()
    return scores


def verification(block: Block) -> Verification | None:
    """What decides which drafted events stand, where the run verifies by rejection."""
    if not block.proposals:
        return None
    return Verification(
        block.verified.start, block.proposals, block.stream("accept"), block.stream("residual")
    )


# 3. Reweight


def reweight(engine: EngineInterface, blocks: Sequence[Block], scores: Sequence[Scored]) -> None:
    """Charge blocks and bonuses, append the bonus tokens, charge the block potentials."""
    size = engine.tokenization.vocabulary.size
    for block, scored in zip(blocks, scores, strict=True):
        run, particle, generation = block.run, block.particle, block.generation
        if scored.kept < len(block.events):
            generation = roll_back(engine, block, scored.kept)
        log_p = scored.log_p[:, : scored.kept]
        increments = log_power(log_p, generation.request.potential.lms)
        increments -= block.log_q[: scored.kept]
        if run.settings.costs is not None:
            note_draft(block, increments, scored.kept)
        increments[block.verified] = 0.0  # their factor is Z_t, which is in log_z
        increment = float(np.sum(increments)) + scored.log_z
        generation.log_ps += log_p.sum(axis=1)
        events = block.events[: scored.kept]
        if scored.bonus is not None:
            events.append(scored.bonus)
            generation.log_ps += scored.bonus_log_p
            generation.push(scored.bonus)
        tokens = [event for event in events if event < size]
        run.round_tokens[block.slot].extend(tokens)
        particle.drawn += len(tokens)
        if increment > -np.inf:
            run.increments += increment
            run.increment_tokens += len(events)
        run.charge(particle, -np.inf if generation.dead else increment, host.source_of(particle))
        if particle.running and scored.bonus is not None and scored.bonus < size:
            if block.room:
                append_drawn(engine, block, [scored.bonus])
            else:
                host.outgrow(run, particle)
        if particle.running and (guide := generation.guide()) != generation.log_psi:
            run.charge(particle, guide - generation.log_psi, host.source_of(particle))
            generation.log_psi = guide
    charge_potentials([(b.run, b.particle) for b in blocks], "block")


def note_draft(block: Block, increments: NDArray[np.float64], kept: int) -> None:
    """Note how the drafted events of a block did: log weights of those that are weighted, and how
    many of the others stand."""
    record, verified = block.run.draft_record, block.verified
    record.weigh(increments[verified.stop :])
    record.accepted += min(kept, verified.stop) - verified.start
    record.rejected += kept < verified.stop


def choose_block(run: Run, in_flight: Sequence[Run]) -> None:
    """Choose K by what the draft costs and how it has done so far, where that is asked for."""
    settings, record = run.settings, run.draft_record
    if settings.costs is not None and record.enough:
        rows = sum(len(other.particles) for other in in_flight)
        run.block = settings.costs.best_block(
            rows, lambda block: record.quality(block, settings.verified)
        )


def roll_back(engine: EngineInterface, block: Block, kept: int) -> Generation:
    """Take back what was drafted after the first ``kept`` events of a block."""
    assert block.undrafted is not None
    size = engine.tokenization.vocabulary.size
    dropped = sum(event < size for event in block.events[kept:])
    for row in (block.row, *block.particle.context.beside):
        engine.truncate(row, row.length - dropped)
    for event in block.events[block.forced : kept]:
        block.undrafted.push(event)
    block.generation = block.particle.generation = block.undrafted
    return block.undrafted


def charge_potentials(members: Sequence[tuple[Run, Particle]], stage: Stage) -> None:
    """Charge new - old of the text potentials, one call for each potential.

    At stage "block" those of texts that go on; at stage "end" all of texts that have ended, whose
    last evaluation is of the text without its stop.
    """
    due: list[tuple[Run, Particle, Generation, int, TextPotential, Text]] = []
    for run, particle in members:
        generation = particle.generation
        if generation is None or generation.ended != (stage == "end"):
            continue
        potentials = [
            (i, potential)
            for i, potential in enumerate(generation.request.potential.texts)
            if stage == "end" or potential.stage == "block"
        ]
        text = generation.as_text() if potentials else Text("")
        due += [(run, particle, generation, i, potential, text) for i, potential in potentials]
    asked: dict[TextPotential, dict[Hashable, Text]] = defaultdict(dict)
    for *_, potential, text in due:
        asked[potential].setdefault(identity(potential, text), text)
    known = {
        potential: dict(
            zip(texts, evaluate(potential, [*texts.values()], stage == "end"), strict=True)
        )
        for potential, texts in asked.items()
    }
    # In the order of each gen's own product: that other runs are in flight must not show.
    for run, particle, generation, i, potential, text in due:
        if particle.running:
            new = known[potential][identity(potential, text)]
            old = generation.log_phi.get(i, 0.0)
            generation.log_phi[i] = new
            run.charge(particle, new - old, f"{potential!r} in {host.place(particle)}")


def identity(potential: TextPotential, text: Text) -> Hashable:
    """What a potential's value of a text depends on."""
    return (text, text.tokens) if potential.reads_tokens else text


def evaluate(potential: TextPotential, texts: list[Text], complete: bool) -> list[float]:
    """The log weight of each text.

    Raises:
        WeightError: if there is not one for each, or one is NaN or +inf.
    """
    try:
        values = np.asarray(potential.log_potential(list(texts), complete), dtype=np.float64)
    except Exception as error:
        error.add_note(f"raised by {potential!r}, which was given {len(texts)} texts to weigh")
        raise
    if values.shape != (len(texts),):
        raise WeightError(
            f"{potential!r} returned an array of shape {values.shape} for {len(texts)} texts; "
            "it must return one log weight for each"
        )
    for text, value in zip(texts, values, strict=True):
        if np.isnan(value) or value == np.inf:
            raise WeightError(
                f"the log weight of {potential!r} is {value} for the text {text!r}; it must be "
                "finite or -inf"
            )
    return list(values.tolist())


# 4. Host code


def advance(engine: EngineInterface, runs: Sequence[Run]) -> None:
    """Run host code until every particle draws text, waits at a `sync`, has finished or is dead."""
    while True:
        for run in runs:
            for slot, particle in enumerate(run.particles):
                host.advance(run, slot, particle)
        if not (
            complete_texts(runs)
            or any([calls.answer(run) for run in runs])
            or answer_scores(engine, runs)
            or any([open_sync(run) for run in runs])
        ):
            return


def complete_texts(runs: Sequence[Run]) -> bool:
    """Hand the texts that have ended to their programs."""
    members = [
        (run, particle)
        for run in runs
        for particle in run.particles
        if particle.running and particle.generation is not None and particle.generation.ended
    ]
    charge_potentials(members, "end")
    for run, particle in members:
        if particle.running:
            host.complete_gen(run, particle)
    return bool(members)


def answer_scores(engine: EngineInterface, runs: Sequence[Run]) -> bool:
    """Answer every `observe` and `logprob` that waits, by one scoring pass."""
    opened: list[Row] = []
    try:
        asked = [
            (run, particle, host.queries(run, particle, opened))
            for run in runs
            for particle in run.particles
            if isinstance(particle.request, Observe | LogProb)
        ]
        flat = [query for _, _, queries in asked for query in queries]
        scores = iter(engine.score(flat) if flat else [])
        for run in {run for run, _, _ in asked}:
            rows = [row for r, _, queries in asked if r is run for q in queries for row in q.rows]
            run.target_passes += bool(rows)
            run.measure(rows)
        for run, particle, queries in asked:
            host.answer_scored(run, particle, [next(scores) for _ in queries])
    finally:
        for row in opened:
            engine.free(row)
    return bool(asked)


def open_sync(run: Run) -> bool:
    """Open a `sync` where every running particle waits at one: the resampling test is made, in a
    record of its own."""
    if run.over or not all(isinstance(p.request, Sync) for p in run.particles if p.running):
        return False
    resample(run)
    for particle in run.particles:
        if isinstance(particle.request, Sync):
            particle.answer(None)
    return True


# 5. Resample


def end_round(run: Run) -> None:
    """Make the resampling test where it is due, and close the round.

    Not while a particle waits at a `sync`. With ``resample="round"`` after every round that leaves
    a particle running: to resample a finished population could only add variance. With
    ``resample="sync"`` at the end. Where a `sync` opened, it has closed the round already.
    """
    at_syncs = run.settings.resample == "sync"
    waiting = any(isinstance(particle.request, Sync) for particle in run.particles)
    if at_syncs and run.over:
        resample(run)
    elif run.drawing:
        if at_syncs or run.over or waiting:
            run.close_round(None, run.ess)
        else:
            resample(run)


def resample(run: Run) -> None:
    """Test the effective sample size; where it is low, replace the population by forks of
    ancestors drawn by weight, all of the mean weight. Closes the round.

    Where weights are compared at equal progress, each particle keeps what its own differs by.
    """
    began = time.perf_counter()
    settings, ess, n = run.settings, run.ess, len(run.particles)
    low = settings.ess_threshold >= 1 or ess < settings.ess_threshold * n
    ancestors = None
    if low and not run.all_dead:
        levelled = run.levelled
        log_mean = log_evidence(levelled)
        uniforms = run.stream(0, "resample").uniform
        ancestors = SCHEMES[settings.resampling](normalised(levelled), uniforms).tolist()
        ahead = run.log_weights[ancestors] - levelled[ancestors]
        run.replace(ancestors)
        for particle, difference in zip(run.particles, ahead.tolist(), strict=True):
            particle.log_weight = log_mean + difference
    run.phase_seconds["resample"] = time.perf_counter() - began
    run.close_round(ancestors, ess)


@contextmanager
def timed(runs: Sequence[Run], phase: str) -> Iterator[None]:
    """Add the time of a phase to the present round of all runs in flight."""
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    for run in runs:
        run.phase_seconds[phase] = run.phase_seconds.get(phase, 0.0) + seconds
