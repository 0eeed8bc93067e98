"""What can be seen of a run while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smcprog.inference.population import Particle, RoundRecord, Run
from smcprog.inference.weights import log_evidence


@dataclass(frozen=True)
class Progress:
    """A run after a round.

    Attributes:
        run: its number in the list of program calls, from 0.
        record: what the round did.
        text: what the heaviest particle's `gen` statements have drawn so far.
        log_evidence: log of the mean weight, of the target that the weights are proper for now.
    """

    run: int
    record: RoundRecord
    text: str
    log_evidence: float


OnRound = Callable[[Progress], bool | None]
"""Called after each round of each run; False ends that run."""

Observer = Callable[[Run, RoundRecord], bool]
"""What the loop calls after a round: whether the run goes on."""


def observer(runs: Sequence[Run], bar: Any, on_round: OnRound | None) -> Observer:
    """Moves the bar on, and tells the user's function."""
    numbers = {run: number for number, run in enumerate(runs)}

    def observe(run: Run, record: RoundRecord) -> bool:
        if not bar.disable:
            bar.set_postfix(ess=f"{record.ess:.1f}", running=record.live, refresh=False)
            bar.update(sum(map(len, record.tokens)))
        if on_round is None:
            return True
        heaviest = run.particles[int(np.argmax(run.log_weights))]
        seen = Progress(numbers[run], record, text_of(heaviest), log_evidence(run.log_weights))
        return on_round(seen) is not False

    return observe


def text_of(particle: Particle) -> str:
    """The text that a particle has drawn so far, of a `gen` in progress too."""
    finished = b"".join(particle.texts).decode(errors="replace")
    generation = particle.generation
    return finished if generation is None else finished + generation.readable
