"""`Engine.run`: from program calls to posteriors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
from tqdm.auto import tqdm

from smcprog.dsl.process import Process
from smcprog.dsl.program import BoundProgram, Program
from smcprog.errors import DeadPopulationError
from smcprog.inference.interface import EngineInterface
from smcprog.inference.population import Particle, Run
from smcprog.inference.posterior import Posterior, Stats
from smcprog.inference.progress import OnRound, observer, text_of
from smcprog.inference.randomness import Philox, RandomSource, fold
from smcprog.inference.roofline import Roofline, context_to_measure, measure
from smcprog.inference.settings import (
    Block,
    Settings,
    check_seed,
    check_settings,
    checked_integer,
    for_each,
)
from smcprog.inference.smc import run_rounds

T = TypeVar("T")


class RunSettings(TypedDict, total=False):
    """The settings of `Runner.run`, for its overloads."""

    particles: int | Sequence[int]
    block: Block | Sequence[Block]
    verify: Literal["weight", "reject"] | int
    ess_threshold: float
    resampling: str
    resample: Literal["round", "sync"]
    draft_temperature: float | None
    max_tokens: int
    seed: int | None
    on_dead: Literal["raise", "return"]
    progress: bool | None
    on_round: OnRound | None


class Runner:
    """Gives a class that implements `EngineInterface` its `run`.

    An engine that is an argument of a program (or an attribute of its ``self``) is not copied with
    the other arguments.
    """

    _roofline: Roofline | None = None

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def roofline(self, context: int | None = None) -> Roofline:
        """What draft steps and target passes cost on this machine, by their rows.

        Measured once, in some twenty passes; with ``context``, the tokens of context to measure
        at, anew (default 256, or less where the models or a fixed KV pool have no room for it).

        Raises:
            KVPoolError, ContextLengthError: if the engine has no room for that.

        >>> costs = engine.roofline(context=16)
        >>> costs.speedup(particles=4, block=4) > 0
        True
        """
        if self._roofline is None or context is not None:
            engine = cast(EngineInterface, self)
            if context is None:
                context = context_to_measure(engine)
            self._roofline = measure(engine, checked_integer("context", context, 1))
        return self._roofline

    @overload
    def run(
        self: EngineInterface, program_call: BoundProgram[T], **settings: Unpack[RunSettings]
    ) -> Posterior[T]: ...
    @overload
    def run(
        self: EngineInterface,
        program_call: Sequence[BoundProgram[T]],
        **settings: Unpack[RunSettings],
    ) -> list[Posterior[T]]: ...

    def run(
        self: EngineInterface,
        program_call: BoundProgram | Sequence[BoundProgram],
        *,
        particles: int | Sequence[int] = 16,
        block: Block | Sequence[Block] = None,
        verify: Literal["weight", "reject"] | int = "weight",
        ess_threshold: float = 0.5,
        resampling: str = "systematic",
        resample: Literal["round", "sync"] = "round",
        draft_temperature: float | None = None,
        max_tokens: int = 4096,
        seed: int | None = None,
        on_dead: Literal["raise", "return"] = "raise",
        progress: bool | None = None,
        on_round: OnRound | None = None,
    ) -> Posterior | list[Posterior]:
        """Run a program by sequential Monte Carlo, and return a properly weighted sample.

        The target is gamma(x) of DESIGN section 2: E[exp(log_evidence) f] = sum_x gamma(x) f(x)
        for the weighted mean f of any function of the program's value.

        Args:
            program_call: ``program(arguments)``, or a list of them to run together: then a list
                of posteriors comes back, and run i is what ``seed=posterior.seed`` gives alone (up
                to the rounding of the models' passes). Runs enter in the order of the list, as
                others leave: where ``kv_tokens`` is fixed, when all that their particles could
                come to hold fits.
            particles: N; for a list of program calls also a list, one for each.
            block: K, the tokens drafted a round; also a list. None is 4 with a draft and 0
                without. "auto" begins with that and then takes the K of most effective tokens a
                second, by the costs of `roofline` (measured when it is first asked for) and what
                the run has seen of its draft. The target is the same, but since costs are
                measured, a seed does not repeat such a run.
            verify: how drafted tokens become a weighted extension (DESIGN section 3): "weight" is
                SMC-SD, "reject" lossless speculative sampling, and an integer j rejects over the
                first j drafted tokens of a block and weights the rest.
            ess_threshold: resample when ESS < threshold * N; 0 never, >= 1 always.
            resampling: "systematic", "stratified", "residual" or "multinomial".
            resample: "round" tests after each round, "sync" only where a `sync` opens and at the
                end.
            draft_temperature: T_d of the proposal; None is T / alpha. 0 (the most probable token)
                is for ``verify="reject"`` only, since a weighted draft has to cover the target.
            max_tokens: bounds a particle's context, prompts included; one that outgrows it dies
                (when a model next has to read it), and ``posterior.deaths`` says so.
            seed: of all random numbers; None draws one, which ``posterior.seed`` shows.
            on_dead: "raise" a `DeadPopulationError` when every particle has weight zero, or
                "return" an empty posterior with ``log_evidence == -inf``.
            progress: show a bar; None is False.
            on_round: called with a `Progress` after each round of each run. Where it returns
                False, that run ends: particles that are still running then have the value None,
                and count as truncated.

        Raises:
            ValueError, TypeError: for settings out of range.
            DeadPopulationError: after the other runs of a list are finished; it carries the
                posteriors.
            ProgramError, WeightError, PotentialError: of the program, and of what is in it.
            ContextLengthError, KVPoolError, NaNLogitsError: of the models.

        >>> @smc_program
        ... def add(a, b):
        ...     prompt(f"{a} + {b} =")
        ...     return int(gen(regex(" [0-9]{1,2}")))
        >>> engine.run(add(3, 4), particles=16, seed=0).best
        7
        >>> one, two = engine.run([add(3, 4), add(2, 5)], particles=64, seed=0)
        >>> one.best, two.best
        (7, 7)
        """
        several = isinstance(program_call, list | tuple)
        calls: list[Any] = [program_call]
        if isinstance(program_call, list | tuple):
            calls = list(program_call)
        for call in calls:
            check_call(call)
        if on_dead not in ("raise", "return"):
            raise ValueError(f'on_dead={on_dead!r}: say "raise" or "return"')
        number = len(calls) if several else None
        blocks = for_each("block", block, number)
        costs = cast(Runner, self).roofline() if self.has_draft and "auto" in blocks else None
        settings = [
            check_settings(
                n,
                k,
                self.has_draft,
                verify=verify,
                ess_threshold=ess_threshold,
                resampling=resampling,
                resample=resample,
                draft_temperature=draft_temperature,
                max_tokens=max_tokens,
                costs=costs,
            )
            for n, k in zip(for_each("particles", particles, number), blocks, strict=True)
        ]
        seed = secrets.randbits(63) if seed is None else check_seed(seed)
        seeds = [fold(seed, i) for i in range(len(calls))] if several else [seed]
        posteriors = run_calls(
            self,
            calls,
            settings,
            seeds,
            [Philox(seed) for seed in seeds],
            bool(progress),
            on_round,
        )
        dead = [i for i, posterior in enumerate(posteriors) if not posterior.values]
        if dead and on_dead == "raise":
            where = f" of program call {dead[0]} of the list" if several else ""
            error = DeadPopulationError(
                f"every particle{where} has weight zero:\n{posteriors[dead[0]].obituary()}"
            )
            error.posteriors = posteriors
            raise error
        return posteriors if several else posteriors[0]


def run_calls(
    engine: EngineInterface,
    calls: Sequence[BoundProgram],
    settings: Sequence[Settings],
    seeds: Sequence[int],
    sources: Sequence[RandomSource],
    progress: bool = False,
    on_round: OnRound | None = None,
) -> list[Posterior]:
    """Run program calls together, each with its own source of random numbers."""
    began = time.perf_counter()
    runs = [
        Run(
            call=call,
            settings=chosen,
            seed=seed,
            random=source,
            particles=[Particle(Process(call), root=slot) for slot in range(chosen.particles)],
            engine=engine,
        )
        for call, chosen, seed, source in zip(calls, settings, seeds, sources, strict=True)
    ]
    with tqdm(disable=not progress, unit="tok", desc="smcprog") as bar:
        run_rounds(engine, runs, observer(runs, bar, on_round))
    for run in runs:
        check_deterministic(run)
    seconds = time.perf_counter() - began
    return [posterior_of(run, seconds) for run in runs]


def check_deterministic(run: Run) -> None:
    """Replay one particle, so that host code that is not deterministic fails in every run.

    Raises:
        ProgramError
    """
    heaviest = int(np.argmax(run.log_weights))
    run.particles[heaviest].process.check()


def posterior_of(run: Run, seconds: float) -> Posterior:
    """What a finished run has to show."""
    particles = [] if run.all_dead else run.particles
    drawn = {i for record in run.records for tokens in record.tokens for i in tokens}
    spelled = run.engine.tokenization.vocabulary.tokens
    stats = Stats(
        rounds=len(run.records),
        drafted_tokens=run.drafted_tokens,
        scored_tokens=run.scored_tokens,
        target_passes=run.target_passes,
        draft_passes=run.draft_passes,
        resamplings=sum(record.resampled for record in run.records),
        peak_kv_tokens=run.peak_kv_tokens,
        unshared_kv_tokens=run.unshared_kv_tokens,
        kv_tokens_copied=run.kv_tokens_copied,
        seconds=seconds,
    )
    return Posterior(
        values=[None if p.dead else p.value for p in particles],
        texts=[text_of(p) for p in particles],
        tokens=[list(p.tokens) for p in particles],
        log_weights=np.array([p.log_weight for p in particles], dtype=np.float64),
        roots=[p.root for p in particles],
        truncated=[p.truncated for p in particles],
        traces=[list(p.trace) for p in particles],
        rounds=run.records,
        deaths=[death for _, death in sorted(run.deaths.items())],
        stats=stats,
        seed=run.seed,
        spellings={i: spelled[i].decode("utf-8", "backslashreplace") for i in sorted(drawn)},
    )


def check_call(call: object) -> None:
    """Refuse what is no program call, with the right spelling."""
    if isinstance(call, Program):
        raise TypeError(
            f"run takes a program call: engine.run({call.name}(...)), with its arguments"
        )
    if not isinstance(call, BoundProgram):
        raise TypeError(
            f"run takes a call of an @smc_program, or a list of calls, not {type(call).__name__}. "
            "Is the function decorated with @smc_program?"
        )
